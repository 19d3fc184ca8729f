"""The global batch: pure, varied, well filled, always packable; and clear words about bad data."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from resihp_messages import BatchConfig
from resihp_plan import Cluster, ModelSpec, slice_batch
from resihp_plan.planner import plan_initial
from resihp_trainer.corpus import Corpus, load_corpus
from resihp_trainer.data import documents

BATCH = BatchConfig(micro_batches=8, tokens_per_micro_batch=128)


@pytest.fixture(scope="module")
def library() -> Corpus:
    return load_corpus(None, max_bytes=1 << 20)


def test_the_default_corpus_is_the_same_each_time(library: Corpus) -> None:
    again = load_corpus(None, max_bytes=1 << 20)
    assert np.array_equal(library.text, again.text)
    assert np.array_equal(library.starts, again.starts)
    assert len(library.text) == 1 << 20
    assert (library.stops - library.starts).min() >= 2


def test_batches_are_pure_and_differ(library: Corpus) -> None:
    batches = [documents(library, BATCH, seed, k) for seed, k in ((7, 1), (7, 1), (7, 2), (8, 1))]
    texts = [b"".join(t.tobytes() for t in b.texts) for b in batches]
    assert texts[0] == texts[1]
    assert batches[0].documents == batches[1].documents
    assert len(set(texts)) == 3


def test_batches_are_filled_varied_and_unique(library: Corpus) -> None:
    ids: set[int] = set()
    lengths: list[int] = []
    for k in range(1, 101):
        batch = documents(library, BATCH, 3, k)
        assert 0.85 * 1024 < batch.num_tokens <= 1024
        assert [len(t) for t in batch.texts] == [d.length + 1 for d in batch.documents]
        ids.update(d.id for d in batch.documents)
        lengths += [d.length for d in batch.documents]
    assert len(ids) == len(lengths)
    assert max(lengths) <= 128
    low, middle, high = np.percentile(lengths, [10, 50, 90])
    assert low < 32 < middle < 100 < high


@pytest.mark.parametrize(("micro_batches", "budget"), [(1, 1), (1, 5), (3, 9), (5, 40), (8, 128), (2, 1000)])
def test_every_batch_can_be_packed(library: Corpus, micro_batches: int, budget: int) -> None:
    batch = BatchConfig(micro_batches=micro_batches, tokens_per_micro_batch=budget)
    model = ModelSpec()
    plan = plan_initial(Cluster.of(1), model, 1, 1, 1, micro_batches)
    for k in range(1, 60):
        drawn = documents(library, batch, 1, k)
        sliced = slice_batch(drawn.documents, plan, model, tokens_per_micro_batch=budget)
        indices = [i for m in sliced.micro_batches[0] for i in m]
        assert sorted(indices) == list(range(len(drawn.documents)))


def test_documents_stay_inside_a_file(tmp_path: Path) -> None:
    for i, letter in enumerate("abc"):
        (tmp_path / f"{i}.txt").write_text(letter * 100)
    corpus = load_corpus(str(tmp_path))
    for k in range(1, 50):
        for text in documents(corpus, BatchConfig(micro_batches=2, tokens_per_micro_batch=30), 0, k).texts:
            assert len(set(text.tolist())) == 1


def test_folders_skip_what_is_no_text(tmp_path: Path) -> None:
    (tmp_path / "good.txt").write_text("good text\n")
    (tmp_path / "binary.bin").write_bytes(b"\0" * 50)
    (tmp_path / ".hidden").write_text("secret")
    (tmp_path / "empty").touch()
    assert load_corpus(str(tmp_path)).text.tobytes() == b"good text\n"


def test_jsonl(tmp_path: Path) -> None:
    path = tmp_path / "data.jsonl"
    path.write_text("\n".join(json.dumps({"text": t}) for t in ("first", "second")) + "\n\n")
    corpus = load_corpus(str(path))
    assert corpus.text.tobytes() == b"firstsecond"
    assert list(zip(corpus.starts.tolist(), corpus.stops.tolist(), strict=True)) == [(0, 5), (5, 11)]


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("missing.txt", None, "No such file"),
        ("empty.txt", b"", "no text"),
        ("short.txt", b"x", "no text"),
        ("binary.txt", b"ab\0cd", "NUL"),
        ("broken.jsonl", b'{"text": "a"}\n{"text": \n', "line 2"),
        ("other.jsonl", b'{"body": "a"}\n', "`text` field"),
        ("typed.jsonl", b'{"text": 5}\n', "not a string"),
        ("list.jsonl", b"[1]\n", "`text` field"),
    ],
)
def test_bad_data_is_refused_in_one_line(tmp_path: Path, name: str, content: bytes | None, reason: str) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ValueError, match=r"data\.path") as error:
        load_corpus(str(path))
    assert reason in str(error.value)
    assert name in str(error.value)
    assert "\n" not in str(error.value)


def test_an_empty_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no text"):
        load_corpus(str(tmp_path))


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Byte-level BPE that was trained on a few words, with a first token for every text."""
    tokenizers = pytest.importorskip("tokenizers")
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=320,
        special_tokens=["<s>"],
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator(["the quick brown fox jumps over the lazy dog"] * 50, trainer)
    made.post_processor = tokenizers.processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    folder = tmp_path_factory.mktemp("tokenizer")
    made.save(str(folder / "tokenizer.json"))
    return folder


def test_tokens_are_those_of_the_tokenizer(tokenizer: Path, tmp_path: Path) -> None:
    from tokenizers import Tokenizer

    path = tmp_path / "text.txt"
    path.write_text("the quick brown fox\n\nthe lazy dog and some more\n\nx")
    corpus = load_corpus(str(path), tokenizer=str(tokenizer))
    theirs = Tokenizer.from_file(str(tokenizer / "tokenizer.json"))
    assert corpus.largest_token == max(theirs.get_vocab().values()) > 256
    for i in range(2):
        text = corpus.text[corpus.starts[i] : corpus.stops[i]].tobytes().decode()
        assert corpus.paragraph(i).tolist() == theirs.encode(text).ids
        assert corpus.paragraph(i)[0] == 0
        assert len(corpus.paragraph(i)) < len(text)
    batch = documents(corpus, BatchConfig(micro_batches=3, tokens_per_micro_batch=9), 5, 1)
    assert batch.num_tokens <= 27
    again = documents(load_corpus(str(path), tokenizer=str(tokenizer / "tokenizer.json")), *_batch_of_three())
    assert [t.tolist() for t in batch.texts] == [t.tolist() for t in again.texts]


def _batch_of_three() -> tuple[BatchConfig, int, int]:
    return BatchConfig(micro_batches=3, tokens_per_micro_batch=9), 5, 1


@pytest.mark.parametrize(
    ("content", "reason"), [(None, "no such file"), ("{}", "tokenizer.json"), ("not json", "tokenizer.json")]
)
def test_a_bad_tokenizer_is_refused_in_one_line(tmp_path: Path, content: str | None, reason: str) -> None:
    if content is not None:
        (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(ValueError, match=r"data\.tokenizer") as error:
        load_corpus(None, tokenizer=str(tmp_path), max_bytes=1000)
    assert reason in str(error.value)
    assert "\n" not in str(error.value)


def test_too_short_paragraphs_are_drawn_again_but_not_for_ever(tokenizer: Path) -> None:
    text = np.frombuffer(b"ab" * 3, dtype=np.uint8)
    corpus = Corpus(text, np.array([0, 2]), np.array([2, 6]), _Fixed({b"ab": 1, b"abab": 4}))
    batch = documents(corpus, BatchConfig(micro_batches=2, tokens_per_micro_batch=3), 0, 1)
    assert {len(t) for t in batch.texts} <= {2, 3, 4}
    with pytest.raises(ValueError, match="none of at least 2 tokens"):
        documents(Corpus(text, np.array([0]), np.array([2]), _Fixed({b"ab": 1})), BATCH, 0, 1)


class _Fixed:
    """A tokenizer that gives every text so many tokens."""

    largest = 9

    def __init__(self, lengths: dict[bytes, int]) -> None:
        self._lengths = lengths

    def encode(self, text: bytes) -> np.ndarray:
        return np.arange(self._lengths[text], dtype=np.int32)


def test_parquet(tmp_path: Path) -> None:
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "data.parquet"
    rows = [f"row {i} of the table" for i in range(700)]
    parquet.write_table(pyarrow.table({"body": rows, "number": list(range(700))}), path, row_group_size=100)
    corpus = load_corpus(str(path), text_field="body")
    assert corpus.text.tobytes().decode() == "".join(rows)
    assert len(corpus) == 700
    assert len(load_corpus(str(tmp_path), text_field="body")) == 700  # in a folder too
    assert len(load_corpus(str(path), text_field="body", max_bytes=100)) == 6
    with pytest.raises(ValueError, match="no column `text`"):
        load_corpus(str(path))
    with pytest.raises(ValueError, match=r"row 1: `number` is int, not a string"):
        load_corpus(str(path), text_field="number")
    path.write_bytes(b"not a table")
    with pytest.raises(ValueError, match=r"not a parquet file"):
        load_corpus(str(path))


def test_jsonl_with_another_field_and_in_a_folder(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(json.dumps({"content": "inside"}) + "\n")
    (tmp_path / "b.txt").write_text("plain text")
    corpus = load_corpus(str(tmp_path), text_field="content")
    assert corpus.text.tobytes() == b"insideplain text"
