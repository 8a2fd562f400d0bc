"""What the first lines of a file tell: its encoding, its format, and the dialect and columns of a table.

charset-normalizer finds the encoding, DuckDB the dialect and the header. Nothing that the options say is
guessed.
"""

from __future__ import annotations

import codecs
import io
import re
import tempfile
from collections import Counter
from contextlib import suppress
from typing import Any, get_args

from msgspec.structs import replace

from abound_core.errors import Malformed
from abound_core.instances.data_formats import FASTTEXT_LABEL
from abound_core.instances.read_options import NO_QUOTE, Format, ReadOptions
from abound_core.instances.tables import LABEL_COLUMNS, CsvRows, column_names, resolve_columns

SAMPLE_BYTES = 2**18
SAMPLE_ROWS = 2000
SNIFFED, SNIFFED_LINES = 2**14, 50  # characters of which DuckDB finds the dialect, if they are so many lines
WITH_COLUMNS = ("jsonl", "json", "csv", "tsv", "parquet", "arrow")

BOMS = {codecs.BOM_UTF8: "utf-8", codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16"}
ENCODINGS = [
    "utf_16_le", "utf_16_be", "cp1252", "cp1250", "cp1251", "cp1253", "cp1254", "cp1255", "cp1256", "iso8859_2",
    "cp932", "gb18030", "euc_kr", "big5", "koi8_r",
]  # fmt: skip
LATIN = ("cp1252", "cp1254", "cp1250", "iso8859_2")  # the first is the likeliest
_SYMBOL = r"[^\s!-~A-Za-zÀ-ɏ«»‘-„–—…€£§°]"
_SYMBOL_AT_A_LETTER = re.compile(rf"(?<=[A-Za-zÀ-ɏ]){_SYMBOL}|{_SYMBOL}(?=[A-Za-zÀ-ɏ])")

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
    found = _sniffed(text[:SNIFFED] if text.count("\n", 0, SNIFFED) > SNIFFED_LINES else text, told)
    told = found | {name: value for name, value in told.items() if value is not None}
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
        is_data = numbers or any("://" in name for name in cells[0])
        told["header"] = (named[0] and not numbers) or (found["header"] and not is_data)
    options = replace(options, **told)
    return resolve_columns(column_names(cells[0], options), cells[bool(options.header) :], options)


def _sniffed(text: str, told: dict[str, Any]) -> dict[str, Any]:
    """Return the dialect that DuckDB finds."""
    import duckdb

    names = {"delimiter": "delim", "quote": "quote", "header": "header", "skip_rows": "skip"}
    given = {names[name]: "" if value == NO_QUOTE else value for name, value in told.items() if value is not None}
    dialect: dict[str, Any] = {"delimiter": ",", "quote": '"', "header": True, "skip_rows": 0}
    with tempfile.NamedTemporaryFile("w", encoding="utf-8", newline="", suffix=".csv") as file:
        file.write(text)
        file.flush()
        options = "".join(f", {name}=?" for name in given)
        query = f"SELECT Delimiter, Quote, HasHeader FROM sniff_csv(?, ignore_errors=true{options})"  # noqa: S608
        with suppress(duckdb.Error), duckdb.connect(config={"threads": 1}) as connection:
            found = connection.execute(query, [file.name, *given.values()]).fetchone() or ()
            pairs = zip(("delimiter", "quote", "header"), found, strict=True)
            dialect |= {name: value for name, value in pairs if value not in ("(empty)", "\0", None)}
    return dialect
