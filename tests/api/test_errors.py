"""Wrong requests of every kind: each is a problem document, and nothing of it is learned."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from abound.api.problems import install, problem_of
from abound_core.errors import OutcomeUnknown
from tests.support.served import Served, fresh_model, problem, served

GOOD = b'{"features": {"f": 1}, "labels": ["a"]}'


@pytest.fixture(scope="module")
def service() -> Iterator[Served]:
    with served(max_body_bytes=200_000) as service:
        yield service


@pytest.fixture(scope="module")
def model(service: Served) -> str:
    return fresh_model(service)


def learn(service: Served, model: str, body: bytes, **headers: str) -> httpx.Response:
    sent = {"content-type": "application/json"} | {name.replace("_", "-"): value for name, value in headers.items()}
    return service.http.post(f"/models/{model}/learn", content=body, headers=sent)


@pytest.mark.parametrize(
    ("path", "field", "noun"), [("/models", "model", "a model"), ("/datasets", "dataset", "a data set")]
)
def test_a_wrong_name_is_refused_with_the_rule_of_names(service: Served, path: str, field: str, noun: str) -> None:
    said = problem(service.http.get(f"{path}/my%20news"), 422, "invalid-field", field)["detail"]
    assert (
        said == f"{noun}'s name must begin with a letter or digit and have up to 64 letters, digits, '_', '.' and '-'"
    )


MALFORMED = {
    "empty": b"",
    "blank": b" \n ",
    "cut off": b'{"features": {"f": 1}, "labels": ["a"',
    "trailing": GOOD + b" x",
    "two": GOOD + GOOD,
    "comma": b'{"features": {"f": 1}, "labels": ["a"],}',
    "single quotes": b"{'text': 'a', 'labels': ['b']}",
    "text": b"hello",
    "byte order mark": b"\xef\xbb\xbf" + GOOD,
    "utf-16": GOOD.decode().encode("utf-16"),
    "zeros": b"\0" * 100,
    "nan": b'{"features": {"f": NaN}, "labels": ["a"]}',
    "infinity": b'{"features": {"f": Infinity}, "labels": ["a"]}',
    "leading zero": b'{"features": {"f": 01}, "labels": ["a"]}',
    "control character": b'{"text": "a\x01", "labels": ["b"]}',
    "bad escape": b'{"text": "\\x", "labels": ["b"]}',
    "lone surrogate in text": b'{"text": "\\ud800", "labels": ["b"]}',
    "lone surrogate in a label": b'{"text": "a", "labels": ["\\udc00"]}',
    "bad utf-8 in text": b'{"text": "a\xff", "labels": ["b"]}',
    "bad utf-8 in a label": b'{"text": "a", "labels": ["b\xc3"]}',
    "bad utf-8 in a feature": b'{"features": {"\xff": 1}, "labels": ["b"]}',
    "bad utf-8 in a value": b'{"features": {"f": "\xed\xa0\x80"}, "labels": ["b"]}',
    "bad utf-8 in a field": b'{"\xff": 1}',
    "deep": b'{"features": {"f": ' + b"[" * 90_000 + b"]" * 90_000 + b'}, "labels": ["b"]}',
    "deep objects": b'{"a":' * 30_000 + b"1" + b"}" * 30_000,
}


@pytest.mark.parametrize("body", MALFORMED.values(), ids=MALFORMED.keys())
def test_what_is_not_json_is_malformed(service: Served, model: str, body: bytes) -> None:
    answer = learn(service, model, body)
    if answer.status_code == 422:  # a wrong field may be seen before the end of what is no JSON
        problem(answer, 422, "invalid-field")
    else:
        problem(answer, 400, "malformed")
    classified = service.http.post(f"/models/{model}/classify", content=body)
    assert classified.status_code in (400, 422)
    assert service.learned(model) == 0


@pytest.mark.parametrize("name", ["empty", "cut off", "trailing", "nan", "bad utf-8 in text", "bad utf-8 in a feature"])
def test_and_these_always_are(service: Served, model: str, name: str) -> None:
    problem(learn(service, model, MALFORMED[name]), 400, "malformed")


INVALID: dict[str, tuple[bytes, str]] = {
    "list": (b"[]", ""),
    "null": (b"null", ""),
    "number": (b"1", ""),
    "no instance": (b'{"labels": ["a"]}', "features"),
    "null instance": (b'{"labels": ["a"], "features": null, "text": null}', "features"),
    "no labels": (b'{"text": "a"}', "labels"),
    "null labels": (b'{"text": "a", "labels": null}', "labels"),
    "empty labels": (b'{"text": "a", "labels": []}', "labels"),
    "empty label": (b'{"text": "a", "labels": ["b", ""]}', "labels[1]"),
    "label of another type": (b'{"text": "a", "labels": ["b", 3]}', "labels[1]"),
    "labels of another type": (b'{"text": "a", "labels": "b"}', "labels"),
    "long label": (b'{"text": "a", "labels": ["' + b"x" * 513 + b'"]}', "labels[0]"),
    "long label in bytes": (b'{"text": "a", "labels": ["' + "é".encode() * 257 + b'"]}', "labels[0]"),
    "many labels": (b'{"text": "a", "labels": [' + b",".join(b'"%d"' % i for i in range(101)) + b"]}", "labels"),
    "text of another type": (b'{"text": 5, "labels": ["a"]}', "text"),
    "features of another type": (b'{"features": [1], "labels": ["a"]}', "features"),
    "features as text": (b'{"features": "a", "labels": ["a"]}', "features"),
    "null value": (b'{"features": {"f": null}, "labels": ["a"]}', "features.f"),
    "object value": (b'{"features": {"f": {"g": 1}}, "labels": ["a"]}', "features.f"),
    "mixed list": (b'{"features": {"f": ["a", 1]}, "labels": ["a"]}', "features.f"),
    "nested list": (b'{"features": {"f": [["a"]]}, "labels": ["a"]}', "features.f"),
    "number list": (b'{"features": {"f": [1, 2]}, "labels": ["a"]}', "features.f"),
    "empty key": (b'{"features": {"": 1}, "labels": ["a"]}', "features"),
    "long key": (b'{"features": {"' + b"k" * 513 + b'": 1}, "labels": ["a"]}', "features." + "k"),
    "long value": (b'{"features": {"f": "' + b"v" * 512 + b'"}, "labels": ["a"]}', "features.f"),
    "overflow": (b'{"features": {"f": 1e999}, "labels": ["a"]}', "features.f"),
    "many features": (
        b'{"features": {' + b",".join(b'"f%d":1' % i for i in range(10_001)) + b'}, "labels": ["a"]}',
        "features",
    ),
    "unknown field": (b'{"text": "a", "labels": ["a"], "strength": 2}', "strength"),
    "unknown field with a strange name": (b'{"text": "a", "labels": ["a"], "a`b.c\\u00e9": 2}', "a`b.cé"),
}


EMPTY = {
    "nothing active": (b'{"features": {"f": 0, "g": -3, "h": false, "i": []}, "labels": ["a"]}', "features"),
    "empty features": (b'{"features": {}, "labels": ["a"]}', "features"),
    "empty text": (b'{"text": "  ", "labels": ["a"]}', "text"),
}


@pytest.mark.parametrize(("body", "field"), EMPTY.values(), ids=EMPTY.keys())
def test_an_instance_without_features_is_told_from_a_wrong_one(
    service: Served, model: str, body: bytes, field: str
) -> None:
    problem(learn(service, model, body), 422, "no-features", field)
    problem(learn(service, model, b'{"instances": [' + body + b"]}"), 422, "no-features", f"instances[0].{field}")
    assert service.learned(model) == 0


@pytest.mark.parametrize(
    "body",
    [
        rb'{"text": "wheat \ud83d", "labels": ["b"]}',
        rb'{"text": "\ude00 wheat", "labels": ["b"]}',
        rb'{"text": "\ud83d\u0061", "labels": ["b"]}',
        rb'{"text": "a", "labels": ["\ud83d"]}',
    ],
    ids=["at the end", "second half", "before a letter", "label"],
)
def test_half_of_a_surrogate_pair_is_named(service: Served, model: str, body: bytes) -> None:
    assert "half of a surrogate pair" in problem(learn(service, model, body), 400, "malformed")["detail"]
    cut = problem(learn(service, model, rb'{"text": "\ud83d\ude00", "labels": ["b"]'), 400, "malformed")
    assert "truncated" in cut["detail"]
    assert service.learned(model) == 0


@pytest.mark.parametrize(("body", "field"), INVALID.values(), ids=INVALID.keys())
def test_a_wrong_field_is_named(service: Served, model: str, body: bytes, field: str) -> None:
    found = problem(learn(service, model, body), 422, "invalid-field")
    assert found.get("field", "").startswith(field)
    if field:
        assert found["field"] == field or field.startswith("features")
    assert service.learned(model) == 0


@pytest.mark.parametrize(
    "body",
    [b'{"text": "a", "label": ["a"]}', b'{"instances": [{"text": "a", "label": ["a"]}]}'],
    ids=["single", "batch"],
)
def test_the_field_that_was_meant_is_named(service: Served, model: str, body: bytes) -> None:
    assert problem(learn(service, model, body), 422)["detail"].endswith("; did you mean labels?")


@pytest.mark.parametrize(
    "body",
    [
        b'{"features": {' + b",".join(b'"f%d":1' % i for i in range(10_000)) + b'}, "labels": ["a"]}',
        b'{"features": {"' + b"k" * 512 + b'": 1}, "labels": ["' + b"l" * 512 + b'"]}',
        b'{"text": "a", "labels": [' + b",".join(b'"%d"' % i for i in range(100)) + b"]}",
        '{"features": {"ключ": "значение", "\\ud83d\\ude00": 1e-300}, "labels": ["\\u0000", "метка"]}'.encode(),
        b'\r\n\t{"labels":["a"],"features":{"f":1e308,"g":1}}\n',
    ],
    ids=["features", "lengths", "labels", "unicode", "numbers"],
)
def test_what_is_just_within_the_bounds_is_learned(service: Served, body: bytes) -> None:
    name = fresh_model(service)
    assert learn(service, name, body).status_code == 200
    assert service.learned(name) == 1


@pytest.mark.parametrize(
    "content_type",
    ["text/plain", "application/xml", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "json",
     "application/jsonx", "application/problem+json", "text/json", "application/json; charset=latin-1"],
)  # fmt: skip
def test_other_media_types_are_not_read(service: Served, model: str, content_type: str) -> None:
    for route in ("learn", "classify"):
        answer = service.http.post(f"/models/{model}/{route}", content=GOOD, headers={"content-type": content_type})
        problem(answer, 415, "unsupported-media-type")
    put = service.http.put(f"/models/{model}", content=b"{}", headers={"content-type": content_type})
    problem(put, 415, "unsupported-media-type")
    assert service.learned(model) == 0


@pytest.mark.parametrize(
    "content_type", ["application/json", "Application/JSON ; charset=UTF-8", 'application/json;charset="utf-8"', None]
)
def test_these_media_types_are_json(service: Served, content_type: str | None) -> None:
    name = fresh_model(service)
    headers = {"content-type": content_type} if content_type is not None else {}
    request = service.http.build_request("POST", f"/models/{name}/learn", content=GOOD, headers=headers)
    assert ("content-type" in request.headers) == (content_type is not None)
    assert service.http.send(request).status_code == 200


def test_compressed_bodies_are_not_read(service: Served, model: str) -> None:
    problem(learn(service, model, GOOD, content_encoding="gzip"), 415, "unsupported-media-type")
    assert learn(service, fresh_model(service), GOOD, content_encoding="identity").status_code == 200


def test_large_bodies_are_refused_when_they_are_told(service: Served, model: str) -> None:
    """Before the body has come: the answer is there while not a byte of it was sent."""
    for path in (f"/models/{model}/learn", f"/models/{model}/classify", "/learn"):
        with socket.create_connection(("127.0.0.1", service.port)) as connection:
            connection.settimeout(20)
            head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: 200001\r\n\r\n"
            connection.sendall(head.encode())
            assert connection.recv(65_536).startswith(b"HTTP/1.1 413 ")
    put = service.http.put(f"/models/{model}", content=b" " * 200_001)
    problem(put, 413, "too-large")


def test_large_bodies_are_refused_when_they_show(service: Served, model: str) -> None:
    def chunks() -> Iterator[bytes]:
        yield b'{"labels": ["a"], "text": "'
        for _ in range(30):
            yield b"word " * 2000
        yield b'"}'

    problem(service.http.post(f"/models/{model}/learn", content=chunks()), 413, "too-large")
    problem(service.http.put(f"/models/{model}", content=chunks()), 413, "too-large")
    fitting = b'{"labels": ["a"], "text": "a"' + b" " * 199_970 + b"}"
    assert learn(service, fresh_model(service), fitting).status_code == 200
    assert service.learned(model) == 0


@pytest.mark.parametrize("name", ["-x", ".x", "_x", "a" * 65, "a b", "ä", "a%2520", "a:b", "*", "a{b}"])
def test_impossible_names_of_models(service: Served, name: str) -> None:
    for method, path in [
        ("PUT", ""), ("GET", ""), ("DELETE", ""), ("GET", "/stats"), ("GET", "/labels"), ("GET", "/snapshots"),
        ("POST", "/snapshots"), ("POST", "/classify"), ("POST", "/learn"),
    ]:  # fmt: skip
        content = GOOD if method == "POST" else None
        problem(service.http.request(method, f"/models/{name}{path}", content=content), 422, field="model")


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [
        ("GET", "/classify", "OPTIONS, POST"),
        ("PUT", "/learn", "OPTIONS, POST"),
        ("GET", "/models/default/learn", "OPTIONS, POST"),
        ("DELETE", "/models", "GET, HEAD, OPTIONS"),
        ("POST", "/models/default", "DELETE, GET, HEAD, OPTIONS, PUT"),
        ("DELETE", "/models/default/snapshots", "GET, HEAD, OPTIONS, POST"),
        ("POST", "/livez", "GET, HEAD, OPTIONS"),
        ("PATCH", "/readyz", "GET, HEAD, OPTIONS"),
    ],
)
def test_other_methods_are_told_which_there_are(service: Served, method: str, path: str, allow: str) -> None:
    answer = service.http.request(method, path)
    problem(answer, 405, "method-not-allowed")
    assert answer.headers["allow"] == allow
    options = service.http.options(path)
    assert (options.status_code, options.headers["allow"], options.content) == (204, allow, b"")


def test_head_is_get_without_a_body(service: Served) -> None:
    for path in ("/models", "/models/default", "/livez", "/readyz", "/metrics", "/docs", "/openapi.json"):
        head, get = service.http.head(path), service.http.get(path)
        assert (head.status_code, head.content) == (200, b"")
        assert head.headers["content-type"] == get.headers["content-type"]
    assert service.http.head("/nope").status_code == 404


@pytest.mark.parametrize(
    "path",
    ["/web", "/nope", "/classify/", "/learn/", "/models/", "/models/default/", "/models/default/learn/", "//learn",
     "/models//learn", "/models/a/b/learn", "/CLASSIFY", "/models/default/nope", "/docs/../pyproject.toml"],
)  # fmt: skip
def test_other_paths_are_not_found_and_never_redirected(service: Served, path: str) -> None:
    for method in ("GET", "POST"):
        request = service.http.build_request(method, service.url + "/x")
        request.url = request.url.copy_with(raw_path=path.encode())
        problem(service.http.send(request), 404, "unknown-path")


def test_only_what_belongs_to_the_documentation_is_a_file(service: Served) -> None:
    for name in ("secret", "redoc.standalone.js", "%2e%2e%2fcore.py"):
        problem(service.http.get(f"/docs/{name}"), 404, "unknown-path")


@pytest.mark.parametrize("given", ["abc", "0-_/:;=~", "x" * 128])
def test_a_sane_request_id_is_given_back(service: Served, model: str, given: str) -> None:
    for method, path in [("POST", "/classify"), ("GET", "/models"), ("GET", "/nope"), ("POST", "/learn")]:
        answer = service.http.request(method, path, content=b"{}", headers={"X-Request-Id": given})
        assert answer.headers["x-request-id"] == given
        if answer.status_code >= 400:
            assert answer.json()["request_id"] == given


@pytest.mark.parametrize("given", [b"", b"x" * 129, b"a b", "é".encode(), b"a\tb"])
def test_another_request_id_is_replaced(service: Served, given: bytes) -> None:
    seen = set()
    for method, path in [("POST", "/classify"), ("GET", "/models"), ("GET", "/nope")]:
        answer = service.http.request(method, path, content=b"{}", headers={"X-Request-Id": given})
        seen.add(answer.headers["x-request-id"])
        assert re.fullmatch("[0-9a-f]{12}-[0-9a-f]+", answer.headers["x-request-id"])
        assert answer.headers.get_list("x-request-id") == [answer.headers["x-request-id"]]
    assert len(seen) == 3


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ({"limit": 0}, "limit"), ({"limit": 10_001}, "limit"), ({"limit": "many"}, "limit"), ({"offset": -1}, "offset"),
        ({"offset": 2**70}, "offset"), ({"prefix": "p" * 513}, "prefix"),
    ],
)  # fmt: skip
def test_wrong_query_parameters_are_named(service: Served, query: dict[str, Any], field: str) -> None:
    problem(service.http.get("/models/default/labels", params=query), 422, "invalid-field", field)


@pytest.mark.parametrize(
    ("method", "path", "field"),
    [
        ("GET", "/models/default/labels?contain=x", "contain"), ("GET", "/jobs?status=failed", "status"),
        ("DELETE", "/models/none?force=1", "force"), ("POST", "/classify?k=1", "query"),
        ("POST", "/models/default/learn?wait=log", "query"),
    ],
)  # fmt: skip
def test_unknown_query_parameters_are_refused(service: Served, method: str, path: str, field: str) -> None:
    answer = service.http.request(method, path, **({"json": {"text": "a"}} if method == "POST" else {}))
    detail = problem(answer, 422, "invalid-field", field)["detail"]
    assert ("did you mean contains?" in detail) == (field == "contain")


def test_a_word_that_is_too_long_for_a_feature_is_passed_over(service: Served) -> None:
    model = fresh_model(service)
    text = f"wheat {'x' * 513} {'y' * 512}"
    assert learn(service, model, json.dumps({"text": text, "labels": ["grain"]}).encode()).status_code == 200
    assert service.http.get(f"/models/{model}").json()["features"] == 2
    described = service.http.get("/openapi.json").json()["components"]["schemas"]["Instance"]["properties"]["text"]
    assert "(512 bytes) is ignored" in json.dumps(described)


async def test_an_unknown_outcome_is_told_in_sentences_and_by_what_was_asked(service: Served) -> None:
    error = OutcomeUnknown("the store went away")
    told = problem_of(error, "id").detail
    assert told.startswith("the store went away. It may or may not have been learned; the same request with the same ")
    failing = FastAPI()
    install(failing)

    @failing.put("/models/x")
    async def put() -> None:
        raise error

    async with httpx.AsyncClient(transport=httpx.ASGITransport(failing), base_url="http://here") as client:
        answer = await client.put("/models/x")
    assert answer.status_code == 504
    assert answer.json()["detail"].startswith("the store went away. It may or may not have been done; ")
    assert "Idempotency-Key" not in answer.text


def test_problems_have_nothing_that_does_not_help(service: Served) -> None:
    document = service.http.get("/models/none").json()
    assert set(document) == {"type", "title", "status", "detail", "request_id"}
    document = service.http.post("/classify", json={"k": 0, "text": "a"}).json()
    assert set(document) == {"type", "title", "status", "detail", "request_id", "field"}


def test_an_error_that_nobody_meant_is_a_problem_too(
    service: Served, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(type(service.live()), "rank", broken)
    monkeypatch.setattr(type(service.live()), "stats", broken)
    for method, path in [("POST", "/classify"), ("GET", "/models/default/stats")]:
        answer = service.http.request(method, path, content=b'{"text": "a"}', headers={"X-Request-Id": "mine"})
        assert problem(answer, 500, "internal")["request_id"] == "mine"
        assert "ZeroDivisionError" not in answer.text
    assert caplog.text.count("ZeroDivisionError") >= 2
    with service.http.stream(
        "POST", "/classify", content=b'{"text": "a"}\n', headers={"content-type": "application/x-ndjson"}
    ) as answer:
        answer.read()
        problem(answer, 500, "internal")
