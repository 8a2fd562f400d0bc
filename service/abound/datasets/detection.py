"""What the first lines of a file tell: its encoding, its format, and the dialect and columns of a table.

charset-normalizer finds the encoding. The delimiter is the one that splits most rows into the same number of cells.
Nothing that the options say is guessed.
"""

from __future__ import annotations

import codecs
import csv
import io
import re
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from itertools import chain, islice
from math import sqrt
from typing import Any, get_args

from msgspec.structs import replace

from abound_core.errors import Malformed
from abound_core.instances.data_formats import FASTTEXT_LABEL
from abound_core.instances.read_options import NO_QUOTE, Format, ReadOptions
from abound_core.instances.tables import LABEL_COLUMNS, NUMBER_SHARE, CsvRows, column_names, resolve_columns

SAMPLE_BYTES = 2**18
SAMPLE_ROWS = 2000
SNIFFED = 2**16  # characters that tell the dialect
DELIMITERS = ",;|\t"  # each is rarer in texts and numbers than the one before
LONG_NAME = 50  # characters; what is longer names no column
WITH_COLUMNS = ("jsonl", "json", "csv", "tsv", "parquet", "arrow")

BOMS = {codecs.BOM_UTF8: "utf-8", codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16"}
ENCODINGS = [
    "utf_16_le", "utf_16_be", "cp1252", "cp1250", "cp1251", "cp1253", "cp1254", "cp1255", "cp1256", "iso8859_2",
    "cp932", "gb18030", "euc_kr", "big5", "koi8_r",
]  # fmt: skip
LATIN = ("cp1252", "cp1254", "cp1250", "iso8859_2")  # the first is the likeliest
_SYMBOL = r"[^\s!-~A-Za-zÀ-ɏ«»‘-„–—…€£§°]"
_SYMBOL_AT_A_LETTER = re.compile(rf"(?<=[A-Za-zÀ-ɏ]){_SYMBOL}|{_SYMBOL}(?=[A-Za-zÀ-ɏ])")

_NUMBER_OR_DATE = r"[-+(]?[$€£]?[-+]? ?\d[\d.,:/ TZeE+-]*[%$€£)]?|\d\d?[ -]\w{3}[ -]\d{4}"
_VALUE = re.compile(rf"{_NUMBER_OR_DATE}|.*://.*")  # of a cell, not the name of a column

_STARTS: dict[Format, str] = {
    "json": r"\[",
    "jsonl": r"\{",
    "txt": r"\d+ \d+ \d+\s*\n",
    "fasttext": FASTTEXT_LABEL,
    "vw": r"(?:\S+ (?:[\d.]+ ){0,2})?(?:'\S*\s?)?\|(?:[\w:.]*) ",
    "svm": r"\S+ (?:qid:\d+ )?\d+:[-\d.]",
    "tsv": r"[^\n]*\t",
    "csv": r"[^\n]*[,;|]",
}


def resolve(sample: bytes, suffix: Format, shown: str, options: ReadOptions) -> ReadOptions:
    """Return the options with what the sample tells. Raises Malformed if it tells no format."""
    encoding = options.encoding or encoding_of(sample)
    text = sample.decode(encoding, "replace").removeprefix("\ufeff")
    if len(sample) >= SAMPLE_BYTES:
        text = text[: text.rfind("\n") + 1] or text
    form = options.format or _format_of(text.lstrip(), suffix, shown)
    options = replace(options, format=form, encoding=encoding, is_resolved=True)
    if options.roles and form not in WITH_COLUMNS:
        raise Malformed(f"{shown}: {form} has no columns; leave the options of columns out, or name another format")
    if form == "csv" or form == "tsv":
        return _resolve_table(text, options)
    return options


def _format_of(text: str, suffix: Format, shown: str) -> Format:
    if suffix == "json" or suffix == "jsonl":
        return "json" if text.startswith("[") else "jsonl"
    if suffix != "txt" or not text:
        return suffix
    for form, start in _STARTS.items():
        if re.match(start, text):
            return form
    formats = ", ".join(get_args(Format))
    raise Malformed(f"{shown}: cannot tell the format from its first line; name it as format, one of {formats}")


def encoding_of(sample: bytes) -> str:
    """Return the encoding by the mark at the beginning, UTF-8 if most of the sample is that, or the likeliest."""
    for mark, encoding in BOMS.items():
        if sample.startswith(mark):
            return encoding
    if b"\0" not in sample:
        with suppress(UnicodeDecodeError):
            codecs.getincrementaldecoder("utf-8")().decode(sample)  # its last letter may be cut
            return "utf-8"
        text = codecs.getincrementaldecoder("utf-8")("replace").decode(sample)
        if 4 * text.count("\ufffd") <= sum(not one.isascii() for one in text if one != "\ufffd"):
            return "utf-8"
    from charset_normalizer import from_bytes

    found = from_bytes(sample, cp_isolation=ENCODINGS)
    if (best := found.best()) is None:
        return _latin(sample)
    ties = {one.encoding for one in found if (one.chaos, -one.coherence) <= (best.chaos, -best.coherence)}
    ties |= {name for one in found if one.encoding in ties for name in one.could_be_from_charset}
    return _latin(sample) if "cp1252" in ties else best.encoding


def _latin(sample: bytes) -> str:
    """Return the likeliest of encodings in which few letters differ: where one is wrong, words have symbols in them."""

    def wrong(encoding: str) -> int:
        text = sample.decode(encoding, "replace")
        icelandic = len(re.findall("[ðþýÐÞÝ]", text)) if encoding == "cp1252" else 0  # those of Turkish in the other
        return icelandic + len(_SYMBOL_AT_A_LETTER.findall(text))

    return min(LATIN, key=wrong)


def _resolve_table(text: str, options: ReadOptions) -> ReadOptions:
    told: dict[str, Any] = {name: getattr(options, name) for name in ("delimiter", "quote", "header", "skip_rows")}
    if mark := re.match(r"sep=(.)\r?\n", text):
        told |= {"delimiter": told["delimiter"] or mark[1], "skip_rows": told["skip_rows"] or 1}
    if options.format == "tsv":
        told |= {"delimiter": told["delimiter"] or ("\t" if "\t" in text else None), "quote": told["quote"] or NO_QUOTE}
    told["quote"] = told["quote"] or _quote_of(text[:SNIFFED], told["delimiter"])
    told["delimiter"] = told["delimiter"] or _delimiter_of(text[:SNIFFED], told["quote"], told["skip_rows"] or 0)
    rows = CsvRows(io.StringIO(text, newline=""), replace(options, **told))
    read: list[tuple[int, list[str]]] = []
    while len(read) < SAMPLE_ROWS:
        with suppress(Malformed):
            if (row := next(rows, None)) is None:
                break
            read += [(rows.line, row)] if row else []
    if not read:
        return replace(options, **told)
    usual = {*options.roles, *LABEL_COLUMNS, "text"}
    named = [not usual.isdisjoint(map(str.strip, row)) for _, row in read]
    if options.skip_rows is None:  # lines with other cells than the rest, such as a title
        [(width, _)] = Counter(len(row) for _, row in read).most_common(1)
        first = next(at for at, (_, row) in enumerate(read) if len(row) == width or named[at])
        told["skip_rows"], read, named = read[first][0] - 1, read[first:], named[first:]
    cells = [row for _, row in read if len(row) == len(read[0][1])]
    if options.header is None:
        numbers = any(map(str.isdigit, options.roles)) and not {*options.roles} <= {*cells[0]}
        told["header"] = not numbers and (named[0] or _is_header(cells))
    options = replace(options, **told)
    return resolve_columns(column_names(cells[0], options), cells[bool(options.header) :], options)


def _quote_of(text: str, delimiter: str | None) -> str:
    """Return the quote that encloses more cells."""
    ends = re.escape(delimiter or DELIMITERS)
    double, single = (
        len(re.findall(rf"(?<![^{ends}\r\n]){quote}(?:[^{quote}]|{quote}{quote})*+{quote}(?![^{ends}\r\n])", text))
        for quote in "\"'"
    )
    return "'" if single > double else '"'


def _delimiter_of(text: str, quote: str, skip: int) -> str:
    """Return the delimiter that splits most rows into the same number of cells."""
    quoting: dict[str, Any] = {"quoting": csv.QUOTE_NONE} if quote == NO_QUOTE else {"quotechar": quote}

    def fit(delimiter: str) -> float:
        lines = islice(io.StringIO(text, newline=""), skip, None)
        rows = [row for row in csv.reader(lines, delimiter=delimiter, **quoting) if row]
        [(width, _)] = Counter(map(len, rows)).most_common(1) or [(0, 0)]
        if width < 2:
            return 0.4 * width  # a single column, if no delimiter fits better
        weights = [1 / sqrt(at) for at in range(1, len(rows) + 1)]  # the first count most: names have no decimal commas
        fitting = sum(weight for weight, row in zip(weights, rows, strict=True) if len(row) == width) / sum(weights)
        cells, rarer = list(chain.from_iterable(rows)), DELIMITERS.partition(delimiter)[2]
        # Where two fit alike, cells that another one would split speak against a delimiter.
        return fitting - 0.02 * sum(any(one in cell for one in rarer) for cell in cells) / len(cells)

    return max(DELIMITERS.replace(quote, ""), key=fit)


def _is_header(rows: Sequence[Sequence[str]]) -> bool:
    """Return whether the first row names the columns: no cell is a value, and the rows below differ from it."""
    names, *others = rows
    if any(map(_VALUE.fullmatch, names)):
        return False
    columns = [(name, [row[at] for row in others if row[at]]) for at, name in enumerate(names)]
    for at, (name, cells) in enumerate(columns):
        values = sum(_VALUE.fullmatch(cell) is not None for cell in cells)
        if (name or at == 0) and values > NUMBER_SHARE * len(cells):  # pandas writes no name for its index
            return True
    return not any(name in cells or len(name) > LONG_NAME or (cells and not name) for name, cells in columns)
