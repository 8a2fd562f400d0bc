"""Tables: rows with named columns as instances.

One or more columns hold the text, one the labels, one a dense vector, and every other column is a feature with the name
of the column. Columns that hold the index of pandas are left out.

The cells of CSV are strings. Where the column is a feature, a cell that looks like a number is one, and ``true`` and
``false`` are booleans, as pandas and others write them. The rows of Parquet and Arrow have types, and come as record
batches of pyarrow, which this module does not import.
"""

from __future__ import annotations

import codecs
import csv
import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from decimal import Decimal
from itertools import chain
from typing import Any, Self

import msgspec

from abound_core.errors import Malformed
from abound_core.instances.data_formats import ANY_FIELD, DatasetInstance, at_line, raise_error
from abound_core.instances.encoded_vector import Numbers

LABEL_COLUMNS = ("labels", "label")  # names that the column has by default; the first one that exists counts

PANDAS_INDEX = ("", "__index_level_0__")  # its names in CSV and in Parquet

MAX_ROW_BYTES = 16 * 2**20  # of CSV, which may span lines; a quote that is never closed ends here

ROWS_AT_ONCE = 1024  # rows of a record batch that are Python values at a time

SHOWN_COLUMNS = 20  # columns that an error lists

_NUMBER = re.compile(r"-?(?:0|[1-9]\d{0,17})(?:\.\d+)?(?:[eE][-+]?\d{1,3})?")  # as in JSON; ``007`` is a string


_BOOLEANS = {written: word == "true" for word in ("true", "false") for written in (word, word.title(), word.upper())}

_LIST = re.compile(r"""\[\s*(?:(["']).*\1\s*)?\]""", re.DOTALL)  # of strings, as JSON or as Python writes it


class TableColumns(msgspec.Struct, frozen=True, kw_only=True):
    """The roles of the columns of a table. A column without a role is a feature.

    Attributes
    ----------
    text : tuple of str
        Columns with the text; several are its fields, with their names. Default: the column ``text`` if there is one.
    label : str or None
        Column of the labels. Default: ``labels`` or ``label`` if there is one.
    label_separator : str or None
        Separates the labels of a string. Default: a string is one label.
    vector : str or None
        Column of the dense vectors, as lists of numbers. Default: the column ``vector`` if there is one.
    ignore : tuple of str
        Columns that are left out; ``*`` is every column without a role. Of JSON lines too: unknown fields.
    """

    text: tuple[str, ...] = ()
    label: str | None = None
    label_separator: str | None = None
    vector: str | None = None
    ignore: tuple[str, ...] = ()


WITHOUT_OTHERS = TableColumns(ignore=(ANY_FIELD,))  # columns and fields without a role are left out


class TableReader:
    """Makes instances of the rows of a table.

    ``typed``: cells have types; otherwise all of them are strings. Raises Malformed if a column of ``columns`` does not
    exist, or two have the same name.
    """

    def __init__(self, names: Sequence[str], columns: TableColumns, *, typed: bool) -> None:
        self._names = tuple(names)
        self._feature = feature_value if typed else _parsed_feature
        if len(set(names)) < len(names):
            repeated = next(name for name in names if names.count(name) > 1)
            raise Malformed(f"two columns have the name {repeated!r}")
        for name in (*columns.text, columns.label, columns.vector, *columns.ignore):
            if name not in (None, ANY_FIELD) and name not in names:
                shown = ", ".join(map(repr, names[:SHOWN_COLUMNS]))
                raise Malformed(f"there is no column {name!r}; the columns are {shown}")
        self._text = [names.index(name) for name in columns.text or ("text",) if name in names]
        self._label = self._first(columns.label, *LABEL_COLUMNS)
        self._vector = self._first(columns.vector, "vector")
        self._separator = columns.label_separator
        others = {
            *self._text,
            self._label,
            self._vector,
            *(i for i, name in enumerate(names) if name in columns.ignore),
        }
        given = () if ANY_FIELD in columns.ignore else enumerate(names)
        self._features = [(i, name) for i, name in given if i not in others and name not in PANDAS_INDEX]

    def _first(self, *names: str | None) -> int | None:
        return next((self._names.index(name) for name in names if name in self._names), None)

    def instance(self, cells: Sequence[Any], file: str = "", line: int = 0) -> DatasetInstance:
        """Return the instance of a row. Raises Malformed if the row has another length or a cell has a wrong type."""
        if len(cells) != len(self._names):
            raise Malformed(f"the row has {len(cells)} cells, the header has {len(self._names)}")
        features = {name: value for i, name in self._features if (value := self._feature(name, cells[i])) is not None}
        labels = () if self._label is None else self._labels(cells[self._label])
        vector = None if self._vector is None else _vector(self._names[self._vector], cells[self._vector])
        texts = {self._names[i]: _string(self._names[i], cells[i]) for i in self._text if cells[i]}
        text = texts if len(self._text) > 1 else "".join(texts.values()) if self._text else None
        return DatasetInstance(
            labels=labels,
            text=text,
            features=msgspec.json.encode(features) if features or (text is None and vector is None) else None,
            vector=vector,
            file=file,
            line=line,
            fields=() if labels else self._names,
        )

    def _labels(self, cell: Any) -> tuple[str, ...]:
        if isinstance(cell, str):
            cell = _listed_labels(cell) if self._separator is None else cell.split(self._separator)
        given = (_label(one) for one in (cell if isinstance(cell, list) else [cell]))
        return tuple(label for label in given if label)


def feature_value(name: str, cell: Any) -> float | bool | str | list[str] | None:
    """Return the value of a feature, or None for an empty cell. Raises Malformed for a value that is no feature."""
    if cell is None or cell == "":
        return None
    if isinstance(cell, (bool, int, str)):
        return cell
    if isinstance(cell, (float, Decimal)):
        number = float(cell)
        if math.isinf(number):
            raise Malformed(f"{name}: a number must be finite and below 1.8e308")
        return None if math.isnan(number) else number
    if isinstance(cell, list) and all(isinstance(one, str) for one in cell):
        return cell
    if hasattr(cell, "isoformat"):
        return str(cell.isoformat())
    kind = "a list with values that are not strings" if isinstance(cell, list) else f"a {type(cell).__name__}"
    raise Malformed(f"{name}: {kind} is no feature; ignore the column, or name it as vector")


def _parsed_feature(name: str, cell: str) -> float | bool | str | list[str] | None:
    return feature_value(name, float(cell)) if _NUMBER.fullmatch(cell) else _BOOLEANS.get(cell, cell or None)


def _listed_labels(cell: str) -> str | list[str]:
    """Return the labels of a cell with a list in JSON, else the cell. Raises Malformed for a list of Python."""
    if not _LIST.fullmatch(cell.strip()):
        return cell
    try:
        return msgspec.json.decode(cell, type=list[str])
    except msgspec.MsgspecError:
        raise Malformed(
            f'the labels {cell[:64]!r} look like a list: write JSON, as in \'["grain", "wheat"]\', or join them and '
            "name what separates them"
        ) from None


def _label(cell: Any) -> str:
    if isinstance(cell, float):
        if math.isnan(cell):
            return ""
        cell = int(cell) if cell.is_integer() else cell  # pandas stores integers with missing ones as floats
    if cell is None or isinstance(cell, (str, int)):
        return "" if cell is None else str(cell).strip()
    raise Malformed(f"labels must be strings or whole numbers, not {type(cell).__name__} {cell!r}")


def _vector(name: str, cell: Any) -> list[float] | None:
    if cell is None or cell == "":
        return None
    try:
        numbers = msgspec.json.decode(cell, type=Numbers) if isinstance(cell, str) else msgspec.convert(cell, Numbers)
    except msgspec.MsgspecError as error:
        raise Malformed(f"{name}: not a list of numbers: {str(error).replace('`$', f'`{name}')}") from error
    if not all(map(math.isfinite, numbers)):
        at = next(at for at, number in enumerate(numbers) if not math.isfinite(number))
        raise Malformed(f"{name}: not a list of finite numbers: got `{numbers[at]}` - at `{name}[{at}]`")
    return numbers


def _string(name: str, cell: Any) -> str:
    if not isinstance(cell, str):
        raise Malformed(f"{name}: a text must be a string, not {type(cell).__name__}")
    return cell


class CsvRows:
    """Iterates over the rows of a CSV or TSV file in UTF-8, as lists of cells.

    Cells are separated by tabs, else by commas, or by semicolons if the first line has no comma. Quotes are those of
    RFC 4180. ``next`` raises Malformed for an invalid row. The rows after it can still be read, unless ``size`` is over
    ``MAX_ROW_BYTES``.
    """

    def __init__(self, lines: Iterable[bytes], *, tabs: bool = False) -> None:
        csv.field_size_limit(MAX_ROW_BYTES)
        lines = iter(lines)
        header = next(lines, b"").removeprefix(codecs.BOM_UTF8)
        separator = "\t" if tabs else ";" if b";" in header and b"," not in header else ","
        self.line = self.size = 0
        self._rows = csv.reader(self._decoded(chain([header], lines)), delimiter=separator, strict=True)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> list[str]:
        self.line, self.size = self._rows.line_num + 1, 0
        try:
            cells = next(self._rows)
            "".join(cells).encode()
        except csv.Error as error:
            raise Malformed(f"not a row of CSV: {error}") from error
        except UnicodeEncodeError as error:
            raise Malformed("not UTF-8") from error
        return cells

    def _decoded(self, lines: Iterable[bytes]) -> Iterator[str]:
        for line in lines:
            self.size += len(line)
            if self.size > MAX_ROW_BYTES:
                raise Malformed(f"the row has over {MAX_ROW_BYTES} bytes; is a quote not closed?")
            yield line.decode(errors="surrogateescape")


def read_csv(
    lines: Iterable[bytes],
    columns: TableColumns,
    file: str = "",
    on_bad: Callable[[Malformed], None] = raise_error,
    *,
    tabs: bool = False,
) -> Iterator[DatasetInstance]:
    """Yield the rows of a CSV or TSV file with a header, which ``CsvRows`` reads.

    ``on_bad`` is called with the error of each invalid row, which is then skipped. Raises Malformed with the first line
    of the row if the header is invalid, or a row has over ``MAX_ROW_BYTES``.
    """
    rows = CsvRows(lines, tabs=tabs)
    reader: TableReader | None = None
    while True:
        try:
            cells = next(rows, None)
            if cells is None:
                return
            if reader is None:
                reader = TableReader(cells, columns, typed=False)
                continue
            instance = reader.instance(cells, file, rows.line) if cells else None
        except Malformed as error:
            bad = at_line(file, rows.line, error)
            if reader is None or rows.size > MAX_ROW_BYTES:
                raise bad from error
            on_bad(bad)
            continue
        if instance is not None:
            yield instance


def read_batches(
    batches: Iterable[Any],
    columns: TableColumns,
    file: str = "",
    on_bad: Callable[[Malformed], None] = raise_error,
) -> Iterator[DatasetInstance]:
    """Yield the rows of record batches of pyarrow; the number of a row, from 1, counts as its line.

    ``on_bad`` is called with the error of each invalid row, which is then skipped. Raises Malformed if a column is
    missing or has a type that Python does not have.
    """
    number = 0
    for batch in batches:
        try:
            reader = TableReader(batch.schema.names, columns, typed=True)
        except Malformed as error:
            raise at_line(file, 0, error) from error
        for start in range(0, batch.num_rows, ROWS_AT_ONCE):
            part = batch.slice(start, ROWS_AT_ONCE)
            try:
                cells = [column.to_pylist() for column in part.columns]
            except ValueError as error:  # a time with nanoseconds, which datetime does not have
                raise at_line(file, number + 1, error) from error
            for row in zip(*cells, strict=True):
                number += 1
                try:
                    instance = reader.instance(row, file, number)
                except Malformed as error:
                    on_bad(at_line(file, number, error))
                    continue
                yield instance
