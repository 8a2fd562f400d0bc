"""What the first lines of a file tell: its encoding, its format, and the dialect and columns of a table.

charset-normalizer finds the encoding, DuckDB the dialect, the header and the dates. Nothing that the options say is
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
from abound_core.instances.tables import LABEL_COLUMNS, CsvRows, column_names, record_of, resolve_columns

SAMPLE_BYTES = 2**18
SAMPLE_ROWS = 2000
WITH_COLUMNS = ("jsonl", "json", "csv", "tsv", "parquet", "arrow")

BOMS = {codecs.BOM_UTF8: "utf-8", codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16"}
ENCODINGS = [
    "utf_16_le", "utf_16_be", "cp1252", "cp1250", "cp1251", "cp1253", "cp1254", "cp932", "gb18030", "euc_kr", "big5",
    "koi8_r", "mac_roman",
]  # fmt: skip

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
    if form == "jsonl" and len(options.label) > 1:
        with suppress(Malformed):
            rows = [record_of(line.encode()) for line in text.splitlines()[:SAMPLE_ROWS] if line.strip()]
            return resolve_columns(options.label, [[row.get(name) for name in options.label] for row in rows], options)
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
        text = codecs.getincrementaldecoder("utf-8")("replace").decode(sample)
        if 4 * text.count("\ufffd") <= sum(not one.isascii() for one in text if one != "\ufffd"):
            return "utf-8"
    from charset_normalizer import from_bytes

    found = from_bytes(sample, cp_isolation=ENCODINGS)
    if (best := found.best()) is None:
        return "cp1252"
    ties = [one for one in found if (one.chaos, -one.coherence) <= (best.chaos, -best.coherence)]
    return "cp1252" if any("cp1252" in one.could_be_from_charset for one in ties) else best.encoding


def _resolve_table(text: str, options: ReadOptions) -> ReadOptions:
    told: dict[str, Any] = {name: getattr(options, name) for name in ("delimiter", "quote", "header", "skip_rows")}
    if mark := re.match(r"sep=(.)\r?\n", text):
        told |= {"delimiter": told["delimiter"] or mark[1], "skip_rows": told["skip_rows"] or 1}
    if options.format == "tsv":
        told |= {"delimiter": told["delimiter"] or "\t", "quote": told["quote"] or NO_QUOTE}
    found, kinds, date_format = _sniffed(text, told)
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
    [(width, _)] = Counter(len(row) for _, row in read).most_common(1)
    if options.skip_rows is None:  # before a short file DuckDB leaves lines with fewer cells
        first = next(at for at, (_, row) in enumerate(read) if 2 * len(row) > width)
        told["skip_rows"], read = read[first][0] - 1, read[first:]
    cells = [row for _, row in read if len(row) == len(read[0][1])]
    if options.header is None:
        found_names = {name.strip() for name in cells[0]}
        is_data = any("://" in name for name in found_names) or any(map(str.isdigit, options.roles))
        told["header"] = bool(found_names & {*options.roles, *LABEL_COLUMNS, "text"}) or (
            found["header"] and not is_data
        )
    options = replace(options, **told)
    names = column_names(cells[0], options)
    dates = [name for name, kind in zip(names, kinds, strict=False) if kind.startswith(("DATE", "TIMESTAMP"))]
    fixed = {*options.roles, *options.ignore, *LABEL_COLUMNS, "text", "vector"}
    options = replace(
        options,
        date=(*options.date, *(name for name in dates if name not in fixed)),
        date_format=options.date_format or date_format,
    )
    return resolve_columns(names, cells[bool(options.header) :], options)


def _sniffed(text: str, told: dict[str, Any]) -> tuple[dict[str, Any], list[str], str | None]:
    """Return the dialect that DuckDB finds, the types of the columns, and the format of the dates."""
    import duckdb

    names = {"delimiter": "delim", "quote": "quote", "header": "header", "skip_rows": "skip"}
    given = {names[name]: "" if value == NO_QUOTE else value for name, value in told.items() if value is not None}
    usual = {"delimiter": ",", "quote": '"', "header": True, "skip_rows": 0}
    with tempfile.NamedTemporaryFile("w", encoding="utf-8", newline="", suffix=".csv") as file:
        file.write(text)
        file.flush()
        query = f"FROM sniff_csv(?, ignore_errors=true{''.join(f', {name}=?' for name in given)})"
        try:
            with duckdb.connect(config={"threads": 1}) as connection:
                found = connection.execute(query, [file.name, *given.values()])
                row = dict(zip((one[0] for one in found.description), found.fetchone() or (), strict=True))
        except duckdb.Error:
            return usual, [], None
    dialect = {
        "delimiter": row["Delimiter"],
        "quote": row["Quote"],
        "header": row["HasHeader"],
        "skip_rows": row["SkipRows"],
    }
    dialect = usual | {name: value for name, value in dialect.items() if value not in ("(empty)", "\0", None)}
    return dialect, [column["type"] for column in row["Columns"]], row["DateFormat"] or row["TimestampFormat"]
