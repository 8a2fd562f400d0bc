"""Encoders, which turn a text into a dense vector: the sum of the vectors of its tokens.

An encoder is a table with one vector for each token (a ``safetensors`` file) and a tokenizer (``tokenizer.json`` of the
library tokenizers), as WordLlama and Model2Vec make them. The table is converted to int8, so that sums are exact and a
text has the same vector on every machine. Only the vector gets into the log: nothing but new texts needs an encoder.
"""

from __future__ import annotations

import importlib.util
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from abound.core.errors import InvalidInstance
from abound.core.instances.dense_vector import quantize
from abound.core.limits import MAX_DIMENSION

FIELD = "analyzer.embed"

MAX_CHARACTERS = 8_000
"""The rest of a longer text is not encoded."""

WORDLLAMA = "wordllama"

_INSTALL = "pip install 'abound[embed]'"

directory: Path | None = None
"""Where encoders are looked for, each in a directory of its own; set from ``ABOUND_ENCODERS_DIR``."""


class TextEncoder:
    """An encoder.

    Parameters
    ----------
    table : real array, shape (n_tokens, d)
        The vector of each token.
    tokenizer : tokenizers.Tokenizer
        Of at most ``n_tokens`` tokens.
    """

    def __init__(self, table: npt.NDArray[Any], tokenizer: Any) -> None:
        self._table = np.rint(table * (127 / np.abs(table).max())).astype(np.int8)
        self._tokenizer = tokenizer
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()

    @property
    def dimension(self) -> int:
        """Length of the vectors."""
        return self._table.shape[1]

    def encode(self, text: str) -> bytes | None:
        """Return the vector of a text as int8 numbers, None if no token has one."""
        ids = self._tokenizer.encode(text[:MAX_CHARACTERS], add_special_tokens=False).ids
        total = self._table[ids].sum(axis=0, dtype=np.int32)
        return quantize(total, "text") if total.any() else None


@cache
def load(name: str) -> TextEncoder:
    """Return the encoder of this name.

    Raises
    ------
    InvalidInstance
        There is no such encoder on this machine, or its files are not as they should be.
    """
    try:
        from safetensors.numpy import load_file
        from tokenizers import Tokenizer
    except ImportError:
        raise InvalidInstance(f"{FIELD} needs the extra packages: {_INSTALL}", FIELD) from None
    table_path, tokenizer_path = _files(name)
    try:
        table = _token_vectors(load_file(table_path))
        tokenizer = Tokenizer.from_file(str(tokenizer_path))
    except Exception as error:  # the libraries raise exceptions of many kinds, tokenizers plain Exception
        raise InvalidInstance(f"{FIELD}: the encoder {name} cannot be read: {error}", FIELD) from None
    if tokenizer.get_vocab_size() > len(table):
        raise InvalidInstance(
            f"{FIELD}: the encoder {name} has {tokenizer.get_vocab_size()} tokens and vectors for {len(table)}", FIELD
        )
    return TextEncoder(table, tokenizer)


def _files(name: str) -> tuple[Path, Path]:
    """Return the paths of an encoder's table and tokenizer."""
    if directory is not None and (directory / name).is_dir():
        tables = sorted((directory / name).glob("*.safetensors"))
        if len(tables) == 1:
            return tables[0], directory / name / "tokenizer.json"
        raise InvalidInstance(f"{FIELD}: the encoder {name} has {len(tables)} safetensors files instead of one", FIELD)
    if name != WORDLLAMA:
        where = f"in {directory}" if directory else "because ABOUND_ENCODERS_DIR is not set"
        raise InvalidInstance(f"{FIELD}: there is no encoder {name}, {where}; {WORDLLAMA} comes with a package", FIELD)
    package = importlib.util.find_spec(WORDLLAMA)  # its import would load far more than the files
    if package is None or not package.submodule_search_locations:
        raise InvalidInstance(f"{FIELD} needs the package {WORDLLAMA}: {_INSTALL}", FIELD)
    home = Path(package.submodule_search_locations[0])
    return home / "weights/l2_supercat_256.safetensors", home / "tokenizers/l2_supercat_tokenizer_config.json"


def _token_vectors(tensors: dict[str, npt.NDArray[Any]]) -> npt.NDArray[np.float32]:
    """Return the vector of each token. Model2Vec may store rows that tokens share, and a weight for each token."""
    tables = [tensor for tensor in tensors.values() if tensor.ndim == 2]
    if len(tables) != 1:
        raise ValueError(f"{len(tables)} tensors with two dimensions instead of one")
    table = tables[0].astype(np.float32)
    if "mapping" in tensors:
        table = table[tensors["mapping"]]
    if "weights" in tensors:
        table = table * tensors["weights"].astype(np.float32)[:, None]
    if not 1 <= table.shape[1] <= MAX_DIMENSION:
        raise ValueError(f"vectors of {table.shape[1]} numbers; at most {MAX_DIMENSION} are allowed")
    if not np.isfinite(table).all() or not table.any():
        raise ValueError("a vector has a number that is not finite, or all are zero")
    return table
