"""Limits of requests that no other file tries, each at its edge."""

import json
import re
import select
import socket
from typing import Any

import pytest

from abound.api import request_body
from tests.support.served import NDJSON, Served, lines, problem, served

ONE = {"features": {"f": 1}}
LABELLED = ONE | {"labels": ["a"]}

SETTINGS = {"max_batch": 20, "max_body_bytes": 3_000_000}


@pytest.mark.parametrize(("path", "instance"), [("/classify", ONE), ("/learn", LABELLED)])
def test_a_batch_is_bounded(service: Served, path: str, instance: dict[str, Any]) -> None:
    assert service.http.post(path, json={"instances": [instance] * 20}).status_code == 200
    problem(service.http.post(path, json={"instances": [instance] * 21}), 422, "invalid-field", "instances")


@pytest.mark.parametrize("path", ["/classify", "/learn"])
def test_a_line_is_bounded(service: Served, path: str) -> None:
    good = json.dumps(LABELLED if path == "/learn" else ONE).encode()
    long = good + b" " * (3_000_000 - len(good))
    answers = lines(service.http.post(path, content=b"\n".join([good, long, long + b" ", good]), headers=NDJSON))
    assert [answer.get("status") for answer in answers] == [None, None, 413, None]
    assert answers[2]["line"] == 3


def test_a_text_is_bounded(service: Served) -> None:
    text = "a" * 500 + " " + "b " * (2**19 - 251)
    assert len(text) < 2**20
    assert service.http.post("/classify", json={"text": text}).status_code == 200
    problem(service.http.post("/classify", json={"text": "b " * 2**19 + "c"}), 422, "invalid-field", "text")


def test_a_text_is_bounded_after_normalization(service: Served) -> None:
    found = service.http.post("/classify", json={"text": "\ufdfa" * 50_000})  # 18 characters each, normalized
    problem(found, 422, "invalid-field", "text")
    assert "normalised" in found.json()["detail"]


def test_what_is_asked_for_is_bounded(service: Served) -> None:
    for field, most in (("k", 1000), ("include", ["a"] * 10_000), ("exclude", ["a"] * 10_000)):
        over = most + 1 if isinstance(most, int) else [*most, "a"]
        assert service.http.post("/classify", json=ONE | {field: most}).status_code == 200
        problem(service.http.post("/classify", json=ONE | {field: over}), 422, "invalid-field", field)


def test_bodies_held_at_once_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_body, "MAX_BODIES_BYTES", 1_000_000)
    with served() as service:
        head = b"POST /classify HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2000000\r\n\r\n"
        with socket.create_connection(("127.0.0.1", service.port), timeout=20) as one:
            one.sendall(head + b"x" * 900_000)
            with socket.create_connection(("127.0.0.1", service.port), timeout=20) as other:
                other.sendall(head + b"x" * 900_000)
                [first, *_], _, _ = select.select([one, other], [], [], 20)
                answer = first.recv(65_536)
                assert answer.startswith(b"HTTP/1.1 503"), answer
                assert b"/problems/overloaded" in answer
                assert b"retry-after: 1" in answer.lower()
        assert service.http.post("/classify", json=ONE).status_code == 200


def test_no_request_but_a_configuration_has_a_field_for_a_url(service: Served) -> None:
    document = service.http.get("/openapi.json").json()
    bodies = [operation.get("requestBody") for item in document["paths"].values() for operation in item.values()]
    bodies += [document["components"]["schemas"][name] for name in ("ClassifyRequest", "LearnRequest")]
    fields = set(re.findall(r'"(\w+)": \{', json.dumps(bodies)))
    assert len(fields) > 20
    found = {field for field in fields if re.search("url|uri|path|host", field, re.IGNORECASE)}
    assert found == {"url"}  # of an encoder, whose host must be in a setting
