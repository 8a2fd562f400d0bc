"""The options of reading a file. Every way to name a file takes these, under these names."""

from __future__ import annotations

from contextlib import suppress
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct, convert
from msgspec.structs import force_setattr

from abound_core.errors import InvalidInstance

Format = Literal["jsonl", "json", "csv", "tsv", "parquet", "arrow", "svm", "txt", "fasttext", "vw"]

ANY_FIELD = "*"  # among ignored columns: every column without a role

DELIMITERS = {"tab": "\t", "\\t": "\t"}
NO_QUOTE = "none"

WEEKDAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")

Rows = Annotated[int, Meta(ge=0, le=10_000)]
Columns = Annotated[tuple[str, ...], Meta(max_length=1000)]


class ReadOptions(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """The options of reading a file. What is None or empty is guessed from its first lines.

    Columns are those of a table, or the fields of JSON lines. The columns of a table without a header are numbers
    from 1. A column without a role is a feature.
    """

    format: Annotated[Format | None, Meta(description="Default: by the suffix, and the content of .txt and .json.")] = (
        None
    )
    delimiter: Annotated[str | None, Meta(description="CSV: separates cells: a character, or tab.")] = None
    quote: Annotated[str | None, Meta(description="CSV: quotes cells: a character, or none. TSV has none.")] = None
    header: Annotated[bool | None, Meta(description="The first line names the columns; else they are 1, 2, ...")] = None
    skip_rows: Annotated[Annotated[int, Meta(ge=0, le=10_000)] | None, Meta(description="Lines before the table.")] = (
        None
    )
    encoding: Annotated[str | None, Meta(description="Such as utf-8 or cp1252.")] = None
    decimal: Annotated[Literal[".", ","] | None, Meta(description="CSV: the decimal sign.")] = None
    date_format: Annotated[str | None, Meta(description="CSV: of dates, such as %d/%m/%Y.")] = None
    text: Annotated[Columns, Meta(description="Column of the text; several are its fields. Default: text.")] = ()
    label: Annotated[
        Columns,
        Meta(
            description="Column of the labels. Of several, those of only 0 and 1, or true and false, are labels by "
            "their name. Default: labels or label."
        ),
    ] = ()
    label_separator: Annotated[
        Annotated[str, Meta(min_length=1, max_length=64)] | None,
        Meta(description="Separates the labels of a string. Default: one label."),
    ] = None
    vector: Annotated[str | None, Meta(description="Column of the dense vectors. Default: vector.")] = None
    category: Annotated[Columns, Meta(description="Column whose values are categories, also if they are numbers.")] = ()
    number: Annotated[Columns, Meta(description="Column of numbers with separators, such as 1.234,50 €.")] = ()
    date: Annotated[Columns, Meta(description="Column of dates; its features are weekday, month and day.")] = ()
    ignore: Annotated[Columns, Meta(description="Column that is left out; *: all columns without a role.")] = ()
    key_column: Annotated[str | None, Meta(description="Column of the idempotency keys.")] = None
    source_column: Annotated[str | None, Meta(description="Column of the sources of the events.")] = None
    weight_column: Annotated[str | None, Meta(description="Column of the weights.")] = None
    # What only the content tells: the label columns that are labels by their name, and that nothing is left to guess.
    flags: tuple[str, ...] = ()
    is_resolved: bool = False

    def __post_init__(self) -> None:
        force_setattr(self, "delimiter", DELIMITERS.get(self.delimiter or "", self.delimiter))
        for name in ("delimiter", "quote"):
            value = getattr(self, name)
            if value is not None and (len(value) != 1 or value in "\r\n") and (name, value) != ("quote", NO_QUOTE):
                raise InvalidInstance(f"must be one character, not {value!r}", name)
        with suppress(UnicodeError):
            try:
                b"a".decode(self.encoding or "utf-8")
            except LookupError:
                raise InvalidInstance(
                    f"there is no encoding {self.encoding!r}; try utf-8, cp1252", "encoding"
                ) from None

    @classmethod
    def of(cls, **given: Any) -> ReadOptions:
        """Return the options, of which a single column may stand alone. Raises msgspec.ValidationError."""
        several = [name for name in given.keys() & {*cls.__struct_fields__} if getattr(cls(), name) == ()]
        alone = {name: (given[name],) for name in several if isinstance(given[name], str)}
        return convert({name: value for name, value in (given | alone).items() if value is not None}, cls)

    @property
    def roles(self) -> tuple[str, ...]:
        """The columns with a role, without the ignored ones."""
        single = (self.vector, self.key_column, self.source_column, self.weight_column)
        several = (*self.text, *self.label, *self.category, *self.number, *self.date)
        return (*several, *(name for name in single if name is not None))


PUBLIC = tuple(name for name in ReadOptions.__struct_fields__ if name not in ("flags", "is_resolved"))
DIALECT = PUBLIC[: PUBLIC.index("encoding") + 1]  # of files that have no instances, such as the names of labels

WITHOUT_OTHERS = ReadOptions(ignore=(ANY_FIELD,))  # columns and fields without a role are left out


def date_features(name: str, date: Any) -> dict[str, str]:
    """Return the features of a date: its weekday, month and day of the month."""
    parts = {"weekday": WEEKDAYS[date.weekday()], "month": str(date.month), "day": str(date.day)}
    return {f"{name} {part}": value for part, value in parts.items()}
