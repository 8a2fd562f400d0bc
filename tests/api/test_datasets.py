"""Data sets over HTTP and on the command line, and jobs that are fitted on them."""

import gzip
import io
import json
import math
import socket
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import AsyncMock

import httpx
import numpy as np
import pyarrow
import pytest
from pyarrow import parquet
from typer.testing import CliRunner

from abound.artifacts.zstandard import zstd
from abound.cli.main import app
from abound.client import Client, Refused
from abound.client.local_service import own_service
from abound.datasets.check import counts
from abound.datasets.files import read_file
from abound.datasets.repository import DatasetCard, DatasetRepository
from abound.jobs import fit as fitting_job
from abound_core.config import ModelConfig
from abound_core.errors import Conflict, Malformed, TooLarge
from abound_core.instances.read_options import ReadOptions
from abound_core.instances.vectorizer import Vectorizer
from abound_core.limits import DATASET_LIMITS
from abound_core.methods import fitted as fitting
from abound_core.methods import registry
from abound_core.methods.training.gather import gather
from abound_core.methods.training.progress import no_progress
from tests.api.test_versions import refusing
from tests.jobs.test_fit import Place, instances, same
from tests.support.job_worker import until

ENVIRONMENT = {
    "ABOUND_MAX_BODY_BYTES": "65536",  # of any other request: a connection takes little more than 1 MiB of these
    "ABOUND_MAX_NDJSON_BYTES": "65536",
    "ABOUND_DATASETS_MAX_BYTES": "4000000",
    "ABOUND_DATASETS_TOTAL_BYTES": "5000000",
}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    directory: Path = tmp_path_factory.mktemp("data")
    with own_service(data_dir=directory, worker=True, settings=ENVIRONMENT) as url, Client(url) as client:
        yield Place(client, directory)


@pytest.fixture(autouse=True)
def _empty(place: Place) -> Iterator[None]:
    yield
    for one in place.client.datasets()["datasets"]:
        place.client.delete_dataset(one["name"])
    assert files(place) == []


def files(place: Place) -> list[str]:
    return sorted(path.name for path in place.directory.glob("artifacts/*/datasets/*"))


def lines(n: int, seed: int = 0) -> bytes:
    return b"".join(json.dumps(one).encode() + b"\n" for one in instances(n, seed))


def put(place: Place, name: str, body: bytes, query: str = "", **headers: str) -> httpx.Response:
    return httpx.put(f"{place.client.url}/datasets/{name}{query}", content=body, headers=headers, timeout=60)


SIZES = ("bytes", "instances", "labelled", "features", "classes", "nnz", "assertions")
OF_A_CARD: dict[str, Any] = {"name": "twice.jsonl", "format": "jsonl", "created": 1e9} | dict.fromkeys(SIZES, 20)
TXT = b"3 10 4\n0,2 1:0.5 3:1\n 4:1\n3 9:2\n"


@pytest.mark.parametrize(
    ("name", "body", "said"),
    [
        ("a.jsonl", lines(3) + b'{"text": 1}\n', "line 4: "),
        ("a.jsonl", lines(3) + b'{"features": {"x": 1}, "labels": [""]}\n', "line 4: labels[0]: "),
        ("a.jsonl", lines(3) + b"not json\n", "line 4: "),
        ("a.jsonl", b'{"vector": [1, 2], "labels": ["a"]}\n{"vector": [1], "labels": ["a"]}\n', "line 2: vector: 1 "),
        ("a.txt", b"3 10 4\n0 1:1\n0 11:1\n1 2:2\n", "line 3: "),
        ("a.jsonl.gz", gzip.compress(lines(30), mtime=0)[:-20], "the compressed data are damaged or cut off"),
        ("a.jsonl", b"\n \n", "there are no instances"),
        ("a.jsonl", b'{"text": "a"}\n', "no instance has a label"),
        ("a.jsonl", b'{"text": "a"}\n{"features": {}, "labels": ["a"]}\n', "no instance has a label and an active"),
        ("a.jsonl", lines(3) + b'{"text": "a", "b": %b}\n' % (b"[" * 20_000 + b"]" * 20_000), "line 4: not an"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, name: str, body: bytes, said: str) -> None:
    file = tmp_path / name
    file.write_bytes(body)
    with pytest.raises(Malformed) as refused:
        counts(file, 10**6)
    assert str(refused.value).startswith(said)


LONG_LABEL = b'{"features": {"x": 1}, "labels": ["' + b"a" * 500 + b'"]}\n'


@pytest.mark.parametrize(
    "line", [b"\n", b'{"text": "a b", "labels": ["x"]}\n', LONG_LABEL], ids=["empty", "short", "long"]
)
def test_every_byte_that_unpacks_counts(tmp_path: Path, line: bytes) -> None:
    for name, packed in (("bomb.jsonl.zst", zstd.compress), ("bomb.jsonl.gz", gzip.compress)):
        (tmp_path / name).write_bytes(packed(line * (20_000 // len(line))))
        with pytest.raises(TooLarge, match="decompressed"):
            counts(tmp_path / name, 10_000)


@pytest.mark.parametrize("kind", ["classes", "features"])
def test_too_many_names_are_refused(tmp_path: Path, kind: str) -> None:
    file = tmp_path / "names.jsonl"
    with file.open("w") as writing:
        for i in range(500):
            feature, label = (f"{i:0500}", "x") if kind == "features" else ("x", f"{i:0500}")
            writing.write(json.dumps({"features": {feature: 1}, "labels": [label]}) + "\n")
    assert counts(file, 10**7, 10**6)[kind] == 500
    with pytest.raises(TooLarge, match="names"):
        counts(file, 10**7, 100_000)


def test_a_file_whose_sender_has_gone_before_it_is_checked_is_forgotten(place: Place) -> None:
    url = httpx.URL(place.client.url)
    head = f"PUT /datasets/a.jsonl HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(lines(30))}\r\n\r\n"
    with socket.create_connection((url.host, url.port or 80), timeout=60) as connection:
        connection.sendall(head.encode() + lines(30))
        until(lambda: files(place) != [])
    until(lambda: files(place) == [], 30)
    assert place.client.datasets() == {"datasets": [], "checking": {}}


def test_a_wrong_line_is_refused_and_nothing_is_changed(place: Place) -> None:
    first = put(place, "a", lines(30), **{"content-type": "application/x-ndjson"})
    assert first.status_code == 201, first.text
    told = first.json()
    assert (told["format"], told["compression"], told["instances"], told["bytes"]) == ("jsonl", "", 30, len(lines(30)))
    assert told == place.client.dataset("a")
    assert place.client.datasets() == {"datasets": [told], "checking": {}}
    answer = put(place, "a", lines(3) + b"not json\n", "?filename=x.jsonl")
    assert (answer.status_code, answer.headers["content-type"]) == (422, "application/problem+json")
    assert answer.json()["detail"].startswith("line 4: ")
    assert answer.json()["field"] == "body"
    assert place.client.datasets() == {"datasets": [told], "checking": {}}
    assert len(files(place)) == 1
    again = put(place, "a", gzip.compress(TXT), "?filename=x.txt.gz")
    assert (again.status_code, again.json()["compression"], len(files(place))) == (200, "gz", 1)


def test_limits_of_size_hold(place: Place) -> None:
    large = (lines(2000) * 20)[:4_001_000]
    assert len(large) > 4_000_000
    assert put(place, "large.jsonl", large).status_code == 413
    pieces = (large[at : at + 2**20] for at in range(0, len(large), 2**20))
    with pytest.raises(Refused, match="413"):
        place.client.put_dataset("large.jsonl", pieces=pieces)
    half = large[: large.rindex(b"\n", 0, 2_800_000) + 1]
    assert put(place, "one.jsonl", half).status_code == 201
    answer = put(place, "two.jsonl", half)
    assert (answer.status_code, "5000000 bytes" in answer.text) == (409, True)
    assert len(files(place)) == 1


def test_a_format_that_nothing_tells_is_refused(place: Place) -> None:
    for name, query in (("a", ""), ("a.jsonl", "?filename=x.xlsx"), ("a", "?filename=-")):
        answer = put(place, name, lines(3), query, **{"content-type": "application/octet-stream"})
        assert (answer.status_code, answer.json()["field"]) == (422, "filename")
    assert put(place, "history", lines(3), "?filename=x.jsonl").status_code == 422
    assert put(place, "-a", lines(3), "?filename=x.jsonl").status_code == 422


def test_the_first_rows_are_shown(place: Place) -> None:
    def rows(query: str = "") -> list[dict[str, Any]]:
        answer = httpx.get(f"{place.client.url}/datasets/shown/rows{query}", timeout=60)
        return list(answer.raise_for_status().json()["rows"])

    assert put(place, "shown", TXT, "?filename=a.txt").status_code == 201
    assert rows()[0] == {"text": None, "features": {"1": 0.5, "3": 1.0}, "labels": ["0", "2"]}
    assert put(place, "shown", zstd.compress(lines(30)), "?filename=a.jsonl.zst").status_code == 200
    expected = [{"text": None, "features": None} | one for one in instances(30, 0)]
    assert (rows(), rows("?limit=100")) == (expected[:10], expected)


def test_rows_that_take_too_much_are_left_out(place: Place) -> None:
    row = json.dumps({"text": "a " * 350_000, "labels": ["x"]}).encode() + b"\n"
    assert put(place, "cut", row * 4, "?filename=a.jsonl").status_code == 201
    answer = httpx.get(f"{place.client.url}/datasets/cut/rows", timeout=60).raise_for_status()
    assert 1 <= len(answer.json()["rows"]) < 4


def test_a_table_has_columns(place: Place, tmp_path: Path) -> None:
    file = tmp_path / "tickets.csv"
    file.write_text("subject;topics;id;prio\nbroken screen;hardware|phone;1;3\nlate bill;billing;2;1\n")
    named = ("--text", "subject", "--label", "topics", "--label-separator", "|", "--ignore", "id")
    put_it = ["datasets", "put", str(file), "--url", place.client.url, "--json"]
    result = CliRunner().invoke(app, [*put_it, *named])
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    from_url = CliRunner().invoke(app, [*put_it[:2], file.as_uri(), *put_it[3:], *named])
    assert json.loads(from_url.stdout) | {"upload": told["upload"], "created": told["created"]} == told
    missing = CliRunner().invoke(app, [*put_it[:2], f"{file.as_uri()}.csv", *put_it[3:]])
    assert str(missing.exception) == f"{file.as_uri()}.csv: no such file"
    told = json.loads(from_url.stdout)
    assert {name: told[name] for name in ("name", "format", "instances", "features", "classes", "assertions")} == {
        "name": "tickets", "format": "csv", "instances": 2, "features": 5, "classes": 3, "assertions": 3,
    }  # fmt: skip
    job = place.client.submit({"method": "frequency", "data": "tickets"})
    assert list(place.client.follow(job["id"]))[-1]["state"] == "succeeded"
    again = put(place, "tickets", file.read_bytes(), "?text=title", **{"content-type": "text/csv"})
    assert (again.status_code, again.json()["field"]) == (422, "body")
    assert again.json()["detail"].startswith("line 1: there is no column 'title'")
    again = put(place, "tickets", lines(3), "?filename=a.jsonl&label=topics")
    assert (again.status_code, again.json()["field"]) == (422, "body")
    assert put(place, "tickets", file.read_bytes(), "?filename=a.csv&label_separator=").status_code == 422
    assert place.client.dataset("tickets") == told
    answer = httpx.get(f"{place.client.url}/datasets/tickets/rows", timeout=60)
    (first, _) = answer.raise_for_status().json()["rows"]
    assert first == {"text": "broken screen", "features": {"prio": 3.0}, "labels": ["hardware", "phone"]}


def test_a_parquet_file_equals_its_json_lines(place: Place) -> None:
    given = [one | {"vector": [1.0, i]} for i, one in enumerate(instances(30, 0))]
    as_json = b"".join(json.dumps(one).encode() + b"\n" for one in given)
    out = io.BytesIO()
    names = {name for one in given for name in one["features"]}
    rows = [dict.fromkeys(names) | one["features"] | one | {"features": None} for one in given]
    parquet.write_table(pyarrow.Table.from_pylist(rows), out)
    there = place.client.put_dataset("a.parquet", "columnar", pieces=[out.getvalue()])
    here = place.client.put_dataset("a.jsonl", "lines", pieces=[as_json])
    counts = set(there) - {"name", "upload", "format", "bytes", "created", "options"}
    assert {name: there[name] for name in counts} == {name: here[name] for name in counts}
    (shown, expected) = (
        httpx.get(f"{place.client.url}/datasets/{name}/rows?limit=100", timeout=60).raise_for_status().json()
        for name in ("columnar", "lines")
    )
    assert shown == expected


def test_a_wrong_vector_of_a_parquet_file_is_named(place: Place, tmp_path: Path) -> None:
    place.client.configure("embedded", {"update": "sls"})
    file = tmp_path / "a.parquet"
    learn = ["learn", str(file), "--vector", "emb", "--model", "embedded", "--url", place.client.url]
    for wrong, said in (
        ([0.5, math.nan], "emb: not a list of finite numbers: got `nan` - at `emb[1]`"),
        ([0.5, None], "emb: not a list of numbers: Expected `float`, got `null` - at `emb[1]`"),
        ([0.5], "column emb: vector has 1 numbers; those of this model have 2 (422)"),
    ):
        parquet.write_table(pyarrow.table({"label": ["x", "y", "x"], "emb": [[1.0, 2.0], wrong, [2.0, 1.0]]}), file)
        result = CliRunner().invoke(app, learn)
        assert result.exit_code == 1
        assert f"line 2: {said}" in " ".join(f"{result.output} {result.exception}".split())
    with pytest.raises(Malformed, match="line 2: emb: 1 numbers; the first vector of the file has 2"):
        counts(file, 10**6, options=ReadOptions(vector="emb"))


def test_what_is_not_there_is_not_found(place: Place) -> None:
    for call in (place.client.dataset, place.client.delete_dataset):
        with refusing("no data set", 404):
            call("none")
    with pytest.raises(Refused, match="no data set") as refused:
        place.client.submit({"method": "swnn", "data": "none"})
    assert (refused.value.problem["field"], refused.value.problem["status"]) == ("data", 422)


async def test_a_job_is_fitted_on_a_data_set(place: Place, tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl.zst"
    file.write_bytes(zstd.compress(lines(150)))
    assert place.client.put_dataset(file.name, "rows", pieces=[file.read_bytes()])["instances"] == 150
    job = place.client.submit({"method": "swnn", "data": "rows", "params": {"S": 20, "seed": 7}})
    job = list(place.client.follow(job["id"]))[-1]
    loaded = await place.load(job)
    data = gather(read_file(str(file)), Vectorizer(ModelConfig(), DATASET_LIMITS), DATASET_LIMITS, (1, 2))
    params = registry.params_of("swnn", {"S": 20})
    same(loaded.fitted, fitting.fit("swnn", data, params, np.random.default_rng(7), no_progress, use_idf=True))
    assert (loaded.card.data, loaded.card.data_range) == ("rows", None)
    assert job["data_range"] is None
    assert job["metrics"]["held_out"] == 15


async def test_a_job_learns_from_the_file_that_was_there_when_it_was_asked_for(place, monkeypatch):
    upload = put(place, "twice.jsonl", lines(30)).json()["upload"]
    asked = {"method": "frequency", "data": "twice.jsonl"}
    job = list(place.client.follow(place.client.submit(asked)["id"]))[-1]
    assert (job["state"], job["upload"]) == ("succeeded", upload)
    version = place.client.version("default", job["version"])
    assert (version["data"], version["upload"]) == ("twice.jsonl", upload)
    assert put(place, "twice.jsonl", lines(20)).json()["upload"] != upload
    now = DatasetCard(file="datasets/0123456789abcdef.jsonl.gz", compression="gz", **OF_A_CARD)
    monkeypatch.setattr(DatasetRepository, "get", AsyncMock(return_value=now))
    asked_before = SimpleNamespace(data="twice.jsonl", upload=upload, committed=False, config={})
    context: Any = SimpleNamespace(job=asked_before, living=SimpleNamespace(keys=None), store=None)
    with pytest.raises(Conflict, match=r"the data set twice.* was replaced"):
        await fitting_job.fit(context, cast("Any", "not read before the data"), no_progress)
    assert now.upload == "0123456789abcdef"


def test_a_job_finds_nothing_to_learn_in_words_that_the_model_passes_over(place: Place) -> None:
    assert put(place, "short.jsonl", b'{"text": "no", "labels": ["a"]}\n' * 3).status_code == 201
    place.client.configure("stopping", {"analyzer": {"stop_words": "english"}})
    job = place.client.submit({"method": "swnn", "data": "short.jsonl", "model": "stopping"})
    ended = list(place.client.follow(job["id"]))[-1]
    assert (ended["state"], ended["error"]) == ("failed", "no instance has a label and an active feature")
