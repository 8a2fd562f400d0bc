"""The forms of a dense vector in JSON. The client imports them, so they need no NumPy."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from abound_core.limits import MAX_DIMENSION


class EncodedVector(Struct, forbid_unknown_fields=True, kw_only=True, gc=False):
    """The numbers of a vector as bytes, little-endian."""

    base64: Annotated[str, Meta(description="The numbers, one after the other, in base64.")]
    dtype: Annotated[Literal["float32", "int8"], Meta(description="Type of the numbers.")]


class VectorOfText(Struct, gc=False):
    """The int8 numbers that the encoder of ``analyzer`` made of a text, empty if it has none; no form in JSON."""

    analyzer: Any
    numbers: bytes


Numbers = Annotated[list[float], Meta(min_length=1, max_length=MAX_DIMENSION)]
"""A vector as a list."""
