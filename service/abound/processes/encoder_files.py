"""Files of encoders (``abound_core.instances.text_encoder``): the package WordLlama, or a directory of the operator."""

from __future__ import annotations

import importlib.util
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from abound_core.errors import InvalidInstance
from abound_core.instances import text_encoder
from abound_core.instances.text_encoder import FIELD, TextEncoder
from abound_core.limits import MAX_DIMENSION

WORDLLAMA = "wordllama"

_INSTALL = "pip install 'abound[embed]'"


def use_encoders(directory: Path | None) -> None:
    """Let the models of this process use WordLlama and the encoders in ``directory``, one subdirectory for each."""
    text_encoder.source = cache(partial(read_encoder, directory))


def read_encoder(directory: Path | None, name: str) -> TextEncoder:
    try:
        from safetensors.numpy import load_file
        from tokenizers import Tokenizer
    except ImportError:
        raise InvalidInstance(f"{FIELD} needs the extra packages: {_INSTALL}", FIELD) from None
    table_path, tokenizer_path = _files(directory, name)
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


def _files(directory: Path | None, name: str) -> tuple[Path, Path]:
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
