"""One value has one meaning at every door; the table is ``docs/reference/values.md``."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest

from abound.client import Client
from abound.client.estimator import AboundClassifier
from abound.datasets.files import read_file
from tests.support.served import NDJSON, Served, fresh_model, lines, ndjson, problem

Instance = dict[str, Any]


def by_learn(service: Served, model: str, instance: Instance, _: Path) -> None:
    service.http.post(f"/models/{model}/learn", content=dumped(instance)).raise_for_status()


def by_ndjson(service: Served, model: str, instance: Instance, _: Path) -> None:
    answer = service.http.post(f"/models/{model}/learn", content=b"\xef\xbb\xbf" + dumped(instance), headers=NDJSON)
    assert "offset" in lines(answer)[0], answer.text


def by_json_lines(service: Served, model: str, instance: Instance, folder: Path) -> None:
    (folder / "one.jsonl").write_bytes(b"\xef\xbb\xbf" + dumped(instance))
    for one in read_file(str(folder / "one.jsonl")):
        service.http.post(f"/models/{model}/learn", content=one.to_json()).raise_for_status()


def by_client(service: Served, model: str, instance: Instance, _: Path) -> None:
    with Client(service.url) as client:
        assert [one.rank for one in client.model(model).learn_many([instance])] == [None]


def dumped(instance: Instance) -> bytes:
    """Return JSON with null for NaN."""
    return json.dumps(instance, default=lambda number: number.item()).replace("NaN", "null").encode()


DOORS = {"learn": by_learn, "ndjson": by_ndjson, "json lines": by_json_lines, "client": by_client}
X = {"features": {"x": 1}}
CASES: dict[str, tuple[Instance, list[str], set[str]]] = {
    "missing values": (
        {"features": {"n": None, "m": np.float32("nan"), "e": "", "s": " ", "l": ["a", None]}, "labels": ["g", None]},
        ["g"],
        {"l=a"},
    ),
    "numbers as labels": (X | {"labels": [3, 3.0, "3", "3.0"]}, ["3", "3.0"], {"x"}),
    "spaces": (X | {"labels": ["a b ", "a\u00a0b", "a\u200b b", "a  b"]}, ["a b", "a  b"], {"x"}),
    "composition": (X | {"labels": ["Cafe\u0301", "Caf\u00e9", "CAFÉ"]}, ["Café", "CAFÉ"], {"x"}),
    "names and strings": ({"features": {" a\u00a0b ": "c\u200b d\n"}, "labels": ["g"]}, ["g"], {"a b=c d"}),
    "exact values": ({"features": {"n": 12.50}, "labels": ["g"]}, ["g"], {"n", "n@3", "n=12.5"}),
    "case": ({"text": "STRASSE straße İstanbul istanbul", "labels": ["g"]}, ["g"], {"strasse", "istanbul"}),
    "a missing field": ({"text": {"title": None, "body": "b"}, "labels": ["g"]}, ["g"], {"b", "body:b"}),
}  # fmt: skip


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("case", CASES)
def test_a_value_means_the_same_at_every_door(service: Served, tmp_path: Path, case: str, door: str) -> None:
    instance, labels, features = CASES[case]
    model = fresh_model(service, w_min=0.0)
    DOORS[door](service, model, instance, tmp_path)
    path = f"/models/{model}"
    assert service.http.get(f"{path}/labels").json()["labels"] == labels
    found = service.http.get(f"{path}/label", params={"name": f" {labels[0]}\u200b"}).json()
    assert {one["feature"] for one in found["features"]} == features
    for filters in ({"include": instance["labels"]}, {"exclude": ["\u00a0 "]}):
        asked = {name: instance[name] for name in ("features", "text") if name in instance} | filters
        answer = service.http.post(f"{path}/classify", content=dumped(asked)).json()
        assert {one["label"] for one in answer["labels"]} == set(labels)


def test_registered_labels_follow_the_same_rule(service: Served, model: str) -> None:
    labels = [{"label": "a\u00a0b ", "name": "A", "parent": "c "}, {"label": 3.0}]
    service.http.put(f"/models/{model}/labels", json={"labels": labels}).raise_for_status()
    answer = service.http.get(f"/models/{model}/labels").json()
    assert answer["labels"] == ["a b", "c", "3"]  # a parent is a label
    assert answer["details"]["a b"]["parent"] == "c"
    twice = {"labels": [{"label": "d"}, {"label": "d "}]}
    problem(service.http.put(f"/models/{model}/labels", json=twice), 422, field="labels[1].label")


def test_a_model_that_does_not_normalize_takes_labels_as_they_are(service: Served) -> None:
    model = fresh_model(service, normalize=False)
    service.post(f"/models/{model}/learn", features={"a ": "b "}, labels=["x ", "x", 3.0])
    assert service.http.get(f"/models/{model}/labels").json()["labels"] == ["x ", "x", "3"]


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity"])
def test_nan_in_json_is_refused_with_what_to_write(service: Served, model: str, number: str) -> None:
    body = f'{{"features": {{"n": {number}}}, "labels": ["a"]}}'.encode()
    answer = service.http.post(f"/models/{model}/learn", content=body)
    assert "write null" in problem(answer, 400, "malformed")["detail"]


LONG = {"text": " ".join(f"w{n}" for n in range(10_001)) + " w0"}


@pytest.mark.parametrize("path", ["learn", "classify"])
def test_long_texts_are_cut_with_a_warning(service: Served, model: str, path: str) -> None:
    given = LONG | ({"labels": ["a"]} if path == "learn" else {})
    url = f"/models/{model}/{path}"
    single = service.http.post(url, json=given).json()
    batch = service.http.post(url, json={"instances": [X | {"labels": ["b"]} if path == "learn" else X, given]}).json()
    first, second = lines(service.http.post(url, content=ndjson(given, given), headers=NDJSON))
    assert single["warning"] == batch["warning"] == first["warning"]
    assert "only the 10000 most frequent are used" in single["warning"]
    assert "warning" not in second


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_cells_of_a_table_mean_what_they_mean_elsewhere(service: Served, model: str, tmp_path: Path, kind: str) -> None:
    row = {"label": "New\u00a0York ", "a\u00a0b": "c\u200b d", "n": 12.5, "empty": None, "blank": " "}
    table, file = pa.Table.from_pylist([row] * 3), tmp_path / f"rows.{kind}"
    pa.csv.write_csv(table, file) if kind == "csv" else pa.parquet.write_table(table, file)
    for one in read_file(str(file)):
        service.http.post(f"/models/{model}/learn", content=one.to_json()).raise_for_status()
    found = service.http.get(f"/models/{model}/label", params={"name": "New York"}).json()
    assert (found["learned"], {one["feature"] for one in found["features"]}) == (3, {"a b=c d", "n", "n@3", "n=12.5"})


def test_the_estimator_takes_classes_that_look_alike_for_one() -> None:
    X = [{"a": 1, "n": None}, {"a": 1, "n": math.nan}, {"b": 1}]
    classifier = AboundClassifier().fit(X, ["x ", "x\u200b", "y"])
    assert [one.strip(" \u200b") for one in classifier.predict(X)] == ["x", "x", "y"]
    assert AboundClassifier().fit(X, [3.0, 3.0, 4.0]).predict(X).tolist() == [3.0, 3.0, 4.0]
