"""Tables as instances: roles of columns, types of cells, and errors with the line."""

import csv
import io
import json
import math
import re
from decimal import Decimal
from typing import Any

import pyarrow
import pytest
from hypothesis import given
from hypothesis import strategies as st

from abound_core.errors import Malformed
from abound_core.instances.data_formats import DatasetInstance
from abound_core.instances.read_options import ReadOptions
from abound_core.instances.tables import ABSENT, read_batches, read_csv


def rows(text: str | bytes, /, **options: Any) -> list[DatasetInstance]:
    lines = io.StringIO(text if isinstance(text, str) else text.decode(errors="surrogateescape"), newline="")
    return list(read_csv(lines, ReadOptions(**options), "a.csv"))


def features(instance: DatasetInstance) -> dict[str, Any]:
    return {} if instance.features is None else json.loads(instance.features)


def test_columns_have_their_usual_names():
    (one,) = rows("text,labels,price,colour,size\nwool socks,socks,3.50,red,\n")
    assert (one.text, one.labels, one.line) == ("wool socks", ("socks",), 2)
    assert features(one) == {"price": 3.5, "colour": "red"}
    (one,) = rows("label,colour\nsocks,red\n")
    assert (one.text, one.labels, features(one)) == (None, ("socks",), {"colour": "red"})
    (one,) = rows(',text,label,vector\n17,a,x,"[1, 0.5]"\n')  # the index of pandas is no feature
    assert (one.vector, one.features) == ([1, 0.5], None)
    assert rows("") == rows("text,label\n") == []


def test_columns_are_named():
    (one,) = rows(
        "title,body,topics,id,text,emb\nA,B,x| y |,7,t,[1]\n",
        text=("title", "body"),
        label=("topics",),
        label_separator="|",
        vector="emb",
        ignore=("id",),
    )
    assert (one.text, one.labels, one.vector, features(one)) == (
        {"title": "A", "body": "B"},
        ("x", "y"),
        [1],
        {"text": "t"},
    )


@given(st.floats(1e-4, 1e-1))
def test_a_number_that_is_written_in_full_is_that_number(value):
    (one,) = rows(f"text,x,y\na,{value!r},{Decimal(value):f}\n")
    assert features(one) == {"x": value, "y": value}


def test_only_numbers_and_booleans_are_such():
    cells = ["1", "-2.5", "1e3", "-2E+300", "True", "false", "TRUE"]
    texts = ["007", "1_000", "0x1", "+1", "1.", " 1", "yes", "tRue"]
    (one,) = rows(",".join(f"c{i}" for i in range(15)) + "\n" + ",".join(cells + texts) + "\n")
    assert list(features(one).values()) == [1, -2.5, 1000, -2e300, True, False, True, *texts]
    with pytest.raises(Malformed, match=r"line 2: x: a number must be finite and below 1\.8e308"):
        rows("text,x\na,1e400\n")


def test_labels_of_a_cell():
    assert [one.labels for one in rows("text,label\na,007\nb,12\nc,1.50\nd,\n")] == [("007",), ("12",), ("1.50",), ()]
    text = 'text,labels\na,"[""grain"", ""wheat""]"\nb,[]\nc,[deleted]\n'
    assert [row.labels for row in rows(text)] == [("grain", "wheat"), (), ("[deleted]",)]
    with pytest.raises(Malformed, match=r"line 2: the labels \"\['grain', 'wheat'\]\" look like a list"):
        rows("text,labels\na,\"['grain', 'wheat']\"\n")
    assert rows("text,labels\na,\"['b', 'c']\"\n", label_separator="|")[0].labels == ("['b', 'c']",)


@pytest.mark.parametrize("separator", [",", ";", "\t"])
def test_separators_and_quotes(separator):
    text = f'text{separator}label\r\n"one{separator} ""two""\nthree"{separator}x\r\n\r\nfour{separator}y\r\n'
    found = rows(text, delimiter=separator)
    assert [(one.text, one.labels, one.line) for one in found] == [
        (f'one{separator} "two"\nthree', ("x",), 2),
        ("four", ("y",), 5),
    ]


@pytest.mark.parametrize(
    ("text", "columns", "message"),
    [
        ("text,label\na\n", {}, "a.csv: line 2: the row has 1 cells, the header has 2"),
        ('text,label\na,b\n"c\nd,e\n', {}, "a.csv: line 3: not a row of CSV: unexpected end of data"),
        ('text,label\na"b"c,x\n"d"e,x\n', {}, "a.csv: line 3: not a row of CSV: ',' expected after"),
        (
            'text,label\na,x\n"' + ("y" * 2**16 + "\n") * 256,
            {},
            "a.csv: line 3: not a row of CSV: field larger than field limit (16777216)",
        ),
        (b"text,label\na,b\n\xff,c\n", {}, "a.csv: line 3: not UTF-8"),
        ("text,label\n", {"text": ("title",)}, "line 1: there is no column 'title'; the columns are 'text', 'label'"),
        ("text,label\n", {"ignore": ("id",)}, "a.csv: line 1: there is no column 'id'"),
        ("text,vector\na,[x]\n", {}, "a.csv: line 2: vector: not a list of numbers: JSON is malformed"),
        ('emb\n"[1, null]"\n', {"vector": "emb"}, "line 2: emb: not a list of numbers: Expected `float`, got `null`"),
        ("text,a,a\n", {}, "a.csv: line 1: two columns have the name 'a'"),
    ],
    ids=range(10),
)
def test_errors_name_the_line(text, columns, message):
    with pytest.raises(Malformed, match=re.escape(message)):
        rows(text, **columns)


def test_bad_rows_can_be_skipped():
    bad = []
    lines = b"text,label\na,x\nb\nc,x,y\n\xff,x\nd,y\n".decode(errors="surrogateescape")
    found = list(read_csv(io.StringIO(lines), ReadOptions(), on_bad=bad.append))
    assert [one.text for one in found] == ["a", "d"]
    assert [str(one).partition(":")[0] for one in bad] == ["line 3", "line 4", "line 5"]


cells = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=8)
labels = cells.map(str.strip).filter(lambda cell: cell not in ABSENT)


@given(st.lists(st.tuples(cells, labels), max_size=8))
def test_rows_come_back_as_they_were_written(written):
    out = io.StringIO()
    csv.writer(out).writerows([("text", "label"), *written])
    found = rows(out.getvalue())
    assert [(one.text, one.labels) for one in found] == [(text, (label,)) for text, label in written]


def batch(**columns: Any) -> pyarrow.RecordBatch:
    return pyarrow.record_batch(columns)


def test_typed_cells():
    first, second = read_batches(
        [
            batch(text=["a"], labels=[["x", None, "y"]], n=[3], tags=[["p", "q"]], vector=[[1.0, 0.5]]),
            batch(text=[None], labels=[None], n=[None], tags=[None], vector=[None]),
        ],
        ReadOptions(),
        "f",
    )
    assert (first.text, first.labels, features(first), first.vector) == (
        "a",
        ("x", "y"),
        {"n": 3, "tags": ["p", "q"]},
        [1.0, 0.5],
    )
    assert (second.text, second.labels, features(second), second.vector) == ("", (), {}, None)
    assert (first.location, second.location) == ("f: line 1", "f: line 2")


@pytest.mark.parametrize(
    ("given", "expected"),
    [(["x"], ("x",)), ([7], ("7",)), ([7.0, None], ("7",)), ([[1, 2]], ("1", "2")), ([float("nan")], ())],
    ids=["string", "integer", "integer as float", "list", "nan"],
)
def test_typed_labels(given, expected):
    first, *_ = read_batches([batch(label=given)], ReadOptions())
    assert first.labels == expected


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"a": [{"b": 1}]}, "f: line 1: a: a dict is no feature"),
        ({"a": [[1, 2]]}, "f: line 1: a: a list with values that are not strings is no feature; ignore the column, or"),
        ({"text": [3]}, "f: line 1: text: a text must be a string, not int"),
        ({"label": [b"x"]}, "f: line 1: labels must be strings or whole numbers, not bytes b'x'"),
        ({"vector": [[]]}, "f: line 1: vector: not a list of numbers"),
        ({"vector": [[1.0, math.nan]]}, "f: line 1: vector: not a list of finite numbers: got `nan` - at `vector[1]`"),
        ({"a": pyarrow.array([1], pyarrow.duration("s"))}, "f: line 1: a: a timedelta is no feature"),
        ({"a": [-math.inf]}, "f: line 1: a: a number must be finite and below 1.8e308"),
    ],
    ids=range(8),
)
def test_wrong_types_are_refused(columns, message):
    with pytest.raises(Malformed, match=re.escape(message)):
        list(read_batches([batch(**columns)], ReadOptions(), "f"))
    bad: list[Malformed] = []
    good = {name: pyarrow.nulls(2) for name in columns}
    found = list(read_batches([batch(**columns), batch(**good)], ReadOptions(), on_bad=bad.append))
    assert ([one.line for one in found], len(bad)) == ([2, 3], 1)
