"""Encoders behind a URL: each way to send texts, what endpoints do wrong, hosts that are not allowed, a restart."""

from __future__ import annotations

import json
import threading
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np
import pytest
from pydantic import SecretStr

from abound.evaluation.live import evaluate
from abound_core.config import ModelConfig
from abound_core.errors import InvalidInstance
from abound_core.instances.data_formats import DatasetInstance
from abound_core.instances.dense_vector import quantize
from abound_core.instances.record import dense_of
from abound_core.instances.vectorizer import Vectorizer
from abound_core.limits import Limits
from tests.support.served import NDJSON, Served, fresh_model, lines, ndjson, problem, served

D = 8
KEY = "not-for-anyone"


def numbers(text: str) -> list[float]:
    return np.sum([np.random.default_rng(zlib.crc32(w.encode())).normal(0, 1, D) for w in text.split()], 0).tolist()


def vectors(texts: list[str]) -> list[dict[str, Any]]:
    made = [{"index": at, "embedding": numbers(text)} for at, text in enumerate(texts)]
    return made[::-1]  # the order is not promised


class Endpoint:
    """A server with the embeddings API. ``answer`` makes status and body of an answer from the texts."""

    def __init__(self) -> None:
        self.answer = self.good
        self.asked: list[list[str]] = []
        self.keys: set[str | None] = set()
        self.ended = threading.Event()  # set at the end: nothing is answered any more
        endpoint = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                if endpoint.ended.is_set():
                    self.close_connection = True
                    return
                texts = json.loads(self.rfile.read(int(self.headers["content-length"])))["input"]
                endpoint.asked.append(texts)
                endpoint.keys.add(self.headers["authorization"])
                status, body = endpoint.answer(texts)
                self.send_response(status)
                self.send_header("content-length", str(len(body)))
                if status == 302:
                    self.send_header("location", endpoint.url)
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.host = f"127.0.0.1:{self.server.server_address[1]}"
        self.url = f"http://{self.host}/v1/embeddings"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def good(self, texts: list[str]) -> tuple[int, bytes]:
        return 200, json.dumps({"data": vectors(texts)}).encode()

    def slow(self, texts: list[str]) -> tuple[int, bytes]:
        self.ended.wait(8)
        return self.good(texts)


@contextmanager
def running() -> Iterator[Endpoint]:
    endpoint = Endpoint()
    try:
        yield endpoint
    finally:
        endpoint.ended.set()
        endpoint.server.shutdown()
        endpoint.server.server_close()


def analyzer(endpoint: Endpoint, **others: Any) -> dict[str, Any]:
    return {"embed": {"url": endpoint.url, "model": "small"} | others}


@pytest.fixture(scope="module")
def endpoint() -> Iterator[Endpoint]:
    with running() as endpoint:
        yield endpoint


@pytest.fixture(scope="module")
def service() -> Iterator[Served]:
    with served(encoder_seconds=3.0, encoder_key=SecretStr(KEY)) as service:
        yield service


def test_texts_are_encoded_in_few_calls_wherever_they_are_sent(service: Served, endpoint: Endpoint) -> None:
    model = fresh_model(service, update="sls", analyzer=analyzer(endpoint))
    path, plain = f"/models/{model}", fresh_model(service, update="sls")
    assert service.http.get(path).json()["config"]["analyzer"]["embed"]["dimension"] == D
    endpoint.asked.clear()
    given = [{"text": f"{kind} word {i}", "labels": [kind]} for i in range(40) for kind in ("red", "blue")]
    own = [one | {"vector": numbers(one["text"])} for one in given]
    keyed, fields = given[0] | {"key": "a"}, {"text": {"title": "red", "body": "word 1"}}
    learned = {
        "single": [keyed, keyed],
        "batch": [{"instances": [*given, {"text": " ", "labels": ["red"], "features": {"f": 1}}]}],
    }
    for body in [*learned["single"], *learned["batch"]]:
        service.http.post(f"{path}/learn", json=body).raise_for_status()
    answers = lines(service.http.post(f"{path}/learn", content=ndjson(*given, {"text": 1}), headers=NDJSON))
    assert [one.get("status") for one in answers] == [None] * len(given) + [422]
    assert [len(texts) for texts in endpoint.asked] == [1, 1, 32, 32, 16, 32, 32, 16]
    assert endpoint.keys == {f"Bearer {KEY}"}
    for body in (own[0], {"instances": [*own, {"features": {"f": 1}, "labels": ["red"]}]}, {"instances": own}):
        service.http.post(f"/models/{plain}/learn", json=body).raise_for_status()
    asked = [one["text"] for one in given[:3]]
    expected = [
        service.http.post(f"/models/{plain}/classify", json={"text": one, "vector": numbers(one)}).json()["labels"]
        for one in asked
    ]
    bodies = [{"text": one} for one in asked]
    assert [service.http.post(f"{path}/classify", json=one).json()["labels"] for one in bodies] == expected
    batch = service.http.post(f"{path}/classify", json={"instances": bodies}).json()["results"]
    streamed = lines(service.http.post(f"{path}/classify", content=ndjson(*bodies), headers=NDJSON))
    assert [one["labels"] for one in batch] == [one["labels"] for one in streamed] == expected
    service.http.post(f"{path}/classify", json=fields).raise_for_status()
    assert endpoint.asked[-1] == ["red\nword 1"]
    service.http.put(f"{path}/labels", json={"labels": [{"label": "green"}]}).raise_for_status()
    assert endpoint.asked[-1] == ["green"]


def answering(status: int, body: Any) -> Callable[[list[str]], tuple[int, bytes]]:
    return lambda texts: (status, body if isinstance(body, bytes) else json.dumps(body).encode())


def changed(**fields: Any) -> bytes:
    return json.dumps({"data": [{"index": 0, "embedding": [0.5] * D} | fields]}).encode()


WRONG: dict[str, tuple[Any, str]] = {
    "status": (answering(401, {"error": f"the key {KEY} is wrong"}), "status 401"),
    "redirect": (answering(302, b""), "status 302"),
    "no JSON": (answering(200, b"<html>"), "vectors of 1 to 2048 numbers"),
    "other JSON": (answering(200, {"embeddings": []}), "vectors of 1 to 2048 numbers"),
    "NaN": (answering(200, changed(embedding=[float("nan")] * D)), "vectors of 1 to 2048 numbers"),
    "dimension": (answering(200, changed(embedding=[0.5] * (D - 1))), f"with {D - 1} numbers in place of {D}"),
    "index": (answering(200, changed(index=1)), "one vector for each of 1 texts"),
    "no vector": (answering(200, {"data": []}), "one vector for each of 1 texts"),
    "slow": (None, "has not answered in 3 s"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_an_endpoint_does_wrong_changes_nothing(service: Served, endpoint: Endpoint, case: str) -> None:
    model = fresh_model(service, update="sls", analyzer=analyzer(endpoint))
    wrong, detail = WRONG[case]
    endpoint.answer = wrong or endpoint.slow
    try:
        answer = service.http.post(f"/models/{model}/learn", json={"text": "red", "labels": ["a"]})
    finally:
        endpoint.answer = endpoint.good
    told = problem(answer, 503, "encoder-unavailable")["detail"]
    assert f"the encoder at {endpoint.host} has" in told
    assert detail in told
    assert KEY not in answer.text
    assert service.learned(model) == 0


def test_a_model_without_its_endpoint_answers_what_needs_no_vector(service: Served) -> None:
    with running() as endpoint:
        model = fresh_model(service, update="sls", analyzer=analyzer(endpoint))
        path, config = f"/models/{model}", service.http.get(f"/models/{model}").json()["config"]
        for text in ("red", "blue"):
            service.http.post(f"{path}/learn", json={"text": text, "labels": [text]}).raise_for_status()
        classified = service.http.post(f"{path}/classify", json={"text": "red"}).json()
    restarted = Served(service.server, encoder_hosts="encoder.example")
    restarted.start()
    try:
        asked = {"text": "red", "vector": numbers("red")}
        for own, why in ((service, "cannot be reached"), (restarted, "is not in ABOUND_ENCODER_HOSTS")):
            assert own.http.post(f"{path}/classify", json=asked | {"vector_model": "small"}).json() == classified
            assert why in problem(own.http.post(f"{path}/classify", json={"text": "red"}), 503)["detail"]
            problem(own.http.post(f"{path}/learn", json={"instances": [asked, {"text": "x"}]}), 503)
            streamed = ndjson(*({**one, "labels": ["red"]} for one in ({"text": "red"}, asked)))
            answers = lines(own.http.post(f"{path}/learn", content=streamed, headers=NDJSON))
            assert [one.get("status") for one in answers] == [503, None]
            classified = own.http.post(f"{path}/classify", json=asked).json()
            same = {"analyzer": analyzer(endpoint)}
            assert own.http.put(path, json=same | {"margin": 0.0}).json()["config"] == config
            assert own.http.get("/readyz").status_code == 200
    finally:
        restarted.stop()


REFUSED: dict[str, tuple[dict[str, Any], int, str | None]] = {
    "another host": ({"url": "http://192.0.2.1/v1"}, 422, "analyzer.embed.url"),
    "a name that is not in the list": ({"url": "http://localhost.example/v1"}, 422, "analyzer.embed.url"),
    "a user": ({"url": "http://127.0.0.1@192.0.2.1/v1"}, 422, "analyzer.embed.url"),
    "a query": ({"url": "http://127.0.0.1/v1?key=1"}, 422, "analyzer.embed.url"),
    "a file": ({"url": "file://127.0.0.1/v1"}, 422, "analyzer.embed.url"),
    "no model": ({"model": ""}, 422, "analyzer.embed.model"),
    "a key": ({"key": "a"}, 422, "analyzer.embed"),
    "nobody answers": ({"url": "http://127.0.0.1:9/v1"}, 503, None),
    "no port": ({"url": "http://127.0.0.1:70000/v1"}, 503, None),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_configuration_that_cannot_be_used(service: Served, endpoint: Endpoint, case: str) -> None:
    fields, status, field = REFUSED[case]
    given = {"update": "sls", "analyzer": analyzer(endpoint, **fields)}
    answer = service.http.put("/models/wrong", json=given)
    assert problem(answer, status).get("field") == field
    problem(service.http.get("/models/wrong"), 404)


def test_another_model_of_vectors_is_refused(service: Served, endpoint: Endpoint) -> None:
    model = fresh_model(service, update="sls", analyzer=analyzer(endpoint))
    path, asked = f"/models/{model}", {"vector": [0.5] * D, "labels": ["a"]}
    for wrong in ({"vector_model": "large"}, {"vector_model": "small", "vector": None, "text": "red"}):
        problem(service.http.post(f"{path}/learn", json=asked | wrong), 422, field="vector_model")
    problem(service.http.post(f"{path}/learn", json=asked | {"vector": [0.5] * (D + 1)}), 422, field="vector")
    service.http.post(f"{path}/learn", json=asked | {"vector_model": "small"}).raise_for_status()
    answer = service.http.put(path, json={"analyzer": analyzer(endpoint, model="large")})
    assert "analyzer cannot change on a model that has learned" in problem(answer, 409)["detail"]


def test_instances_of_files_are_encoded(endpoint: Endpoint) -> None:
    config = ModelConfig.from_dict({"update": "sls", "analyzer": analyzer(endpoint)})
    plain = ModelConfig.from_dict({"update": "sls"})
    given = [DatasetInstance(text=f"{kind} {i}", labels=(kind,)) for i in range(20) for kind in ("red", "blue")]
    own = [DatasetInstance(text=one.text, vector=numbers(str(one.text)), labels=one.labels) for one in given]
    endpoint.asked.clear()
    assert evaluate(given, given[:9], config)["metrics"] == evaluate(own, own[:9], plain)["metrics"]
    assert [len(texts) for texts in endpoint.asked] == [32, 8, 9]
    with pytest.raises(InvalidInstance, match="only a service"):
        Vectorizer(config, Limits()).vectorize(None, "red")
    vector = Vectorizer(config, Limits()).vectorize(None, "red", quantize(np.array(numbers("red"))))
    assert dense_of(vector) is not None
