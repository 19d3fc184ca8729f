"""Text as tokens of a Hugging Face `tokenizer.json`. No torch.

Errors: ValueError, one line, naming the file and what is wrong with it.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

FILE = "tokenizer.json"


class TextTokenizer:
    """Encodes texts as the tokenizer's own post-processor wants them (a first token, if it adds one)."""

    def __init__(self, path: str) -> None:
        """`path`: the file, or the folder that holds a `tokenizer.json`."""
        try:
            from tokenizers import Tokenizer
        except ImportError as error:
            raise ValueError("data.tokenizer needs the package tokenizers: pip install 'resihp[trainer]'") from error
        file = Path(path, FILE) if Path(path).is_dir() else Path(path)
        if not file.is_file():
            raise ValueError(f"data.tokenizer {str(file)!r}: no such file")
        try:
            self._tokenizer = Tokenizer.from_file(str(file))
        except Exception as error:  # the library raises plain Exception
            raise ValueError(f"data.tokenizer {str(file)!r}: {str(error).splitlines()[0]}") from error
        self.largest = max(self._tokenizer.get_vocab(with_added_tokens=True).values(), default=-1)
        """The largest token that it can produce."""

    def encode(self, text: bytes) -> NDArray[np.int32]:
        """Tokens of a UTF-8 text; what is not UTF-8 is replaced."""
        return np.array(self._tokenizer.encode(text.decode("utf-8", errors="replace")).ids, dtype=np.int32)
