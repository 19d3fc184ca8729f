"""How many tokens a batch holds, in documents of which lengths: the work of attention grows with their squares.

Order of trust: cumulative lengths, position ids, masks; the shape alone only if nothing else is there, and then it is
said (`source="shape"`): the squares are then those of rows without padding, an upper bound.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

_CUMULATIVE = ("cu_seq_lens_q", "cu_seqlens", "cu_seqlens_q")
_POSITIONS = ("position_ids", "positions")
_FEW = 4096
"""Elements that Python adds up sooner than torch, whose reductions are cold code in a step that has none."""
_TOKENS = ("input_ids", "tokens", "text", "inputs_embeds")


class Work(NamedTuple):
    """Of one micro-batch."""

    tokens: int
    sum_sq_len: int
    source: str
    """`declared`, `cu_seqlens`, `positions`, `mask`, `shape`, `rows` (no tokens: rows are counted), or `none`."""


NOTHING = Work(0, 0, "none")


def of_lengths(lengths: Iterable[int], source: str = "declared") -> Work:
    """Documents of these lengths."""
    known = list(map(int, lengths))
    return Work(sum(known), sum([n * n for n in known]), source)


def of_call(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Work:
    """What a model was called with. Never waits for a device: tensors that are not on the CPU count by their shape."""
    for batch in (kwargs, *(a for a in args if isinstance(a, Mapping))):
        found = of_batch(batch)
        if found is not None:
            return found
    packed = kwargs.get("packed_seq_params")
    if packed is not None:
        cumulative = _local(getattr(packed, "cu_seqlens_q", None))
        if cumulative is not None:
            return _cumulative(cumulative)
    for value in (*args, *kwargs.values()):
        tensor = _tensor(value)
        if tensor is not None:
            return _of_shape(tensor)
    return NOTHING


def of_batch(batch: Mapping[str, Any]) -> Work | None:
    """A batch by its usual names; None if it has none of them."""
    for name in _CUMULATIVE:
        if name in batch and (tensor := _local(batch[name])) is not None:
            return _cumulative(tensor)
    mask = _local(batch.get("attention_mask"))
    for name in _POSITIONS:
        if name in batch and (tensor := _local(batch[name])) is not None and tensor.dim() in (1, 2):
            return _positions(tensor, mask)
    if mask is not None and mask.dim() in (2, 4):
        return _mask(mask)
    for name in _TOKENS:
        if (tensor := _tensor(batch.get(name))) is not None:
            return _of_shape(tensor)
    return None


def _tensor(value: Any) -> Any:
    return value if hasattr(value, "shape") and hasattr(value, "dim") and hasattr(value, "dtype") else None


def _local(value: Any) -> Any:
    """A plain CPU tensor, or None: reading one of an accelerator would make the host wait for it."""
    tensor = _tensor(value)
    if tensor is None:
        return None
    if hasattr(tensor, "to_local"):  # a distributed tensor: operators on it may have no rule, or communicate
        tensor = tensor.to_local()
    return tensor if tensor.is_cpu else None


def _cumulative(tensor: Any) -> Work:
    steps = tensor.reshape(-1).diff().tolist()
    return of_lengths(steps, "cu_seqlens")


def _positions(positions: Any, mask: Any) -> Work:
    """A document begins at every 0 and with every row; what the mask hides is padding."""
    rows = positions.reshape(1, -1) if positions.dim() == 1 else positions
    hidden = mask.tolist() if mask is not None and mask.shape == rows.shape else None
    lengths = []
    for r, row in enumerate(rows.tolist()):
        length = 0
        for i, position in enumerate(row):
            if position == 0 and length:
                lengths.append(length)
                length = 0
            length += 1 if hidden is None or hidden[r][i] else 0
        lengths.append(length)
    return of_lengths(lengths, "positions")


def _mask(mask: Any) -> Work:
    if mask.dim() == 4:  # True hides; visible pairs of a causal block of n tokens: (n^2 + n) / 2
        tokens = int(mask.shape[0] * mask.shape[-1])
        visible = int((~mask.bool()).sum())
        return Work(tokens, max(tokens, 2 * visible - tokens), "mask")
    if mask.numel() <= _FEW:
        rows = mask.tolist()
        if all(row.count(0) + row.count(1) == len(row) for row in rows):
            return of_lengths(map(sum, rows), "mask")
    top = int(mask.max()) if mask.numel() else 0
    if top <= 1 and not mask.dtype.is_floating_point:  # the usual one; this is called for every micro-batch
        return of_lengths(mask.sum(dim=1).tolist(), "mask")
    counts = [mask.eq(number).sum(dim=1) for number in range(1, max(1, top) + 1)]  # segment ids, if above 1
    return of_lengths([n for column in counts for n in column.tolist()], "mask")


def _of_shape(tensor: Any) -> Work:
    if tensor.dtype.is_floating_point and tensor.dim() != 3:  # features, images: nobody knows what a token is
        return Work(int(tensor.shape[0]) if tensor.dim() else 1, 0, "rows")
    rows, length = (tensor.shape[0], tensor.shape[1]) if tensor.dim() >= 2 else (1, tensor.numel())
    return Work(int(rows * length), int(rows * length * length), "shape")
