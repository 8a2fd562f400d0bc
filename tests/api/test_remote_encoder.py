"""Encoders behind a URL: each way to send texts, what endpoints do wrong, hosts that are not allowed, a restart."""

import json
import threading
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import ThreadingHTTPServer
from typing import Any

import numpy as np
import pytest
from pydantic import SecretStr

from abound.evaluation.live import evaluate
from abound_core.config import ModelConfig
from abound_core.errors import InvalidInstance
from abound_core.instances.data_formats import DatasetInstance
from abound_core.instances.vectorizer import Vectorizer
from abound_core.limits import Limits
from tests.support import stand_in
from tests.support.served import NDJSON, Served, fresh_model, lines, ndjson, problem

D = 8
KEY = "not-for-anyone"
SETTINGS = {"encoder_seconds": 3.0, "encoder_key": SecretStr(KEY)}


def numbers(text: str) -> list[float]:
    return np.sum([np.random.default_rng(zlib.crc32(w.encode())).normal(0, 1, D) for w in text.split()], 0).tolist()


class Endpoint(ThreadingHTTPServer):
    """A server with the embeddings API. ``wrong`` is the status and the body that it answers instead, if any."""

    wrong: tuple[int, bytes] | None = None

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.asked: list[list[str]] = []
        self.keys: set[str | None] = set()
        self.ended = threading.Event()
        self.host = f"127.0.0.1:{self.server_address[1]}"
        self.embed = {"url": f"http://{self.host}/v1/embeddings", "model": "small"}


class Handler(stand_in.JsonHandler):
    protocol_version = "HTTP/1.1"
    server: Endpoint

    def do_POST(self) -> None:
        endpoint = self.server
        texts = self.sent()["input"]
        endpoint.asked.append(texts)
        endpoint.keys.add(self.headers["authorization"])
        made = [{"index": at, "embedding": numbers(text)} for at, text in enumerate(texts)]
        status, body = endpoint.wrong or (200, json.dumps({"data": made[::-1]}).encode())
        if endpoint.ended.wait(8 if body == b"slow" else 0):
            self.close_connection = True
            return
        self.answer(body, status, location=endpoint.embed["url"])


@contextmanager
def running() -> Iterator[Endpoint]:
    endpoint = Endpoint()
    with stand_in.running(endpoint):
        yield endpoint
        endpoint.ended.set()


@pytest.fixture(scope="module")
def endpoint() -> Iterator[Endpoint]:
    with running() as endpoint:
        yield endpoint


def model_of(service: Served, endpoint: Endpoint) -> str:
    return f"/models/{fresh_model(service, update='sls', analyzer={'embed': endpoint.embed})}"


def test_texts_are_encoded_in_few_calls_wherever_they_are_sent(service: Served, endpoint: Endpoint) -> None:
    path, plain = model_of(service, endpoint), f"/models/{fresh_model(service, update='sls')}"
    assert service.http.get(path).json()["config"]["analyzer"]["embed"]["dimension"] == D
    endpoint.asked.clear()
    endpoint.keys.clear()
    given = [{"text": f"{kind} word {i}", "labels": [kind]} for i in range(40) for kind in ("red", "blue")]
    own = [one | {"vector": numbers(str(one["text"]))} for one in given]
    ways, blank = [], {"text": " ", "labels": ["red"], "features": {"f": 1}}
    for model, instances in ((path, given), (plain, own)):
        for body in (instances[0], {"instances": [*instances, blank]}):
            service.http.post(f"{model}/learn", json=body).raise_for_status()
        answers = lines(service.http.post(f"{model}/learn", content=ndjson(*instances, {"text": 1}), headers=NDJSON))
        assert [one.get("status") for one in answers] == [None] * len(given) + [422]
        asked = [{name: one[name] for name in one if name != "labels"} for one in instances[:3]]
        single = [service.http.post(f"{model}/classify", json=one).json()["labels"] for one in asked]
        batch = service.http.post(f"{model}/classify", json={"instances": asked}).json()["results"]
        streamed = lines(service.http.post(f"{model}/classify", content=ndjson(*asked), headers=NDJSON))
        assert [one["labels"] for one in batch] == [one["labels"] for one in streamed] == single
        ways.append(single)
    assert ways[0] == ways[1]
    assert [len(texts) for texts in endpoint.asked][:4] == [1, 32, 32, 16]
    assert max(map(len, endpoint.asked)) == 32
    assert endpoint.keys == {f"Bearer {KEY}"}
    service.http.post(f"{path}/classify", json={"text": {"title": "red", "body": "word 1"}}).raise_for_status()
    service.http.put(f"{path}/labels", json={"labels": [{"label": "green"}]}).raise_for_status()
    assert endpoint.asked[-2:] == [["red\nword 1"], ["green"]]
    analyzer = {"embed": endpoint.embed, "embed_field": "body"}
    titled = f"/models/{fresh_model(service, update='sls', analyzer=analyzer)}/classify"
    service.http.post(titled, json={"text": {"title": "red", "body": "word 1"}}).raise_for_status()
    assert endpoint.asked[-1] == ["word 1"]


def changed(**fields: Any) -> bytes:
    return json.dumps({"data": [{"index": 0, "embedding": [0.5] * D} | fields]}).encode()


WRONG: dict[str, tuple[int, bytes, str]] = {
    "status": (401, f"the key {KEY} is wrong".encode(), "status 401"),
    "redirect": (302, changed(), "status 302"),
    "no JSON": (200, b"<html>", "vectors of 1 to 2048 numbers"),
    "endless": (200, b" " * (9 * 2**20), "more than 8388608 bytes"),
    "deep JSON": (200, b'{"data":' + b"[" * 50_000, "vectors of 1 to 2048 numbers"),
    "other JSON": (200, b'{"embeddings": []}', "vectors of 1 to 2048 numbers"),
    "NaN": (200, changed(embedding=[float("nan")] * D), "vectors of 1 to 2048 numbers"),
    "dimension": (200, changed(embedding=[0.5] * (D - 1)), f"with {D - 1} numbers in place of {D}"),
    "index": (200, changed(index=1), "one vector for each of 1 texts"),
    "slow": (200, b"slow", "has not answered in 3 s"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_an_endpoint_does_wrong_changes_nothing(service, endpoint, monkeypatch, case):
    path = model_of(service, endpoint)
    *wrong, detail = WRONG[case]
    monkeypatch.setattr(endpoint, "wrong", wrong)
    answer = service.http.post(f"{path}/learn", json={"text": "red", "labels": ["a"]})
    told = problem(answer, 503, "encoder-unavailable")["detail"]
    assert f"the encoder at {endpoint.host} has" in told
    assert detail in told
    assert KEY not in answer.text
    assert service.http.get(path).json()["learned"] == 0


def test_a_repeat_with_a_key_may_get_another_vector(service, endpoint, monkeypatch):
    path, body = model_of(service, endpoint), {"text": "red", "labels": ["a"], "key": "k"}
    first = service.http.post(f"{path}/learn", json=body).json()
    monkeypatch.setattr(endpoint, "wrong", (200, changed()))
    assert service.http.post(f"{path}/learn", json=body).json() == first


def test_a_model_without_its_endpoint_answers_what_needs_no_vector(service: Served) -> None:
    with running() as endpoint:
        path = model_of(service, endpoint)
        for text in ("red", "blue"):
            service.http.post(f"{path}/learn", json={"text": text, "labels": [text]}).raise_for_status()
        expected = service.http.post(f"{path}/classify", json={"text": "red"}).json()
    restarted = Served(service.server, encoder_hosts="encoder.example")
    restarted.start()
    asked = {"text": "red", "vector": numbers("red")}
    try:
        for own, why in ((service, "cannot be reached"), (restarted, "is not in ABOUND_ENCODER_HOSTS")):
            assert own.http.post(f"{path}/classify", json=asked | {"vector_model": "small"}).json() == expected
            assert why in problem(own.http.post(f"{path}/classify", json={"text": "red"}), 503)["detail"]
            problem(own.http.post(f"{path}/learn", json={"instances": [asked, {"text": "x"}]}), 503)
            answers = lines(own.http.post(f"{path}/classify", content=ndjson({"text": "red"}, asked), headers=NDJSON))
            assert [one.get("status") for one in answers] == [503, None]
            assert own.http.put(path, json={"analyzer": {"embed": endpoint.embed}, "eta": 0.6}).status_code == 200
            assert own.http.get("/readyz").status_code == 200
    finally:
        restarted.stop()


REFUSED: dict[str, tuple[dict[str, Any], int, str | None]] = {
    "another host": ({"url": "http://192.0.2.1/v1"}, 422, "analyzer.embed.url"),
    "a longer name": ({"url": "http://localhost.example/v1"}, 422, "analyzer.embed.url"),
    "a user": ({"url": "http://127.0.0.1@192.0.2.1/v1"}, 422, "analyzer.embed.url"),
    "a query": ({"url": "http://127.0.0.1/v1?key=1"}, 422, "analyzer.embed.url"),
    "a file": ({"url": "file://127.0.0.1/v1"}, 422, "analyzer.embed.url"),
    "no model": ({"model": ""}, 422, "analyzer.embed.model"),
    "a key": ({"key": "a"}, 422, "analyzer.embed"),
    "no port": ({"url": "http://127.0.0.1:70000/v1"}, 503, None),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_configuration_that_cannot_be_used(service: Served, endpoint: Endpoint, case: str) -> None:
    fields, status, field = REFUSED[case]
    answer = service.http.put("/models/wrong", json={"update": "sls", "analyzer": {"embed": endpoint.embed | fields}})
    assert problem(answer, status).get("field") == field
    problem(service.http.get("/models/wrong"), 404)


def test_another_model_of_vectors_is_refused(service: Served, endpoint: Endpoint) -> None:
    path, asked = model_of(service, endpoint), {"vector": [0.5] * D, "labels": ["a"]}
    for wrong in ({"vector_model": "large"}, {"vector_model": "small", "vector": None, "text": "red"}):
        problem(service.http.post(f"{path}/learn", json=asked | wrong), 422, field="vector_model")
    problem(service.http.post(f"{path}/learn", json=asked | {"vector": [0.5] * (D + 1)}), 422, field="vector")
    service.http.post(f"{path}/learn", json=asked | {"vector_model": "small"}).raise_for_status()
    answer = service.http.put(path, json={"analyzer": {"embed": endpoint.embed | {"model": "large"}}})
    assert "analyzer cannot change on a model that has learned" in problem(answer, 409)["detail"]


def test_instances_of_files_are_encoded(endpoint: Endpoint) -> None:
    config = ModelConfig.from_dict({"update": "sls", "analyzer": {"embed": endpoint.embed}})
    given = [DatasetInstance(text=f"{kind} {i}", labels=(kind,)) for i in range(20) for kind in ("red", "blue")]
    own = [DatasetInstance(text=one.text, vector=numbers(str(one.text)), labels=one.labels) for one in given]
    endpoint.asked.clear()
    assert evaluate(given, given[:9], config)["metrics"] == evaluate(own, own[:9], ModelConfig(update="sls"))["metrics"]
    assert [len(texts) for texts in endpoint.asked] == [32, 8, 9]
    with pytest.raises(InvalidInstance, match="only a service"):
        Vectorizer(config, Limits()).vectorize(None, "red")
