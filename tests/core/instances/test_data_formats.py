"""Lines of the formats, right and wrong."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from abound_core.errors import Malformed
from abound_core.instances.data_formats import DatasetInstance, read_instances
from abound_core.instances.read_options import Format, ReadOptions


def read(form: Format, *lines: str) -> list[DatasetInstance]:
    return list(read_instances([line.encode() for line in lines], ReadOptions(format=form)))


NESTED = b"[" * 20_000 + b"]" * 20_000


def test_extreme_classification_text():
    instances = read("txt", "5 20 5\n", "1,4 0:0.5 17:2\n", " 3:1e-3\n", "3:1\n", "2 \n", "\n")
    assert [instance.labels for instance in instances] == [("1", "4"), (), (), ("2",), ()]
    features = [json.loads(instance.features or b"") for instance in instances]
    assert features == [{"0": 0.5, "17": 2.0}, {"3": 1e-3}, {"3": 1.0}, {}, {}]
    assert [instance.line for instance in instances] == [2, 3, 4, 5, 6]


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([], "line 1: the header must be three whole numbers"),
        (["1 2 x"], "line 1: the header"),
        (["1 2 " + "9" * 5000], "line 1: the header"),
        (["1 2 2", "0 2:1"], "line 2: feature 2 is not below the 2"),
        (["1 2 2", "2 1:1"], "line 2: label 2 is not below the 2"),
        (["1 2 2", "1,x 1:1"], "line 2: 'x' is not the number of a label"),
        (["1 2 2", "0 1"], "line 2: '1' is not a feature and its value"),
        (["1 2 2", "0 1:x"], "line 2: '1:x' is not a feature and its value"),
        (["1 2 2", "0 1:1_0"], "line 2: '1:1_0' is not"),
        (["1 2 2", "0 1:1e999"], "line 2: '1:1e999' is not"),
        (["1 2 2", "0 -1:1"], "line 2: '-1' is not the number of a feature"),
        (["2 2 2", "0 1:1"], "line 2: the file ends after 1 of the 2 instances"),
        (["1 2 2", "0 1:1", "0 1:1"], "line 3: the header promises 1 instances, there are more"),
    ],
)
def test_damaged_extreme_classification_text(lines, message):
    with pytest.raises(Malformed, match=message):
        read("txt", *lines)


def test_svmlight():
    lines = ["# made by hand\n", "+1 qid:3 1:0.5 4:2 # the first\n", "\n", "-1,2.0 1:1\n", "ham 2:3\n", " 2:1\n"]
    instances = read("svm", *lines)
    assert [instance.labels for instance in instances] == [("1",), ("-1", "2"), ("ham",), ()]
    assert json.loads(instances[0].features or b"") == {"1": 0.5, "4": 2.0}
    assert [instance.line for instance in instances] == [2, 4, 5, 6]


def test_json_lines():
    lines = ['{"text": "a b", "labels": ["x", 7]}', "", '{"features": {"a": [1, 2]}, "text": null}']
    first, second = read("jsonl", *lines)
    assert first == DatasetInstance(text="a b", labels=("x", "7"), line=1)
    assert second == DatasetInstance(features=b'{"a": [1, 2]}', line=3)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"{", "line 1: not an instance in JSON"),
        (b"[]", "line 1: not an instance in JSON"),
        (b'{"labels": ["a"]}', "line 1: an instance needs text, features or a vector"),
        (b'{"features": null}', "line 1: an instance needs text, features or a vector"),
        (b'{"text": "a", "labels": [true]}', "labels"),
        (b'{"text": "a", "rejected": "crude"}', "rejected must be a list, as in"),
        (b'{"text": "a", "reject": ["crude"]}', r"unknown field 'reject'; did you mean 'rejected'\?"),
        (b'{"text": "a", "labels": ["b"], "weight": "2"}', "weight"),
        (b'{"features": {"\xff": 1}}', "line 1: not UTF-8; name the encoding of the file"),
        (b'{"text": "a", "features": {"a": %b}}' % NESTED, "line 1: not an instance in JSON: it is nested too deeply"),
        (b'{"text": "a", "passed over": %b}' % NESTED, "line 1: not an instance in JSON: it is nested too deeply"),
    ],
)
def test_damaged_json_lines(line, message):
    with pytest.raises(Malformed, match=message):
        list(read_instances([line], ReadOptions()))


@pytest.mark.parametrize(
    ("line", "written", "is_labelled"),
    [
        ({"labels": [], "rejected": ["a", 7], "ignored": ["b"], "weight": 2}, {"rejected": ["a", "7"]}, True),
        ({"labels": ["a"], "weight": None, "rejected": None}, {"weight": ..., "rejected": ...}, True),
        ({"labels": ["a"], "key": "k", "source": "desk", "partial": True}, {}, True),
        ({"features": {"a": 100.0}, "labels": ["a"]}, {}, True),
        ({"labels": None, "ignored": ["a"]}, {"labels": []}, True),
        ({"labels": [], "none": True}, {}, True),
        ({"labels": ["a"], "weight": 0.0}, {}, True),
        ({"ignored": []}, {"ignored": ..., "labels": []}, False),
    ],
    ids=["feedback", "null", "key", "features", "ignored", "none", "no weight", "bare"],
)
def test_what_json_lines_have_is_written_again(line, written, is_labelled):
    [one] = read_instances([b"\xef\xbb\xbf" + json.dumps({"text": '"'} | line).encode()], ReadOptions())
    assert one.is_labelled == is_labelled
    assert one.complete_labels == (() if "partial" in line else one.labels)  # what batch methods and measures get
    expected = {name: value for name, value in ({"text": '"'} | line | written).items() if value is not ...}
    assert json.loads(one.to_json()) == expected
    unlabelled = json.loads(one.to_json(labels=False))
    assert unlabelled == {name: value for name, value in expected.items() if name in ("text", "features")}


def test_unknown_fields_of_json_lines():
    line = b'{"text": "wheat", "labels": ["grain"], "id": 7, "date": null}'
    with pytest.raises(
        Malformed, match=r"line 1: unknown field 'id'; .*, as text and label, or ignore id, date, or \* for"
    ):
        list(read_instances([line], ReadOptions()))
    with pytest.raises(Malformed, match=r"line 1: unknown field 'date'"):
        list(read_instances([line], ReadOptions(ignore=("id",))))
    for ignore in (("id", "date"), ("*",)):
        [one] = read_instances([line], ReadOptions(ignore=ignore))
        assert (one.text, one.labels) == ("wheat", ("grain",))
        with pytest.raises(Malformed, match="unknown field 'labls'; did you mean 'labels'"):
            list(read_instances([b'{"text": "wheat", "labls": "grain", "id": 7}'], ReadOptions(ignore=ignore)))


def test_one_label_may_be_a_string():
    lines = [b'{"text": "a", "labels": "b"}', b'{"text": "a", "label": "b"}', b'{"text": "a", "label": ["b", 7]}']
    assert [one.labels for one in read_instances(lines, ReadOptions())] == [("b",), ("b",), ("b", "7")]


def test_fasttext():
    one, other = read("fasttext", "__label__sauce __label__cheese how much starch\n", "\n", "no __label__ here\n")
    assert (one.labels, one.text) == (("sauce", "cheese"), "how much starch")
    assert (other.labels, other.text, other.line) == ((), "no __label__ here", 3)


@pytest.mark.parametrize(
    ("line", "labels", "text", "features", "weight"),
    [
        ("1 |text how do I", ("1",), "how do I", None, 1),
        ("a,b 2.5 'tag7|title goal |body the end:0.5", ("a", "b"), {"title": "goal", "body": "the"}, {"end": 0.5}, 2.5),
        ("| price:.5 a:b", (), "a:b", {"price": 0.5}, 1),
    ],
    ids=["class", "all parts", "no label"],
)  # fmt: skip
def test_vowpal_wabbit(line, labels, text, features, weight):
    [one] = read("vw", line)
    assert (one.labels, one.text, one.features and json.loads(one.features), one.weight) == (
        labels,
        text,
        features,
        weight,
    )


@pytest.mark.parametrize("line", ["no bar", "1:0.5 2:1 | cost sensitive", "1 x | a"])
def test_other_lines_of_vowpal_wabbit_are_refused(line):
    with pytest.raises(Malformed, match="line 1: "):
        read("vw", line)


@given(st.lists(st.tuples(st.integers(0, 99), st.floats(allow_nan=False, allow_infinity=False)), max_size=5))
def test_numbers_come_through_exactly(pairs):
    line = "0 " + " ".join(f"{key}:{value!r}" for key, value in pairs)
    (instance,) = read("txt", "1 100 1", line)
    found = json.loads(instance.features or b"", object_pairs_hook=list)
    assert found == [(str(key), value) for key, value in pairs] or (found == {} and not pairs)
