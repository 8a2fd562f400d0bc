"""Files as people have them: each is read as it was meant, or a sentence says what is wrong."""

import json
from pathlib import Path
from typing import Any

import pytest

from abound.datasets.detection import encoding_of
from abound.datasets.files import read_file, resolve_file
from abound.datasets.inspection import inspect
from abound_core.errors import InvalidInstance, Malformed
from abound_core.instances.read_options import ReadOptions

BANK = (
    '"Tag";"Zweck";"Betrag";"Art"\r\n"02.02.2026";"Süd";"-1.237,95 €";"Miete"\r\n"13.01.2026";"Nord";"7,00 €";"Öl"\r\n'
)
BANK_ROWS = [
    (("Miete",), None, {"Zweck": "Süd", "Betrag": -1237.95, "Tag weekday": "Mon", "Tag month": "2", "Tag day": "2"}),
    (("Öl",), None, {"Zweck": "Nord", "Betrag": 7.0, "Tag weekday": "Tue", "Tag month": "1", "Tag day": "13"}),
]
PLAIN = [(("a",), "x", {"n": 1.5}), (("b",), "y", {"n": 2.0})]
TABLE = "text,label,n\nx,a,1.5\ny,b,2\n"

CASES: dict[str, tuple[str, str | bytes, dict[str, Any], list[tuple[Any, Any, Any]]]] = {
    "columns of 0 and 1": (
        "a.csv",
        "id,text,rude,threat,topic\n1,x,1,0,news\n2,y,0,1,\n",
        {"label": ("rude", "threat", "topic"), "ignore": ("id",)},
        [(("rude", "news"), "x", None), (("threat",), "y", None)],
    ),
    "columns of true and false": (
        "a.jsonl",
        '{"text": "x", "rude": true, "threat": false}\n{"text": "y", "rude": false}\n',
        {"label": ("rude", "threat")},
        [(("rude",), "x", None), ((), "y", None)],
    ),
    "quotes of a TSV": (
        "a.tsv",
        'text\tlabel\n"never closed\ta\n5" pipe\tb\n',
        {},
        [(("a",), '"never closed', None), (("b",), '5" pipe', None)],
    ),
    "quotes of a TSV, told": ("a.tsv", 'text\tlabel\n"x\ty"\ta\n', {"quote": '"'}, [(("a",), "x\ty", None)]),
    "no quotes": ("a.csv", 'text,label\n"never closed,a\n', {"quote": "none"}, [(("a",), '"never closed', None)]),
    "bank": ("a.csv", BANK, {"label": ("Art",)}, BANK_ROWS),
    "bank in cp1252": ("a.csv", BANK.encode("cp1252"), {"label": ("Art",)}, BANK_ROWS),
    "bank in UTF-16": ("a.csv", BANK.encode("utf-16"), {"label": ("Art",)}, BANK_ROWS),
    "bank as strings": (
        "a.csv",
        BANK,
        {"label": ("Art",), "category": ("Tag", "Betrag")},
        [
            (("Miete",), None, {"Tag": "02.02.2026", "Zweck": "Süd", "Betrag": "-1.237,95 €"}),
            (("Öl",), None, {"Tag": "13.01.2026", "Zweck": "Nord", "Betrag": "7,00 €"}),
        ],
    ),
    "decimal points and thousands": (
        "a.csv",
        'text,label,n\nx,a,"1,234.5"\ny,b,$-2.00\n',
        {},
        [(("a",), "x", {"n": 1234.5}), (("b",), "y", {"n": -2.0})],
    ),
    "decimal sign, told": (
        "a.csv",
        "text;label;n\nx;a;1.234\n",
        {"decimal": ",", "number": ("n",)},
        [(("a",), "x", {"n": 1234.0})],
    ),
    "codes": (
        "a.csv",
        "text,label,zip,mcc\nx,a,01234,5812\n",
        {"category": ("mcc",)},
        [(("a",), "x", {"zip": "01234", "mcc": "5812"})],
    ),
    "American dates": (
        "a.csv",
        "label,d\na,02/03/2026\nb,02/13/2026\n",
        {},
        [
            (("a",), None, {"d weekday": "Tue", "d month": "2", "d day": "3"}),
            (("b",), None, {"d weekday": "Fri", "d month": "2", "d day": "13"}),
        ],
    ),
    "dates, told": (
        "a.csv",
        "label,d\na,02/03/2026\n",
        {"date": ("d",), "date_format": "%d/%m/%Y"},
        [(("a",), None, {"d weekday": "Mon", "d month": "3", "d day": "2"})],
    ),
    "comma in the header": ("a.csv", "text;label;n, EUR\nx;a;-3,20\n", {}, [(("a",), "x", {"n, EUR": -3.2})]),
    "delimiter, told": ("a.csv", "text^label\nx,y^a\n", {"delimiter": "^"}, [(("a",), "x,y", None)]),
    "tabs in a CSV": ("a.csv", TABLE.replace(",", "\t"), {}, PLAIN),
    "bars": ("a.csv", TABLE.replace(",", "|"), {}, PLAIN),
    "sep=": ("a.csv", "sep=;\n" + TABLE.replace(",", ";"), {}, PLAIN),
    "lines before": ("a.csv", "Export\n\nof today\n" + TABLE, {}, PLAIN),
    "lines before, told": ("a.csv", "a,b,c\n" + TABLE, {"skip_rows": 1}, PLAIN),
    "carriage returns": ("a.csv", TABLE.replace("\n", "\r"), {}, PLAIN),
    "mark at the start": ("a.csv", "\ufeff" + TABLE, {}, PLAIN),
    "no header": (
        "a.tsv",
        "x y\t<http://a.org/1> <http://a.org/2>\n",
        {"text": ("1",), "label": ("2",), "label_separator": " "},
        [(("http://a.org/1", "http://a.org/2"), "x y", None)],
    ),
    "no header, told": (
        "a.csv",
        "text,label\nx,a\n",
        {"header": False, "text": ("1",), "label": ("2",)},
        [(("label",), "text", None), (("a",), "x", None)],
    ),
    "table in a .txt": ("a.txt", TABLE.replace(",", "\t"), {}, PLAIN),
    "fastText": ("a.txt", "__label__a __label__b x y\n", {}, [(("a", "b"), "x y", None)]),
    "Vowpal Wabbit": ("a.txt", "1 |text x y\n2 |text z\n", {}, [(("1",), "x y", None), (("2",), "z", None)]),
    "Extreme Classification": ("a.txt", "1 3 3\n1,2 0:1\n", {}, [(("1", "2"), None, {"0": 1})]),
    "format, told": ("a.dat", '{"text": "x", "label": "a"}\n', {"format": "jsonl"}, [(("a",), "x", None)]),
    "array": (
        "a.json",
        '[{"text": "x", "label": "a"},\n {"text": "y", "labels": ["b"]}]',
        {},
        [(("a",), "x", None), (("b",), "y", None)],
    ),
    "array as .jsonl": ("a.jsonl", '\ufeff[{"text": "x", "label": "a"}]', {}, [(("a",), "x", None)]),
    "roles in JSON lines": (
        "a.jsonl",
        '{"id": 1, "title": "x", "body": "y", "tags": ["a", "b"], "n": 5, "features": {"m": 1}, "weight": 2}\n',
        {"text": ("title", "body"), "label": ("tags",), "ignore": ("id",), "category": ("n",)},
        [(("a", "b"), {"title": "x", "body": "y"}, {"n": "5", "m": 1})],
    ),
    "columns of one name": ("a.csv", "text,label,n,n\nx,a,3,4\n", {"ignore": ("n",)}, [(("a",), "x", None)]),
    "absent labels and values": (
        "a.csv",
        "text,label,n\nx,NA,nan\ny,None,null\nz,nan,\n",
        {},
        [(("NA",), "x", None), ((), "y", None), ((), "z", None)],
    ),
    "columns of true and false in an array": (
        "a.json",
        '[{"text": "x", "rude": 1, "threat": 0}, {"text": "y", "rude": 0, "threat": 1}]',
        {"label": ("rude", "threat")},
        [(("rude",), "x", None), (("threat",), "y", None)],
    ),
    "words for nothing in JSON lines": (
        "a.jsonl",
        '{"title": "x", "label": "null", "n": "NaN"}\n',
        {"text": ("title",)},
        [(("null",), "x", {"n": "NaN"})],
    ),
    "codes with zeros in front": (
        "a.csv",
        "text,label,zip\nx,a,01234\ny,b,94110\n",
        {},
        [(("a",), "x", {"zip": "01234"}), (("b",), "y", {"zip": "94110"})],
    ),
    "amounts with brackets": (
        "a.csv",
        'label,n\na,"(1,234.50)"\nb,68.69\n',
        {},
        [(("a",), None, {"n": -1234.5}), (("b",), None, {"n": 68.69})],
    ),
    "amounts with a minus after them": (
        "a.csv",
        "label;n\na;1.234,50-\nb;3,00 zł\n",
        {},
        [(("a",), None, {"n": -1234.5}), (("b",), None, {"n": 3.0})],
    ),
    "dates of two digits with times": (
        "a.csv",
        "label,d\na,25.05.26 11:00\nb,02.05.26 9:30\n",
        {},
        [
            (("a",), None, {"d weekday": "Mon", "d month": "5", "d day": "25"}),
            (("b",), None, {"d weekday": "Sat", "d month": "5", "d day": "2"}),
        ],
    ),
    "dates with names of months": (
        "a.csv",
        "label,d\na,21 Jan 2026\n",
        {},
        [(("a",), None, {"d weekday": "Wed", "d month": "1", "d day": "21"})],
    ),
    "lines before with separators": ("a.csv", "Export\nof,today\n\n" + TABLE, {}, PLAIN),
    "texts of many lines": (
        "a.csv",
        'text;label\n"' + "a, b\n" * 9000 + '";a\nx;b\n',
        {},
        [(("a",), "a, b\n" * 9000, None), (("b",), "x", None)],
    ),
    "semicolons in a TSV": ("a.tsv", TABLE.replace(",", ";"), {}, PLAIN),
    "numbers of columns that are values, too": (
        "a.csv",
        '"3","x","y"\n"1","v","w"\n',
        {"text": ("2", "3"), "label": ("1",)},
        [(("3",), {"2": "x", "3": "y"}, None), (("1",), {"2": "v", "3": "w"}, None)],
    ),
    "labels between bars": ("a.csv", "text,label\nx,|a|b|\n", {"label_separator": "|"}, [(("a", "b"), "x", None)]),
}


def written(folder: Path, name: str, content: str | bytes) -> str:
    (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    return str(folder / name)


@pytest.mark.parametrize("case", CASES)
def test_a_file_is_read_as_it_was_meant(tmp_path: Path, case: str) -> None:
    name, content, options, expected = CASES[case]
    found = read_file(written(tmp_path, name, content), options=ReadOptions(**options))
    features = [(one.labels, one.text, one.features and json.loads(one.features)) for one in found]
    assert features == expected


def test_roles_of_an_event(tmp_path: Path) -> None:
    file = written(tmp_path, "a.csv", "text,label,id,who,times\nx,a,7,desk,2.5\n")
    options = ReadOptions(key_column="id", source_column="who", weight_column="times")
    [one] = read_file(file, options=options)
    assert (one.key, one.source, one.weight, one.features) == ("7", "desk", 2.5, None)


@pytest.mark.parametrize(
    ("content", "lines", "texts"),
    [
        ('text,label\n"x" he asked,a\ny,b\n"never closed,c\nz,d\n6" nails,e\n', [2, 4], ["y", "z", '6" nails']),
        ('text,label\nx,a\n"never closed,b\n' + "z,d\n" * 5, [3], ["x", *"zzzzz"]),
        ('text,label\n"one\ntwo",a\n"three\nfour"\nz,d\n', [4, 5], ["one\ntwo", "z"]),
        ("text,label\nx,a\ny\nz,d,e\nw,f\n", [3, 4], ["x", "w"]),
    ],
    ids=["quotes", "to the end", "over lines", "cells"],
)
def test_reading_goes_on_at_the_line_after_a_bad_one(
    tmp_path: Path, content: str, lines: list[int], texts: list[str]
) -> None:
    bad: list[Malformed] = []
    found = list(read_file(written(tmp_path, "a.csv", content), on_bad=bad.append))
    assert [one.text for one in found] == texts
    assert [int(str(one).split("line ")[1].split(":")[0]) for one in bad] == lines


@pytest.mark.parametrize(
    ("text", "encoding", "read"),
    [
        ("Größe für Müller, 5 €\n" * 9, "cp1252", "cp1252"),
        ("déjà vu, l'été à Noël\n" * 9, "cp1252", "cp1252"),
        ("hyvää päivää, äiti\n", "latin-1", "cp1252"),
        ("proszę książkę, żółty\n" * 9, "cp1250", "cp1250"),
        ("öğrenci şehir, değil\n" * 9, "cp1254", "cp1254"),
        ("שלום עולם, מוצר כסף\n" * 9, "cp1255", "cp1255"),
        ("Оплата за услуги, магазин\n" * 9, "cp1251", "cp1251"),
        ("Größe für Müller\n" * 9, "utf-8", "utf-8"),
        ("plain\n", "utf-16-le", "utf_16_le"),
    ],
    ids=["German", "French", "Finnish", "Polish", "Turkish", "Hebrew", "Russian", "UTF-8", "UTF-16 without a mark"],
)
def test_encodings(text: str, encoding: str, read: str) -> None:
    assert encoding_of(text.encode(encoding)) == read


def test_one_bad_byte_does_not_make_another_encoding() -> None:
    assert encoding_of("Größe für Müller\n".encode() * 9 + b"\xff\n") == "utf-8"


@pytest.mark.parametrize(
    ("name", "content", "options", "message"),
    [
        ("a.txt", "words\n", {}, "cannot tell the format from its first line; name it as format, one of jsonl"),
        ("a.xyz", "words\n", {}, "cannot tell the format; name it"),
        ("a.svm", "a 1:1\n", {"text": ("x",)}, "svm has no columns"),
        ("a.csv", "text,label,label\n", {}, "two columns have the name 'label'"),
        ("a.csv", "text,label\nx,\"['a' 'b']\"\n", {}, "line 2: the labels \"['a' 'b']\" look like a list"),
        ("a.json", "[{", {}, "not an array in JSON"),
    ],
)
def test_what_cannot_be_read_is_said(
    tmp_path: Path, name: str, content: str, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(Malformed) as caught:
        list(read_file(written(tmp_path, name, content), options=ReadOptions(**options)))
    assert message in str(caught.value)


@pytest.mark.parametrize("wrong", [{"delimiter": ",,"}, {"quote": "''"}, {"encoding": "utf-9"}, {"encoding": "hex"}])
def test_wrong_options_are_named(wrong: dict[str, str]) -> None:
    with pytest.raises(InvalidInstance) as caught:
        ReadOptions(**wrong)
    assert caught.value.field in wrong


def test_what_was_resolved_is_not_guessed_again(tmp_path: Path) -> None:
    options = resolve_file(written(tmp_path, "a.csv", BANK), ReadOptions(label=("Art",)))
    assert (options.delimiter, options.encoding, options.decimal, options.date) == (";", "utf-8", ",", ("Tag",))
    [one] = read_file(written(tmp_path, "b.csv", 'Tag;Zweck;Betrag;Art\n"03.02.2026";x;1.000;b\n'), options=options)
    assert json.loads(one.features or b"")["Betrag"] == 1000


def report(folder: Path, content: str, name: str = "a.csv", **options: Any) -> Any:
    return inspect(written(folder, name, content), ReadOptions(**options))


ROWS = range(40)
WARNINGS = {
    "near-unique strings": ("label,note\n" + "".join(f"a,n{i}\n" for i in ROWS), "note: 40 of 40 values differ"),
    "identifiers": ("label,id\n" + "".join(f"a,{i}\n" for i in ROWS), "id: every value is larger than the one before"),
    "codes": ("label,mcc\n" + "".join(f"a,{5800 + i % 4}\n" for i in ROWS), "--category mcc"),
    "decimal commas": ("label;n\n" + "".join(f"a;{i},5\na;x{i}\n" for i in ROWS), "--number n reads them"),
    "0 and 1": ("text,label\nx,0\ny,1\n", "the labels are only 0 and 1"),
    "negative numbers": ("label,n\na,-3\nb,2\n", "n: 1 of 2 numbers are negative; only a model with negative=split"),
    "yes and no": ("text,label\nx,yes\ny,no\n", "the labels are only yes and no"),
    "separators in labels": ("text,label\nx,a;b\ny,c;d\n", "most labels have ';' in them"),
    "no labels": ("text,topic\nx,0\n", "there are no labels"),
    "alike": ("text,label\nx,Café\ny,cafe\u0301\n", "labels differ in case, spaces or Unicode form only: 'Café'"),
    "empty": ("text,label,n\nx,a,\ny,b,\n", "n: the column is empty"),
    "HTML": ("text,label\n<p>x</p>,a\n", "text: the texts look like HTML"),
    "lists": ("text,label\nx,|a|b|\ny,c\n", "labels look like lists or code, such as '|a|b|'"),
    "bad rows": ("text,label\nx\ny\nz,a\n", "2 of the first 3 rows cannot be read; the first:"),
}


@pytest.mark.parametrize("case", WARNINGS)
def test_warnings(tmp_path: Path, case: str) -> None:
    content, warning = WARNINGS[case]
    found = report(tmp_path, content)
    assert [one for one in found.warnings if warning in one], found.warnings
    assert (found.misread is not None) == (case == "bad rows")
    if case == "no labels":
        assert not inspect(found.file, ReadOptions(), none=True).warnings


def test_a_good_file_has_no_warning(tmp_path: Path) -> None:
    found = report(tmp_path, TABLE)
    assert (found.rows, found.labels, found.warnings, found.misread) == (2, ("a", "b"), (), None)
    assert [(one.name, one.role, one.kind, one.values) for one in found.columns] == [
        ("text", "text", "string", ("x", "y")),
        ("label", "label", "string", ("a", "b")),
        ("n", "feature", "number", ("1.5", "2")),
    ]
