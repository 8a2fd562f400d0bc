"""Compressed requests and answers, and requests from web pages of other origins."""

import gzip
import json
import zlib
from typing import Any

import pytest

from abound.artifacts.zstandard import zstd
from tests.support.served import NDJSON, Served, fresh_model, lines, make_key, ndjson, problem, served

ORIGIN = "https://app.example.com"
SETTINGS = {"cors_origins": f"{ORIGIN}, http://other.example.com", "max_body_bytes": 2**20, "max_ndjson_bytes": 2**21}
LABELS = [f"a label of some length {n:02}" for n in range(50)]
EVENT = {"text": "wheat prices", "labels": LABELS}
CODECS = {"gzip": gzip.compress, "deflate": zlib.compress, "zstd": zstd.compress}


def post(service: Served, path: str, body: bytes, coding: str, **headers: str) -> Any:
    given = {"content-type": "application/json", "content-encoding": coding, **headers}
    return service.http.post(path, content=body, headers=given)


@pytest.mark.parametrize("coding", CODECS)
def test_compressed_requests_are_read(service: Served, coding: str) -> None:
    model = fresh_model(service)
    pack = CODECS[coding]
    assert post(service, f"/models/{model}/learn", pack(json.dumps(EVENT).encode()), coding).status_code == 200
    found = post(service, f"/models/{model}/classify", pack(b'{"text": "wheat"}'), coding.upper())
    assert len(found.json()["labels"]) == 10
    many = pack(ndjson(*[EVENT] * 30)) + (pack(ndjson(*[EVENT] * 12)) if coding != "deflate" else b"")
    answers = lines(post(service, f"/models/{model}/learn", many, coding, **NDJSON))
    assert len(answers) == (30 if coding == "deflate" else 42)  # two members or frames are one body
    put = service.http.put(f"/models/{model}-2", content=pack(b"{}"), headers={"content-encoding": coding})
    assert put.status_code == 201, put.text


@pytest.mark.parametrize("coding", CODECS)
def test_compressed_requests_are_bounded_and_checked(service: Served, coding: str) -> None:
    pack = CODECS[coding]
    body = pack(json.dumps({"text": "a"}).encode())
    problem(post(service, "/classify", pack(b'{"text": "' + b" " * 2**20 + b'"}'), coding), 413, "too-large")
    problem(post(service, "/classify", body[:-2], coding), 400, "malformed")
    problem(post(service, "/classify", body[2:], coding), 400, "malformed")
    problem(post(service, "/classify", b"", coding), 400, "malformed")
    bomb = lines(post(service, "/classify", pack(b'{"text": "a"}\n' + b" " * 2**26), coding, **NDJSON))
    assert bomb[-1]["status"] == 413
    damaged = lines(post(service, "/classify", pack(ndjson({"text": "a"}, {"text": "b"}))[:-2], coding, **NDJSON))
    assert damaged[-1]["status"] == 400
    assert "cut off" in damaged[-1]["detail"]


def test_large_answers_are_compressed_where_the_client_takes_gzip(service: Served) -> None:
    model = fresh_model(service)
    service.http.post(f"/models/{model}/learn", json=EVENT)

    def answer(k: int, accepted: str) -> Any:
        asked = {"json": {"text": "wheat", "k": k}, "headers": {"accept-encoding": accepted}}
        return service.http.post(f"/models/{model}/classify", **asked)

    plain = answer(50, "identity")
    for accepted, packed in (("gzip", True), ("br, gzip;q=0.5", True), ("gzip;q=0", False), ("zstd", False)):
        given = answer(50, accepted)
        assert given.headers.get("content-encoding") == ("gzip" if packed else None)
        assert given.json() == plain.json()
    assert int(answer(50, "gzip").headers["content-length"]) < len(plain.content) / 3
    assert "content-encoding" not in answer(2, "gzip").headers
    stream = service.http.post(f"/models/{model}/classify", content=ndjson(*[{"text": "wheat"}] * 50), headers=NDJSON)
    assert "content-encoding" not in stream.headers
    for method in ("GET", "HEAD"):
        given = service.http.request(method, "/openapi.json", headers={"accept-encoding": "gzip"}).raise_for_status()
        assert ("content-encoding" in given.headers) == (method == "GET")


def test_web_pages_of_named_origins_may_ask(service: Served) -> None:
    asked = {"access-control-request-method": "POST", "access-control-request-headers": "content-type, authorization"}
    for path in ("/classify", "/models"):
        allowed = service.http.options(path, headers={"origin": ORIGIN, **asked}).raise_for_status()
        assert allowed.headers["access-control-allow-origin"] == ORIGIN
        assert "authorization" in allowed.headers["access-control-allow-headers"]
        refused = service.http.options(path, headers={"origin": "https://evil.example.com", **asked})
        assert "access-control-allow-origin" not in refused.headers
    for method, path in (("POST", "/classify"), ("GET", "/models")):
        body = {"json": {"text": "a"}} if method == "POST" else {}
        answer = service.http.request(method, path, headers={"origin": ORIGIN}, **body).raise_for_status()
        assert answer.headers["access-control-allow-origin"] == ORIGIN
        foreign = service.http.request(method, path, headers={"origin": "https://evil.example.com"}, **body)
        assert "ABOUND_CORS_ORIGINS" in problem(foreign, 403, "forbidden")["detail"]
        assert "access-control-allow-origin" not in foreign.headers


def test_with_a_key_any_origin_can_be_named() -> None:
    with served(cors_origins="*") as service:
        key = make_key(service, "classify")
        headers = {"origin": "https://anywhere.example.com", "authorization": f"Bearer {key.secret}"}
        answer = service.http.post("/classify", json={"text": "a"}, headers=headers).raise_for_status()
        assert answer.headers["access-control-allow-origin"] == "*"
        refused = service.http.post("/classify", json={"text": "a"}, headers={"origin": headers["origin"]})
        problem(refused, 401, "unauthorized")
        assert refused.headers["access-control-allow-origin"] == "*"  # so that the page can read why
