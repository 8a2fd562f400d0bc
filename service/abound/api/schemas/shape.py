"""The base class of answers, which shows the fields of records."""

from __future__ import annotations

from typing import Annotated, Any, Self, get_args, get_type_hints

from msgspec import Meta
from pydantic import BaseModel, ConfigDict, Field


class Shape(BaseModel):
    """Base class of answers; other fields than the declared ones are refused.

    An answer can show a record::

        class KeyShape(Shape, record=Key, fields="id scopes state"):
            state: str

    ``fields`` are the public ones in their order; the default is all fields of the record. Types, bounds and
    descriptions are those of the record, except for the fields that the answer declares itself. With ``defaults``, so
    are the defaults.
    """

    model_config = ConfigDict(extra="forbid")

    def __init_subclass__(
        cls, record: type | None = None, fields: str = "", defaults: bool = False, **kwargs: Any
    ) -> None:
        super().__init_subclass__(**kwargs)
        hints = get_type_hints(record, include_extras=True) if record is not None else {}
        shown = {name: _documented(hints.get(name)) for name in fields.split() or hints}
        cls.__annotations__ = shown | cls.__annotations__
        if record is not None and defaults:
            usual = record()
            for name in shown:
                setattr(cls, name, getattr(usual, name))

    @classmethod
    def of(cls, record: object, **own: Any) -> Self:
        """Return the answer for a record; ``own`` has the fields that differ from it."""
        return cls.model_validate({name: getattr(record, name) for name in cls.model_fields if name not in own} | own)


def _documented(hint: Any) -> Any:
    """Return a type with the bounds and the description of its ``msgspec.Meta`` in the form that pydantic reads."""
    parts = (hint, *get_args(hint), *(inner for part in get_args(hint) for inner in get_args(part)))
    metas = [meta for part in parts for meta in getattr(part, "__metadata__", ())]
    found = {
        name: value
        for meta in metas
        if isinstance(meta, Meta)
        for name in ("description", "ge", "le", "min_length", "max_length", "pattern")
        if (value := getattr(meta, name)) is not None
    }
    return Annotated[hint, Field(**found)] if found else hint
