"""What a rank that makes no progress is doing: the line of its code, and its newest collective.

The collective comes from PyTorch's flight recorder, which costs nothing per collective in Python and can be read by
another thread while the training thread is blocked. It must be on before torch starts (`TORCH_FR_BUFFER_SIZE`).
"""

from __future__ import annotations

import json
import sys
import threading
from typing import Any

BUFFER = "TORCH_FR_BUFFER_SIZE"
_OURS = __name__.partition(".")[0]


def where() -> str:
    """`file:line function` of the training thread, the innermost frame that belongs to no library."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    innermost = found = ""
    while frame is not None:
        code = frame.f_code
        text = f"{code.co_filename}:{frame.f_lineno} {code.co_name}"
        innermost = innermost or text
        if not found and not _is_library(code.co_filename):
            found = text
        frame = frame.f_back
    return (found or innermost)[-500:]


def _is_library(path: str) -> bool:
    return "site-packages" in path or f"/{_OURS}/" in path or path.startswith("<") or "/lib/python" in path


def collective() -> dict[str, Any] | None:
    """The newest collective that this rank has begun; None if that is not recorded."""
    if "torch.distributed" not in sys.modules:
        return None
    import torch._C._distributed_c10d as c10d

    return newest(json.loads(c10d._dump_fr_trace_json()))  # type: ignore[attr-defined]


def newest(dump: dict[str, Any]) -> dict[str, Any] | None:
    """Of a flight recorder's dump. `done`: the operation is over, so the rank waits for no one in it."""
    entries = dump.get("entries") or []
    if not entries:
        return None
    entry = max(entries, key=lambda e: e.get("record_id", 0))
    group = entry.get("process_group") or ["?"]
    return {
        "op": str(entry.get("profiling_name", "?"))[:64],
        "seq": int(entry.get("collective_seq_id", 0)),
        "group": str(group[-1] or group[0])[:64],
        "sizes": str(entry.get("input_sizes", ""))[:128],
        "done": bool(entry.get("retired")),
    }
