"""Files as people have them: each is read as it was meant, or a sentence says what is wrong."""

import json
from pathlib import Path
from typing import Any

import pytest

from abound.datasets.detection import encoding_of
from abound.datasets.files import read_file, resolve_file
from abound.datasets.inspection import inspect
from abound_core.errors import InvalidInstance, Malformed
from abound_core.instances.data_formats import DatasetInstance
from abound_core.instances.read_options import ReadOptions

BANK = (
    '"Tag";"Zweck";"Betrag";"Art"\r\n"02.02.2026";"Süd";"-1.237,95 €";"Miete"\r\n"13.01.2026";"Nord";"7,00 €";"Öl"\r\n'
)
BANK_ROWS = [
    'Miete: {"Zweck": "Süd", "Betrag": -1237.95, "Tag weekday": "Mon", "Tag month": "2", "Tag day": "2"}',
    'Öl: {"Zweck": "Nord", "Betrag": 7.0, "Tag weekday": "Tue", "Tag month": "1", "Tag day": "13"}',
]
PLAIN = ['a: x {"n": 1.5}', 'b: y {"n": 2.0}']
TABLE = "text,label,n\nx,a,1.5\ny,b,2\n"

ROLES = ("text", "label", "ignore", "category", "number", "date")


def case(content: str | bytes, rows: list[str], file: str = "a.csv", **options: Any) -> tuple[Any, ...]:
    """A file, and what is read of it with these options: a line for each row, ``labels: text features``."""
    return file, content, rows, {name: tuple(one.split()) if name in ROLES else one for name, one in options.items()}


CASES = {
    "columns of 0 and 1": case(
        "id,text,rude,threat,topic\n1,x,1,0,news\n2,y,0,1,\n",
        ["rude+news: x", "threat: y"],
        label="rude threat topic",
        ignore="id",
    ),
    "columns of true and false": case(
        '{"text": "x", "rude": true, "threat": false}\n{"text": "y", "rude": false}\n',
        ["rude: x", ": y"],
        file="a.jsonl",
        label="rude threat",
    ),
    "quotes of a TSV": case(
        'text\tlabel\n"never closed\ta\n5" pipe\tb\n', ['a: "never closed', 'b: 5" pipe'], file="a.tsv"
    ),
    "quotes of a TSV, told": case('text\tlabel\n"x\ty"\ta\n', ["a: x\ty"], file="a.tsv", quote='"'),
    "no quotes": case('text,label\n"never closed,a\n', ['a: "never closed'], quote="none"),
    "bank": case(BANK, BANK_ROWS, label="Art"),
    "bank in cp1252": case(BANK.encode("cp1252"), BANK_ROWS, label="Art"),
    "bank in UTF-16": case(BANK.encode("utf-16"), BANK_ROWS, label="Art"),
    "bank as strings": case(
        BANK,
        [
            'Miete: {"Tag": "02.02.2026", "Zweck": "Süd", "Betrag": "-1.237,95 €"}',
            'Öl: {"Tag": "13.01.2026", "Zweck": "Nord", "Betrag": "7,00 €"}',
        ],
        label="Art",
        category="Tag Betrag",
    ),
    "decimal points and thousands": case(
        'text,label,n\nx,a,"1,234.5"\ny,b,$-2.00\n', ['a: x {"n": 1234.5}', 'b: y {"n": -2.0}']
    ),
    "decimal sign, told": case("text;label;n\nx;a;1.234\n", ['a: x {"n": 1234.0}'], decimal=",", number="n"),
    "codes": case("text,label,zip,mcc\nx,a,01234,5812\n", ['a: x {"zip": "01234", "mcc": "5812"}'], category="mcc"),
    "American dates": case(
        "label,d\na,02/03/2026\nb,02/13/2026\n",
        [
            'a: {"d weekday": "Tue", "d month": "2", "d day": "3"}',
            'b: {"d weekday": "Fri", "d month": "2", "d day": "13"}',
        ],
    ),
    "dates, told": case(
        "label,d\na,02/03/2026\n",
        ['a: {"d weekday": "Mon", "d month": "3", "d day": "2"}'],
        date="d",
        date_format="%d/%m/%Y",
    ),
    "comma in the header": case("text;label;n, EUR\nx;a;-3,20\n", ['a: x {"n, EUR": -3.2}']),
    "delimiter, told": case("text^label\nx,y^a\n", ["a: x,y"], delimiter="^"),
    "tabs in a CSV": case(TABLE.replace(",", "\t"), PLAIN),
    "bars": case(TABLE.replace(",", "|"), PLAIN),
    "sep=": case("sep=;\n" + TABLE.replace(",", ";"), PLAIN),
    "lines before": case("Export\n\nof today\n" + TABLE, PLAIN),
    "lines before, told": case("a,b,c\n" + TABLE, PLAIN, skip_rows=1),
    "carriage returns": case(TABLE.replace("\n", "\r"), PLAIN),
    "mark at the start": case("\ufeff" + TABLE, PLAIN),
    "no header": case(
        "x y\t<http://a.org/1> <http://a.org/2>\n",
        ["http://a.org/1+http://a.org/2: x y"],
        file="a.tsv",
        text="1",
        label="2",
        label_separator=" ",
    ),
    "no header, told": case("text,label\nx,a\n", ["label: text", "a: x"], header=False, text="1", label="2"),
    "table in a .txt": case(TABLE.replace(",", "\t"), PLAIN, file="a.txt"),
    "fastText": case("__label__a __label__b x y\n", ["a+b: x y"], file="a.txt"),
    "Vowpal Wabbit": case("1 |text x y\n2 |text z\n", ["1: x y", "2: z"], file="a.txt"),
    "Extreme Classification": case("1 3 3\n1,2 0:1\n", ['1+2: {"0": 1}'], file="a.txt"),
    "format, told": case('{"text": "x", "label": "a"}\n', ["a: x"], file="a.dat", format="jsonl"),
    "array": case('[{"text": "x", "label": "a"},\n {"text": "y", "labels": ["b"]}]', ["a: x", "b: y"], file="a.json"),
    "array as .jsonl": case('\ufeff[{"text": "x", "label": "a"}]', ["a: x"], file="a.jsonl"),
    "roles in JSON lines": case(
        '{"id": 1, "title": "x", "body": "y", "tags": ["a", "b"], "n": 5, "features": {"m": 1}, "weight": 2}\n',
        ['a+b: {"title": "x", "body": "y"} {"n": "5", "m": 1}'],
        file="a.jsonl",
        text="title body",
        label="tags",
        ignore="id",
        category="n",
    ),
    "dates and numbers that are ignored with the rest": case(
        "on;text;label;sum;no\n01.02.2026;x;a;1,50;7\n13.02.2026;y;b;2,25;8\n",
        ['a: x {"no": 7.0}', 'b: y {"no": 8.0}'],
        ignore="*",
        number="no",
    ),
    "columns of one name": case("text,label,n,n\nx,a,3,4\n", ["a: x"], ignore="n"),
    "absent labels and values": case("text,label,n\nx,NA,nan\ny,None,null\nz,nan,\n", ["NA: x", ": y", ": z"]),
    "columns of true and false in an array": case(
        '[{"text": "x", "rude": 1, "threat": 0}, {"text": "y", "rude": 0, "threat": 1}]',
        ["rude: x", "threat: y"],
        file="a.json",
        label="rude threat",
    ),
    "words for nothing in JSON lines": case(
        '{"title": "x", "label": "null", "n": "NaN"}\n', ['null: x {"n": "NaN"}'], file="a.jsonl", text="title"
    ),
    "codes with zeros in front": case(
        "text,label,zip\nx,a,01234\ny,b,94110\n", ['a: x {"zip": "01234"}', 'b: y {"zip": "94110"}']
    ),
    "amounts with brackets": case('label,n\na,"(1,234.50)"\nb,68.69\n', ['a: {"n": -1234.5}', 'b: {"n": 68.69}']),
    "amounts with a minus after them": case(
        "label;n\na;1.234,50-\nb;3,00 zł\n", ['a: {"n": -1234.5}', 'b: {"n": 3.0}']
    ),
    "dates of two digits with times": case(
        "label,d\na,25.05.26 11:00\nb,02.05.26 9:30\n",
        [
            'a: {"d weekday": "Mon", "d month": "5", "d day": "25"}',
            'b: {"d weekday": "Sat", "d month": "5", "d day": "2"}',
        ],
    ),
    "dates with names of months": case(
        "label,d\na,21 Jan 2026\n", ['a: {"d weekday": "Wed", "d month": "1", "d day": "21"}']
    ),
    "lines before with separators": case("Export\nof,today\n\n" + TABLE, PLAIN),
    "texts of many lines": case('text;label\n"' + "a, b\n" * 9000 + '";a\nx;b\n', ["a: " + "a, b\n" * 9000, "b: x"]),
    "semicolons in a TSV": case(TABLE.replace(",", ";"), PLAIN, file="a.tsv"),
    "numbers of columns that are values, too": case(
        '"3","x","y"\n"1","v","w"\n', ['3: {"2": "x", "3": "y"}', '1: {"2": "v", "3": "w"}'], text="2 3", label="1"
    ),
    "apostrophes as quotes": case("text;label\n'x; y';a\nz;'b'\n", ["a: x; y", "b: z"]),
    "commas in every text": case("text;label\nx, y;a\nz, w;b\n", ["a: x, y", "b: z, w"]),
    "decimal commas before the separator": case(
        "n;text;label\n1,5;x;a\n-2,25;y;b\n", ['a: x {"n": 1.5}', 'b: y {"n": -2.25}']
    ),
    "two labels in every row": case("text,label\n" + "x,a;b\n" * 40, ["a+b: x"] * 40, label_separator=";"),
    "labels between bars": case("text,label\nx,|a|b|\n", ["a+b: x"], label_separator="|"),
}


def written(folder: Path, name: str, content: str | bytes) -> str:
    (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    return str(folder / name)


@pytest.mark.parametrize("case", CASES)
def test_a_file_is_read_as_it_was_meant(tmp_path: Path, case: str) -> None:
    name, content, rows, options = CASES[case]
    found = read_file(written(tmp_path, name, content), options=ReadOptions(**options))
    assert [shown(one) for one in found] == rows


def shown(one: DatasetInstance) -> str:
    text = one.text if one.text is None or isinstance(one.text, str) else json.dumps(one.text)
    features = one.features and json.dumps(json.loads(one.features), ensure_ascii=False)
    return " ".join(["+".join(one.labels) + ":", *(part for part in (text, features) if part is not None)])


@pytest.mark.parametrize(
    ("content", "header"),
    [
        ("Zweck,Betrag\nx,1.5\ny,-2\n", True),
        ("Zweck,Art\nx y z,Miete\nv w,Strom\n", True),
        ("x,1.5\ny,-2\n", False),
        ("Miete,x y z\nStrom,v w\nMiete,u\n", False),
        ("http://a.org/1,x\nhttp://a.org/2,y\n", False),
        ("x " * 30 + "\ny z\n", False),
    ],
    ids=["names over numbers", "names over texts", "numbers", "a label that recurs", "addresses", "a long text"],
)
def test_a_header_is_told_from_a_row(tmp_path: Path, content: str, header: bool) -> None:
    assert resolve_file(written(tmp_path, "a.csv", content), ReadOptions()).header is header


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
def test_reading_goes_on_at_the_line_after_a_bad_one(tmp_path, content, lines, texts):
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
        ("a.svm", "a 1:1\n", {"text": ("x",)}, "svm has no columns"),
        ("a.csv", "text,label,label\n", {}, "two columns have the name 'label'"),
        ("a.csv", "text,label\nx,\"['a' 'b']\"\n", {}, "line 2: the labels \"['a' 'b']\" look like a list"),
        ("a.json", "[{", {}, "not an array in JSON"),
    ],
)
def test_what_cannot_be_read_is_said(tmp_path, name, content, options, message):
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
