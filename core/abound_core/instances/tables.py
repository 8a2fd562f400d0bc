"""Tables: rows with named columns as instances.

``ReadOptions`` gives columns their roles. Every other column is a feature.

The cells of CSV are strings. Where the column is a feature, a cell that looks like a number is one, and ``true`` and
``false`` are booleans, as pandas and others write them. Numbers with separators and dates are read in columns that hold
nothing else; ``resolve_columns`` finds these. The rows of Parquet and Arrow have types, and come as record batches of
pyarrow, which this module does not import.
"""

from __future__ import annotations

import csv
import math
import re
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from decimal import Decimal
from functools import lru_cache, partial
from itertools import chain, islice
from typing import Any

import msgspec
import numpy as np

from abound_core.errors import Malformed, WrongOption
from abound_core.instances.data_formats import OWN_FIELDS, DatasetInstance, at_line, raise_error, with_own_fields
from abound_core.instances.encoded_vector import Numbers
from abound_core.instances.names import label_text
from abound_core.instances.read_options import ANY_FIELD, NO_QUOTE, ReadOptions, date_features

LABEL_COLUMNS = ("labels", "label")  # names that the column has by default; the first one that exists counts

PANDAS_INDEX = ("", "__index_level_0__")  # its names in CSV and in Parquet

MAX_CELL = 16 * 2**20  # characters, which may span lines; a quote that is never closed ends here

ROWS_AT_ONCE = 1024  # rows of a record batch that are Python values at a time

SHOWN_COLUMNS = 20  # columns that an error lists

_NUMBER = re.compile(r"-?(?:0|[1-9]\d{0,17})(?:\.\d+)?(?:[eE][-+]?\d{1,3})?")  # as in JSON; ``007`` is a string

_UNIT = r"(?:[$€£¥₹₽%]|EUR|USD|GBP|CHF|SEK|NOK|DKK|PLN|CZK|HUF|INR|kr\.?|zł|Kč|Ft)"
_THOUSANDS = r"(?:[{0}'\u2019\u00a0\u202f ]\d{{3}})+"
_SEPARATED = {  # by decimal sign: a bracket, the sign, the whole number, the fraction, a minus after it
    sign: re.compile(
        rf"(\()?(?:{_UNIT}\s?)?([-+\u2212]?)(?:{_UNIT}\s?)?"
        rf"([1-9]\d{{0,2}}{thousands}|\d+)(?:{re.escape(sign)}(\d+))?\s?{_UNIT}?([-\u2212]?)\)?"
    )
    for sign, thousands in ((",", _THOUSANDS.format(".")), (".", rf"(?:{_THOUSANDS.format(',')}|(?:,\d\d)+,\d{{3}})"))
}
NUMBER_SHARE = 0.9  # of the cells of a column that is one of numbers with separators

ISO_DATE = "%Y-%m-%d"
DATE_FORMATS = (
    ISO_DATE, "%d.%m.%Y", "%d/%m/%Y", "%m/%d/%Y", "%d-%m-%Y", "%m-%d-%Y", "%Y/%m/%d", "%Y.%m.%d", "%d.%m.%y",
    "%d/%m/%y", "%m/%d/%y", "%d %b %Y", "%d-%b-%Y", "%d. %b %Y", "%b %d %Y", "%b %d, %Y",
)  # fmt: skip  # the first that all dates have counts
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_DATE_PARTS = {
    "%Y": r"(?P<y>\d{4})", "%y": r"(?P<y>\d\d)", "%m": r"(?P<m>\d\d?)", "%d": r"(?P<d>\d\d?)",
    "%b": r"(?P<m>[A-Za-z]{3})[a-z]*\.?",
}  # fmt: skip
_TIME = r"(?:[T ,]+\d\d?:\d\d[\d:.,]*\s?(?:[AaPp][Mm])?\s?(?:Z|UTC|GMT|[-+]\d\d(?::?\d\d)?)?)?"

ABSENT = dict.fromkeys(("", "nan", "NaN", "null", "NULL", "None"))  # as programs write no value; NA is Namibia
_CODE = re.compile(r"-?0\d")
_BOOLEANS = {written: word == "true" for word in ("true", "false") for written in (word, word.title(), word.upper())}
_WORDS: dict[str, bool | None] = {**_BOOLEANS, **ABSENT}
_FLAGS: dict[str, bool | None] = {**_WORDS, "1": True, "0": False, "1.0": True, "0.0": False}

_LIST = re.compile(r"""\[\s*(?:["'].*["']\s*)?\]""", re.DOTALL)  # of strings, as JSON or as Python writes it
_URI = re.compile(r"<(\w+:[^<>\s]+)>")


class TableReader:
    """Makes instances of the rows of a table.

    ``typed``: cells have types; otherwise all of them are strings. ``optional``: columns with a role may be missing.
    Raises Malformed if one does not exist, or if two columns that are not ignored have the same name.
    """

    def __init__(self, names: Sequence[str], options: ReadOptions, *, typed: bool, optional: bool = False) -> None:
        for name in () if optional else (*options.roles, *options.ignore):
            if name != ANY_FIELD and name not in names:
                shown = ", ".join(map(repr, names[:SHOWN_COLUMNS]))
                raise Malformed(f"there is no column {name!r}; the columns are {shown}")
        self.names, self._separator, self._date_format = tuple(names), options.label_separator, options.date_format
        self._absent: Collection[str] = ("",) if typed else ABSENT
        usual_label = next(((name,) for name in LABEL_COLUMNS if name in names), ())

        def places(*given: str | None) -> list[int]:
            return [names.index(name) for name in given if name is not None and name in names]

        self._text = places(*(options.text or ("text",)))
        self._labels = [(i, names[i] in options.flags) for i in places(*(options.label or usual_label))]
        self._vector = next(iter(places(options.vector or "vector")), None)
        event = {"key": options.key_column, "source": options.source_column, "weight": options.weight_column}
        self._event = [(field, i) for field, name in event.items() for i in places(name)]
        used = {*self._text, *(i for i, _ in self._labels), self._vector, *(i for _, i in self._event)}
        left_out = {*PANDAS_INDEX, *options.ignore}
        if ANY_FIELD in options.ignore:
            left_out |= {*names} - {*options.roles}
        features = [(i, name) for i, name in enumerate(names) if i not in used and name not in left_out]
        read = [names[i] for i in used if i is not None] + [name for _, name in features]
        if len(set(read)) < len(read):
            repeated = next(name for name in names if read.count(name) > 1)
            raise Malformed(f"two columns have the name {repeated!r}; rename one, or ignore them")
        readers: dict[str, Callable[[str, Any], Any]] = dict.fromkeys(options.category, self._category)
        readers |= dict.fromkeys(options.number, partial(_separated, _SEPARATED[options.decimal or "."]))
        usual: Callable[[str, Any], Any] = feature_value if typed else _parsed_feature
        self._dates = [(i, name) for i, name in features if name in options.date]
        self._features = [(i, name, readers.get(name, usual)) for i, name in features if name not in options.date]

    def instance(self, cells: Sequence[Any], file: str = "", line: int = 0) -> DatasetInstance:
        """Return the instance of a row. Raises Malformed if the row has another length or a cell has a wrong type."""
        names = self.names
        if len(cells) != len(names):
            raise Malformed(f"the row has {len(cells)} cells, the header has {len(names)}")
        features = {name: value for i, name, read in self._features if (value := read(name, cells[i])) is not None}
        for i, name in self._dates:
            features |= _date_value(name, cells[i], self._date_format or ISO_DATE)
        labels: list[str] = []
        for i, is_flag in self._labels:
            labels += self._labels_of(names[i], cells[i], is_flag)
        vector = None if self._vector is None else _vector(names[self._vector], cells[self._vector])
        texts = {names[i]: _string(names[i], cells[i]) for i in self._text if cells[i]}
        text = texts if len(self._text) > 1 else "".join(texts.values()) if self._text else None
        instance = DatasetInstance(
            labels=tuple(labels),
            text=text,
            features=msgspec.json.encode(features) if features or (text is None and vector is None) else None,
            vector=vector,
            file=file,
            line=line,
            fields=names,
        )
        if not self._event:
            return instance
        event = {field: _event_value(field, cells[i]) for field, i in self._event if not _is_absent(cells[i])}
        return msgspec.structs.replace(instance, **event)

    def _labels_of(self, name: str, cell: Any, is_flag: bool) -> list[str]:
        if is_flag:
            if str(cell) not in _FLAGS:
                raise Malformed(f"{name}: a label by its name has 0 or 1, or true or false, not {cell!r}")
            return [name] if _FLAGS[str(cell)] else []
        if isinstance(cell, str) and self._separator is not None:
            cell = cell.split(self._separator)
        elif isinstance(cell, str) and "[" in cell:
            cell = _listed_labels(cell)
        return [
            label for one in (cell if isinstance(cell, list) else (cell,)) if (label := _label(one)) not in self._absent
        ]

    def _category(self, name: str, cell: Any) -> str | list[str] | None:
        value = feature_value(name, cell)
        if value is None or isinstance(value, list):
            return value
        return None if (text := label_text(value).strip()) in self._absent else text


def resolve_columns(names: Sequence[str], rows: Iterable[Sequence[Any]], options: ReadOptions) -> ReadOptions:
    """Return the options with what the first rows of CSV tell of the columns: labels by their name, numbers with
    separators and their decimal sign, dates and their format, and codes, which have zeros in front."""
    columns = {
        name: [cell for cell in cells if not _is_absent(cell)]
        for name, cells in zip(names, zip(*rows, strict=True), strict=False)
    }
    fixed = {*options.roles, *options.ignore, *LABEL_COLUMNS, "text", "vector"}
    others = () if ANY_FIELD in options.ignore else columns
    free = {name: columns[name] for name in others if name not in fixed and columns[name]}

    def dates_of(form: str) -> list[str]:
        return [name for name, cells in free.items() if all(_parsed_date(cell, form) for cell in cells)]

    free |= {name: columns[name] for name in options.date if columns.get(name)}
    form = options.date_format or max(DATE_FORMATS, key=lambda form: len(dates_of(form)))
    dates = dict.fromkeys([*options.date, *dates_of(form), *dates_of(ISO_DATE)])
    free = {name: cells for name, cells in free.items() if name not in dates}
    codes = [name for name, cells in free.items() if all(map(str.isdigit, cells)) and any(map(_CODE.match, cells))]

    def matching(sign: str) -> set[str]:
        return {
            name
            for name, cells in free.items()
            if any(map(_SEPARATED[sign].fullmatch, cells[:20]))
            and sum(map(bool, map(_SEPARATED[sign].fullmatch, cells))) >= NUMBER_SHARE * len(cells)
            and not any(map(_CODE.match, cells))
        }

    plain = {name for name, cells in free.items() if all(map(_NUMBER.fullmatch, cells))}
    whole = {name for name in plain if all(re.fullmatch(r"-?\d+", cell) for cell in free[name])}
    comma, point = matching(",") - whole, matching(".") - plain
    decimal = options.decimal or ("," if comma - point - plain or (options.delimiter == ";" and comma - plain) else ".")
    found = comma if decimal == "," else point
    return msgspec.structs.replace(
        options,
        flags=flags_of(columns, options),
        decimal=decimal,
        number=(*options.number, *(name for name in free if name in found)),
        category=(*options.category, *codes),
        date=tuple(dates),
        date_format=options.date_format or (form if dates else None),
    )


def flags_of(columns: Mapping[str, Iterable[Any]], options: ReadOptions) -> tuple[str, ...]:
    """Return the columns, of several of labels, that are labels by their name."""
    if len(options.label) < 2:
        return ()
    return tuple(name for name in options.label if {str(cell) for cell in columns.get(name, ())} <= {*_FLAGS})


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
    if cell[:1] not in "-0123456789" or not _NUMBER.fullmatch(cell):
        return _WORDS.get(cell, cell)
    number = float(cell)
    return number if -math.inf < number < math.inf else feature_value(name, number)


def _separated(pattern: re.Pattern[str], name: str, cell: Any) -> float | bool | str | list[str] | None:
    if not isinstance(cell, str) or (found := pattern.fullmatch(cell.strip())) is None:
        return _parsed_feature(name, cell) if isinstance(cell, str) else feature_value(name, cell)
    bracket, sign, whole, fraction, after = found.groups()
    number = float(f"{re.sub('[^0-9]', '', whole)}.{fraction or 0}")
    return feature_value(name, -number if bracket or after or sign in ("-", "\u2212") else number)


@lru_cache
def _date_pattern(date_format: str) -> re.Pattern[str]:
    return re.compile(re.sub("%.", lambda part: _DATE_PARTS.get(part[0], r"\d+"), re.escape(date_format)) + _TIME)


@lru_cache(2**14)  # dates repeat
def _parsed_date(cell: str, date_format: str) -> Any:
    """Return a date of datetime, or None."""
    found = _date_pattern(date_format).fullmatch(cell.strip())
    if found is None or len(found.groupdict()) != 3:
        return None
    year, month, day = found["y"], found["m"].lower(), found["d"]
    year = year if len(year) == 4 else f"20{year}"
    month = str(_MONTHS.index(month) + 1) if month in _MONTHS else month
    try:
        return np.datetime64(f"{year}-{month:0>2}-{day:0>2}").item()
    except ValueError:
        return None


def _date_value(name: str, cell: Any, date_format: str) -> dict[str, Any]:
    """Return the features of a date. A cell that is none is a feature as it is."""
    date = None if _is_absent(cell) else cell
    if isinstance(date, str):
        date = _parsed_date(date, date_format) or _parsed_date(date, ISO_DATE)
    if hasattr(date, "weekday"):
        return date_features(name, date)
    value = _parsed_feature(name, cell) if isinstance(cell, str) else feature_value(name, cell)
    return {} if value is None else {name: value}


def _is_absent(cell: Any) -> bool:
    return cell is None or (cell in ABSENT if isinstance(cell, str) else isinstance(cell, float) and math.isnan(cell))


def _event_value(field: str, cell: Any) -> str | float:
    if field != "weight":
        return _label(cell)
    try:
        return float(cell)
    except (TypeError, ValueError):
        raise Malformed(f"the weight {cell!r} is no number") from None


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
    if isinstance(cell, str):
        return without_brackets(cell.strip())
    if _is_absent(cell):
        return ""
    if isinstance(cell, int) or (isinstance(cell, float) and cell.is_integer()):  # pandas: integers with missing ones
        return label_text(cell)
    raise Malformed(f"labels must be strings or whole numbers, not {type(cell).__name__} {cell!r}")


def without_brackets(label: str) -> str:
    """Return the URI of a label that is one in angle brackets, as Turtle and Annif write it; else the label."""
    found = _URI.fullmatch(label) if label[:1] == "<" else None
    return found[1] if found else label


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
    """Iterates over the rows of a CSV or TSV file, as lists of cells.

    ``next`` raises Malformed for an invalid row; then the next one is that of the line after it. ``line`` is the first
    line of the last row.
    """

    def __init__(self, lines: Iterator[str], options: ReadOptions) -> None:
        csv.field_size_limit(MAX_CELL)
        self._format: dict[str, Any] = {"delimiter": options.delimiter or ",", "strict": True}
        if options.quote == NO_QUOTE:
            self._format["quoting"] = csv.QUOTE_NONE
        else:
            self._format["quotechar"] = options.quote or '"'
        self._encoding = options.encoding or "UTF-8"
        self._lines, self._again = lines, deque[str]()
        self._record = list(islice(lines, options.skip_rows or 0))  # of the last row
        self._before = self.line = 0
        self._rows = csv.reader(self._fed(), **self._format)

    def __iter__(self) -> CsvRows:
        return self

    def __next__(self) -> list[str]:
        self._before += len(self._record)
        self._record.clear()
        self.line = self._before + 1
        try:
            return next(self._rows)
        except csv.Error as error:
            self.resume()
            if "quotechar" not in self._format:
                raise Malformed(f"not a row of CSV: {error}") from error
            hint = "if quotes are part of the text, set quote to none, else close them"
            raise WrongOption(f"not a row of CSV: {error}; {hint}") from error
        except UnicodeEncodeError as error:
            self.resume()
            raise WrongOption(f"not {self._encoding}; name the encoding of the file, such as cp1252") from error

    def resume(self) -> None:
        """Go on at the second line of the last row: a quote that was not closed has taken the lines after it."""
        self._again.extendleft(reversed(self._record[1:]))
        del self._record[1:]
        self._rows = csv.reader(self._fed(), **self._format)

    def _fed(self) -> Iterator[str]:
        again, record = self._again, self._record
        for line in chain(iter(lambda: again.popleft() if again else None, None), self._lines):
            record.append(line)
            if not line.isascii():
                line.encode()  # raises an error for what could not be decoded
            yield line


def read_csv(
    lines: Iterator[str],
    options: ReadOptions,
    file: str = "",
    on_bad: Callable[[Malformed], None] = raise_error,
) -> Iterator[DatasetInstance]:
    """Yield the rows of a CSV or TSV file, which ``CsvRows`` reads.

    ``on_bad`` is called with the error of each invalid row, which is then skipped. Raises Malformed if the header is
    invalid.
    """
    rows = CsvRows(lines, options)
    reader: TableReader | None = None
    while True:
        cells = None
        try:
            if (cells := next(rows, None)) is None:
                return
            if reader is None and cells:
                reader = TableReader(column_names(cells, options), options, typed=False)
                if options.header is not False:
                    continue
            if reader is not None and cells:
                yield reader.instance(cells, file, rows.line)
        except Malformed as error:
            bad = at_line(file, rows.line, error)
            if reader is None:
                raise bad from error
            if cells is not None and len(cells) != len(reader.names):
                rows.resume()
            on_bad(bad)


def column_names(first: Sequence[str], options: ReadOptions) -> list[str]:
    """Return the names of the columns by the first row of a table."""
    return [str(at) if options.header is False else name.strip() for at, name in enumerate(first, start=1)]


def read_batches(
    batches: Iterable[Any],
    options: ReadOptions,
    file: str = "",
    on_bad: Callable[[Malformed], None] = raise_error,
) -> Iterator[DatasetInstance]:
    """Yield the rows of record batches of pyarrow; the number of a row, from 1, counts as its line.

    ``on_bad`` is called with the error of each invalid row, which is then skipped. Raises Malformed if a column is
    missing or has a type that Python does not have.
    """
    number = 0
    for batch in batches:
        if not number and len(options.label) > 1:
            columns = {name: batch.column(name).to_pylist() for name in options.label if name in batch.schema.names}
            options = msgspec.structs.replace(options, flags=flags_of(columns, options))
        try:
            reader = TableReader(batch.schema.names, _by_type(batch.schema, options), typed=True)
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


def _by_type(schema: Any, options: ReadOptions) -> ReadOptions:
    """Return the options with the columns that have the types of categories and dates."""
    taken = {*options.roles, *(schema.names if ANY_FIELD in options.ignore else ())}
    types = {one.name: str(one.type) for one in schema if one.name not in taken}
    by_pandas = (schema.pandas_metadata or {}).get("columns", ())  # Parquet keeps no categories that are integers
    types |= {
        one["name"]: "dictionary" for one in by_pandas if one["pandas_type"] == "categorical" and one["name"] in types
    }
    return msgspec.structs.replace(
        options,
        category=(*options.category, *(name for name, kind in types.items() if kind.startswith("dictionary"))),
        date=(*options.date, *(name for name, kind in types.items() if kind.startswith(("date", "timestamp")))),
    )


def read_records(
    lines: Iterable[bytes | Mapping[str, Any]],
    options: ReadOptions,
    file: str = "",
    on_bad: Callable[[Malformed], None] = raise_error,
) -> Iterator[DatasetInstance]:
    """Yield JSON lines, or rows as mappings, whose fields have roles, as those of a table. Fields may be missing.

    ``features``, ``rejected``, ``ignored``, ``weight``, ``key`` and ``source`` are as in lines without roles.
    """
    numbered = iter(enumerate(lines, start=1))
    head: list[tuple[int, Any]] = []
    if len(options.label) > 1:
        head = list(islice(numbered, ROWS_AT_ONCE))
        columns: dict[str, list[Any]] = {name: [] for name in options.label}
        for _, line in head:
            with suppress(Malformed):
                row = record_of(line)
                for name in columns.keys() & row.keys():
                    columns[name].append(row[name])
        options = msgspec.structs.replace(options, flags=flags_of(columns, options))

    @lru_cache(64)
    def reader_of(names: tuple[str, ...], dates: tuple[str, ...]) -> TableReader:
        typed = msgspec.structs.replace(options, date=(*options.date, *dates))
        return TableReader(names, typed, typed=True, optional=True)

    native = {*OWN_FIELDS} - {*options.roles, *options.ignore}
    for number, line in chain(head, numbered):
        if isinstance(line, bytes) and not line.strip():
            continue
        try:
            row = record_of(line)
            own = {name: row.pop(name) for name in native if row.get(name) is not None}
            dates = tuple(name for name, value in row.items() if hasattr(value, "weekday"))
            instance = reader_of(tuple(row), dates).instance(list(row.values()), file, number)
            if own:
                instance = with_own_fields(instance, own)
        except (Malformed, msgspec.MsgspecError) as error:
            on_bad(at_line(file, number, error))
            continue
        yield instance


def record_of(row: bytes | Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a JSON line, or a row without the types of NumPy and pandas. Raises Malformed."""
    if isinstance(row, bytes):
        try:
            return msgspec.json.decode(row, type=dict[str, Any])
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise Malformed(f"not an object in JSON: {error}") from error
    plain = {name: cell.tolist() if hasattr(cell, "tolist") else cell for name, cell in row.items()}
    return {name: None if type(cell).__name__ in ("NAType", "NaTType") else cell for name, cell in plain.items()}
