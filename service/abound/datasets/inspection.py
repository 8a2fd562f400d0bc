"""What the first rows of a file are read as, and what looks as if it was meant otherwise."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from typing import Any

import msgspec

from abound.datasets.detection import SAMPLE_ROWS, WITH_COLUMNS
from abound.datasets.files import COLUMNAR, read_file, resolve_file
from abound_core.errors import Malformed, TooLarge
from abound_core.instances.data_formats import DatasetInstance
from abound_core.instances.read_options import ANY_FIELD, ReadOptions
from abound_core.instances.tables import LABEL_COLUMNS, PANDAS_INDEX

INSPECTED_BYTES = 2**24
SHOWN = 3  # values of a column, and labels
LEAST_ROWS = 10  # of a warning about the values of a column
UNIQUE_SHARE = 0.9  # distinct values of near-unique strings
CODES_SHARE = 0.25  # most distinct values of whole numbers that may be codes
LEAST_CODE = 16  # smaller whole numbers are counts or grades
MARKS = frozenset(("0", "1", "-1", "2", "yes", "no", "y", "n", "true", "false", "t", "f", "x"))  # no names of labels
SEPARATORS = ";|,"
HTML_SHARE = 0.2  # of the texts

_HTML = re.compile(r"<(?:html|body|head|p|div|span|br|a|table|td|li|ul|img|style)\b[^>]*>", re.IGNORECASE)
_CODE = re.compile(r"""\[.*\]|\{.*\}|\(.*\)|\|.*\||["'].*["']""", re.DOTALL)
_DECIMAL_COMMA = re.compile(r"\D{0,4}\d[\d.]*,\d+\D{0,4}")


class ColumnReport(msgspec.Struct, frozen=True):
    name: str
    role: str
    kind: str
    values: tuple[str, ...]


class Inspection(msgspec.Struct, frozen=True, kw_only=True):
    """The report about a file. ``misread``: the warning that most rows would not be read as meant."""

    file: str
    options: ReadOptions
    rows: int
    columns: tuple[ColumnReport, ...]
    labels: tuple[str, ...]
    warnings: tuple[str, ...]
    misread: str | None


def inspect(name: str, options: ReadOptions, none: bool = False) -> Inspection:
    """Read the first rows of a file. Raises Malformed if its header or its end is wrong.

    With ``none`` it is no warning that there are no labels.
    """
    given, options = options, resolve_file(name, options)
    bad: list[Malformed] = []
    found: list[DatasetInstance] = []

    with suppress(TooLarge):
        bound = None if options.format in COLUMNAR else INSPECTED_BYTES
        found.extend(islice(read_file(name, None, bound, bad.append, options), SAMPLE_ROWS))
    labels = Counter(label for one in found for label in one.labels)
    columns = _columns(found, options) if options.format in WITH_COLUMNS else {}
    warnings = [*_of_columns(columns), *(_of_labels(labels) if labels or not none else ())]
    misread = None
    if coded := [label for label in labels.elements() if _CODE.fullmatch(label)]:
        warnings.append(
            f"labels look like lists or code, such as {coded[0]!r}; write JSON, or name a --label-separator"
        )
        misread = warnings[-1] if 2 * len(coded) > labels.total() else None
    if bad:
        n = len(found) + len(bad)
        warnings.append(f"{len(bad):,} of the first {n:,} rows cannot be read; the first: {bad[0]}")
        misread = warnings[-1] if 2 * len(bad) > n else misread
    if not given.encoding and options.encoding not in (None, "utf-8", "utf-16"):
        warnings.append(f"not UTF-8 but {options.encoding}, it seems; if letters look wrong, name the --encoding")
    if found and columns:
        seen = {*PANDAS_INDEX, *LABEL_COLUMNS, *options.roles, *options.ignore}
        seen |= {part for name, _ in columns for part in (name, name.removesuffix(" weekday"))}
        if ANY_FIELD not in options.ignore:
            warnings += [f"{name}: the column is empty" for name in found[0].fields if name not in seen]
    return Inspection(
        file=name,
        options=options,
        rows=len(found),
        columns=tuple(_report(name, role, values) for (name, role), values in columns.items()),
        labels=tuple(labels),
        warnings=tuple(warnings),
        misread=misread,
    )


def _columns(found: list[DatasetInstance], options: ReadOptions) -> dict[tuple[str, str], list[Any]]:
    """Return the values of the columns, by name and role. Absent values are left out."""
    values: dict[tuple[str, str], list[Any]] = defaultdict(list)
    roles = {name: role for role in ("category", "number", "date") for name in getattr(options, role)}
    roles |= {f"{name} {part}": "date" for name in options.date for part in ("weekday", "month", "day")}
    for one in found:
        texts = one.text if isinstance(one.text, dict) else {(*options.text, "text")[0]: one.text}
        for name, text in texts.items():
            if text:
                values[name, "text"].append(text)
        if one.labels:
            usual = next((name for name in LABEL_COLUMNS if name in one.fields), "labels")
            values["+".join(options.label) or usual, "label"].extend(one.labels)
        for name, value in (msgspec.json.decode(one.features) if one.features else {}).items():
            values[name, roles.get(name, "feature")].append(value)
        if one.vector is not None:
            values[options.vector or "vector", "vector"].append(one.vector)
    return values


def _report(name: str, role: str, values: list[Any]) -> ColumnReport:
    kinds = {bool: "true or false", float: "number", int: "number", str: "string", list: "list"}
    kind = " or ".join(dict.fromkeys(kinds.get(type(value), "vector") for value in values))
    shown = dict.fromkeys(f"{value:g}" if isinstance(value, float) else str(value) for value in values[:1000])
    return ColumnReport(name, role, kind, tuple(shown)[:SHOWN])


def _of_columns(columns: dict[tuple[str, str], list[Any]]) -> Iterator[str]:
    for (name, role), values in columns.items():
        strings = [value for value in values if isinstance(value, str)]
        n = len(values)
        if role == "text" and sum(map(bool, map(_HTML.search, strings))) > HTML_SHARE * n:
            yield f"{name}: the texts look like HTML; remove the markup, or set analyzer.html=true for the model"
        if negative := sum(type(value) in (int, float) and value < 0 for value in values):
            yield f"{name}: {negative} of {n} numbers are negative; only a model with negative=split learns them"
        if role not in ("feature", "number") or n < LEAST_ROWS:
            continue
        numbers = [value for value in values if type(value) in (int, float) and value == int(value)]
        if 2 * sum(map(bool, map(_DECIMAL_COMMA.fullmatch, strings))) >= n:
            yield f"{name}: strings that look like numbers with decimal commas; --decimal , --number {name} reads them"
        elif len(strings) == n and len({*strings}) >= UNIQUE_SHARE * n:
            yield f"{name}: {len({*strings})} of {n} values differ; if it is text, --text {name}, else --ignore {name}"
        elif len(numbers) == n and numbers == sorted({*numbers}):
            yield f"{name}: every value is larger than the one before; if it is an identifier, --ignore {name}"
        elif len(numbers) == n and 2 < len({*numbers}) <= CODES_SHARE * n and max(numbers) > LEAST_CODE:
            yield f"{name}: {len({*numbers})} whole numbers in {n} rows; if they are codes, --category {name}"


def _of_labels(labels: Counter[str]) -> Iterator[str]:
    if not labels:
        yield "there are no labels; name their column or field with --label"
        return
    if {label.casefold() for label in labels} <= MARKS:
        yield (
            f"the labels are only {' and '.join(labels)}; if several columns are labels, name each of them, as "
            "--label a --label b: those of 0 and 1, or true and false, are labels by their name"
        )
    for sign in SEPARATORS:
        if 2 * sum(n for label, n in labels.items() if sign in label.strip(sign)) > labels.total():
            yield f"most labels have {sign!r} in them; if it separates several, --label-separator {sign!r}"
    alike: dict[str, list[str]] = defaultdict(list)
    for label in labels:
        alike[unicodedata.normalize("NFKC", re.sub(r"[\s\u200b-\u200d\ufeff]+", "", label)).casefold()].append(label)
    for same in islice((same for same in alike.values() if len(same) > 1), SHOWN):
        yield f"labels differ in case, spaces or Unicode form only: {', '.join(map(repr, same[:SHOWN]))}"
