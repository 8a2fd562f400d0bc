"""The forms of a dense vector in JSON. The client imports them, so they need no NumPy."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from abound_core.limits import MAX_DIMENSION


class EncodedVector(Struct, forbid_unknown_fields=True, kw_only=True, gc=False):
    """The numbers of a vector as bytes, little-endian."""

    base64: Annotated[str, Meta(description="The numbers, one after the other, in base64.")]
    dtype: Annotated[Literal["float32", "int8"], Meta(description="Type of the numbers.")]


class VectorOfText(EncodedVector, kw_only=True, gc=False):
    """The vector that the encoder of ``analyzer`` made of a text, as int8 numbers; empty if the text has none.

    It is no form in JSON: the service puts it in place of the vector that an instance lacks.
    """

    analyzer: Any
    numbers: bytes


Numbers = Annotated[list[float], Meta(min_length=1, max_length=MAX_DIMENSION)]
"""A vector as a list."""
