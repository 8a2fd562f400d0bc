"""What each route refuses: the kind of the problem and the field that it names. Nothing of it is learned."""

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
from abound_core.limits import MAX_DETAILS_BYTES
from tests.support.served import NDJSON, Served, checked_problem, fresh_model, lines, problem

GOOD = b'{"features": {"f": 1}, "labels": ["a"]}'
LABELLED = json.loads(GOOD)
A = {"labels": ["a"]}
LONG = "x" * 513

SETTINGS = {"max_body_bytes": 200_000}


@pytest.fixture(scope="module")
def model(service: Served) -> str:
    """A model that every request to learn is refused of."""
    return fresh_model(service)


def learn(service: Served, model: str, body: bytes, **headers: str) -> httpx.Response:
    sent = {"content-type": "application/json"} | {name.replace("_", "-"): value for name, value in headers.items()}
    return service.http.post(f"/models/{model}/learn", content=body, headers=sent)


MALFORMED = {
    "empty": b"",
    "cut off": b'{"features": {"f": 1}, "labels": ["a"',
    "two": GOOD + GOOD,
    "comma": b'{"features": {"f": 1}, "labels": ["a"],}',
    "utf-16": GOOD.decode().encode("utf-16"),
    "nan": b'{"features": {"f": NaN}, "labels": ["a"]}',
    "leading zero": b'{"features": {"f": 01}, "labels": ["a"]}',
    "control character": b'{"text": "a\x01", "labels": ["b"]}',
    "bad escape": b'{"text": "\\x", "labels": ["b"]}',
    "bad utf-8 in text": b'{"text": "a\xff", "labels": ["b"]}',
    "bad utf-8 in a label": b'{"text": "a", "labels": ["b\xc3"]}',
    "bad utf-8 in a feature": b'{"features": {"\xff": 1}, "labels": ["b"]}',
    "bad utf-8 in a value": b'{"features": {"f": "\xed\xa0\x80"}, "labels": ["b"]}',
    "bad utf-8 in a field": b'{"\xff": 1}',
    "half a pair at the end": rb'{"text": "wheat \ud83d", "labels": ["b"]}',
    "half a pair, the second": rb'{"text": "\ude00 wheat", "labels": ["b"]}',
    "half a pair before a letter": rb'{"text": "\ud83d\u0061", "labels": ["b"]}',
    "half a pair in a label": rb'{"text": "a", "labels": ["\ud83d"]}',
    "cut off behind a pair": rb'{"text": "\ud83d\ude00", "labels": ["b"]',
}
DEEP = {
    "deep": b'{"features": {"f": ' + b"[" * 90_000 + b"]" * 90_000 + b'}, "labels": ["b"]}',
    "deep objects": b'{"a":' * 30_000 + b"1" + b"}" * 30_000,
}


@pytest.mark.parametrize("case", [*MALFORMED, *DEEP])
def test_what_is_not_json_is_malformed(service: Served, model: str, case: str) -> None:
    body = (MALFORMED | DEEP)[case]
    answer = learn(service, model, body)
    if case in DEEP:  # a wrong field may be seen before the depth
        problem(answer, answer.status_code if answer.status_code in (400, 422) else 400)
    else:
        detail = problem(answer, 400, "malformed")["detail"]
        assert ("half of a surrogate pair" in detail) == case.startswith("half")
        assert "truncated" in detail or not case.startswith("cut off")
    assert service.http.post(f"/models/{model}/classify", content=body).status_code in (400, 422)
    assert service.learned(model) == 0


READ = {
    "no instance": ({}, "features"),
    "null instance": ({"features": None, "text": None}, "features"),
    "text of another type": ({"text": 5}, "text"),
    "a text in a list": ({"text": ["wool"]}, "text"),
    "a field of a text": ({"text": {"title": 3}}, "text[...]"),
    "a field without a name": ({"text": {"": "wool"}}, "text"),
    "features of another type": ({"features": [1]}, "features"),
    "object value": ({"features": {"f": {"g": 1}}}, "features.f"),
    "mixed list": ({"features": {"f": ["a", 1]}}, "features.f[1]"),
    "nested list": ({"features": {"f": [["a"]]}}, "features.f[0]"),
    "empty key": ({"features": {"": 1}}, "features"),
    "long key": ({"features": {"k" * 513: 1}}, "features." + "k" * 61 + "..."),
    "long value": ({"features": {"f": "v" * 512}}, "features.f"),
    "overflow": (b'{"features": {"f": 1e999}, "labels": ["a"]}', "features.f"),
    "many features": ({"features": {f"f{i}": 1 for i in range(10_001)}}, "features"),
    "unknown field": ({"text": "a", "strength": 2}, "strength"),
    "unknown field with a strange name": ({"text": "a", "a`b.cé": 2}, "a`b.cé"),
    "vector": (b'{"vector": [1e999, 1], "labels": ["a"]}', "vector[0]"),
}
"""Instances that no route takes."""

LEARNED = {
    "no labels": ({"text": "a"}, "labels"),
    "null labels": ({"text": "a", "labels": None}, "labels"),
    "empty labels": ({"text": "a", "labels": [], "ignored": []}, "labels"),
    "empty label": ({"text": "a", "labels": ["b", ""]}, "labels[1]"),
    "label of another type": ({"text": "a", "labels": ["b", True]}, "labels[1]"),
    "blank label": ({"text": "a", "labels": ["b", "\u00a0\u200b"]}, "labels[1]"),
    "label of a tab": ({"text": "a", "labels": ["b", "\t"]}, "labels[1]"),
    "labels of another type": ({"text": "a", "labels": "b"}, "labels"),
    "long label": ({"text": "a", "labels": [LONG]}, "labels[0]"),
    "long label in bytes": ({"text": "a", "labels": ["é" * 257]}, "labels[0]"),
    "many labels": ({"text": "a", "labels": [str(i) for i in range(101)]}, "labels"),
    "rejected text": (LABELLED | {"rejected": "crude"}, "rejected"),
    "rejected truth": (LABELLED | {"rejected": [True]}, "rejected[0]"),
    "empty rejected": (LABELLED | {"rejected": ["b", ""]}, "rejected[1]"),
    "rejected and true": (LABELLED | {"rejected": ["a"]}, "rejected[0]"),
    "many rejected": (LABELLED | {"rejected": ["x"] * 101}, "rejected"),
    "empty ignored": (LABELLED | {"ignored": [""]}, "ignored[0]"),
    "ignored and true": (LABELLED | {"ignored": ["b", "a"]}, "ignored[1]"),
    "ignored and rejected": (LABELLED | {"rejected": ["b"], "ignored": ["b"]}, "ignored[0]"),
    "none and a label": (LABELLED | {"none": True}, "none"),
    "none and a rejected label": ({"text": "a", "rejected": ["x"], "none": True}, "none"),
    "no labels and none false": ({"text": "a", "labels": [], "none": False}, "labels"),
    "some of no labels": ({"text": "a", "rejected": ["x"], "partial": True}, "partial"),
    "none of another type": ({"text": "a", "none": "yes"}, "none"),
    "weight 0": (LABELLED | {"weight": 0}, "weight"),
    "large weight": (LABELLED | {"weight": 100.5}, "weight"),
    "weight of another type": (LABELLED | {"weight": "2"}, "weight"),
    "empty key of an event": (LABELLED | {"key": ""}, "key"),
    "long key of an event": (LABELLED | {"key": "x" * 256}, "key"),
    "instance and prediction": (LABELLED | {"prediction": "x"}, "prediction"),
}
"""Events that cannot be learned."""


def encoded(body: Any) -> bytes:
    return body if isinstance(body, bytes) else json.dumps(body).encode()


@pytest.mark.parametrize("case", [*READ, *LEARNED])
def test_a_wrong_field_is_named(service: Served, model: str, case: str) -> None:
    """Alone, in a batch and in a line; what is wrong with the instance itself is wrong for ``/classify``, too."""
    given, field = (READ | LEARNED)[case]
    if case in READ and isinstance(given, dict):
        given = A | given
    body, path = encoded(given), f"/models/{model}"
    problem(learn(service, model, body), 422, "invalid-field", field)
    batch = learn(service, model, b'{"instances": [' + GOOD + b", " + body + b"]}")
    problem(batch, 422, "invalid-field", f"instances[1].{field}")
    [line] = lines(service.http.post(f"{path}/learn", content=body, headers=NDJSON))
    assert checked_problem(line, 422, "invalid-field", field)["line"] == 1
    if case in READ:
        asked = body.replace(b', "labels": ["a"]', b"").replace(b'"labels": ["a"], ', b"").replace(encoded(A), b"{}")
        problem(service.http.post(f"{path}/classify", content=asked), 422, "invalid-field", field)
    assert service.learned(model) == 0


BATCH = {"instances": [LABELLED]}
REQUESTS: dict[str, tuple[str, Any, str]] = {
    "null": ("learn", None, ""),
    "long source": ("learn", LABELLED | {"source": LONG}, "source"),
    "source of another type": ("learn", LABELLED | {"source": ["a"]}, "source"),
    "source of an instance": ("learn", {"instances": [LABELLED | {"source": "x"}]}, "instances[0].source"),
    "wait": ("learn", LABELLED | {"wait": "forever"}, "wait"),
    "durability": ("learn", LABELLED | {"durability": "fsync"}, "durability"),
    "k of learn": ("learn", LABELLED | {"k": 5}, "k"),
    "no instances": ("learn", {"instances": []}, "instances"),
    "1001 instances": ("learn", {"instances": [LABELLED] * 1001}, "instances"),
    "labels of a batch": ("learn", BATCH | A, "labels"),
    "text of a batch": ("learn", BATCH | {"text": "a"}, "text"),
    "prediction of a batch": ("learn", BATCH | {"prediction": "a"}, "prediction"),
    "key of a batch": ("learn", BATCH | {"key": "a"}, "key"),
    "rejected of a batch": ("learn", BATCH | {"rejected": ["b"]}, "rejected"),
    "ignored of a batch": ("learn", BATCH | {"ignored": []}, "ignored"),
    "none of a batch": ("learn", BATCH | {"none": True}, "none"),
    "partial of a batch": ("learn", BATCH | {"partial": True}, "partial"),
    "weight of a batch": ("learn", BATCH | {"weight": 2}, "weight"),
    "known labels without the update for it": ("classify", {"text": "a", "known": ["a"]}, "known"),
    "a known truth": ("classify", {"text": "a", "known": [True]}, "known[0]"),
    "an excluded truth": ("classify", {"text": "a", "exclude": ["a", True]}, "exclude[1]"),
    "1001 to classify": ("classify", {"instances": [{"text": "a"}] * 1001}, "instances"),
    "a batch and a text": ("classify", {"instances": [{"text": "a"}], "text": "b"}, "text"),
    "a batch and features": ("classify", {"instances": [{"text": "a"}], "features": {}}, "features"),
    "a batch and a vector": ("classify", {"instances": [{"text": "a"}], "vector": [1]}, "vector"),
    "k of an instance": ("classify", {"instances": [{"text": "a", "k": 1}]}, "instances[0].k"),
    "a second one": ("classify", {"instances": [{"text": "a"}, {"features": {"x": {}}}]}, "instances[1].features.x"),
}
WRONG_VALUES: dict[str, tuple[Any, ...]] = {
    "k": (0, -1, 1001, 2**70, 1.5, 10.0, "3", True, None, [1]),
    "min_offset": ("", "1", "1-2", "1-2.", "a-b.c", "-1-0.0", "1-2.3 ", "99999999999999999999-0.0", "１-2.3"),
    "min_probability": (-0.1, 1.1, "0.5", True),
    "zero_shot": ("false", 0, None),
}
"""By the option of ``/classify``."""
REQUESTS |= {
    f"{name} {value!a}": ("classify", {"text": "a", name: value}, name)
    for name, values in WRONG_VALUES.items()
    for value in values
}


@pytest.mark.parametrize("case", REQUESTS)
def test_a_wrong_option_is_named(service: Served, model: str, case: str) -> None:
    route, body, field = REQUESTS[case]
    answer = service.http.post(f"/models/{model}/{route}", content=encoded(body))
    assert problem(answer, 422, "invalid-field").get("field", "") == field
    if case.endswith("of a batch") and field in ("rejected", "ignored", "weight"):
        assert "move it into instances" in answer.json()["detail"]
    assert service.learned(model) == 0


@pytest.mark.parametrize("key", ["", "x" * 256, "é"])
def test_a_bad_key_in_the_header_is_refused(service: Served, model: str, key: str) -> None:
    headers = {"Idempotency-Key": key.encode()}
    problem(service.http.post(f"/models/{model}/learn", content=GOOD, headers=headers), 422, field="Idempotency-Key")
    assert service.learned(model) == 0


CONFIGS: dict[str, Any] = {
    "w_mix": 1, "w_min": "0.1", "d_max": 0, "margin": -1, "leak": 1, "rating": None, "boolean": "yes", "memory": 0,
    "max_features": 0, "max_classes": -1, "update": "sgd", "analyzer": "word", "analyzer.kind": "sentence",
    "analyzer.ngrams": [3, 1], "analyzer.language": "fi", "negative": "absolute", "numbers": "log", "implicit": 2,
    "calibrate": "yes", "decide": True, "decide.agreement": 1, "decide.audit": 0, "rerank": True, "rows": True,
    "known": True, "recovery": 0.5,
    "max_memory": 2**20 - 1, "analyzer.embed": "wordllama", "analyzer.embed_field": "title", "analyzer.prefix": 2,
}  # fmt: skip
"""A value that no model (or none with ``fsu``) takes, by the field."""
MORE_CONFIGS: list[tuple[Any, str]] = [
    ({"w_min": 1.5}, "w_min"),
    ({"d_max": 65_536}, "d_max"),
    ({"analyzer": None}, "analyzer"),
    ({"analyzer": {"ngrams": [1, 9]}}, "analyzer.ngrams"),
    ({"max_memory": 2**50 + 1}, "max_memory"),
    ({"update": "sls", "analyzer": {"embed": "other"}}, "analyzer.embed"),
    ({"update": "sls", "analyzer": {"embed": "wordllama", "embed_field": "a\nb"}}, "analyzer.embed_field"),
    ({"analyzer": {"kind": "char", "prefix": 7}}, "analyzer.prefix"),
    (b'{"margin": 1e999}', "margin"),
    (b'{"d_max": %s}' % (b"9" * 5000), "d_max"),
    (b'{"analyzer": {"ngrams": [1, 1e999]}}', "analyzer.ngrams[1]"),
    (b"[]", ""),
    (b"null", ""),
]


def configuration(name: str) -> dict[str, Any]:
    field, _, inner = name.partition(".")
    return {field: {inner: CONFIGS[name]} if inner else CONFIGS[name]}


@pytest.mark.parametrize(
    ("body", "field"),
    [*((configuration(name), name) for name in CONFIGS), *MORE_CONFIGS],
    ids=[*CONFIGS, *(f"{field or 'body'} {number}" for number, (_, field) in enumerate(MORE_CONFIGS))],
)
def test_a_wrong_configuration_is_refused_by_its_field(service: Served, model: str, body: Any, field: str) -> None:
    before = service.http.get(f"/models/{model}").json()
    for name in ("wrong", model):
        answer = service.http.put(f"/models/{name}", content=encoded(body))
        assert problem(answer, 422, "invalid-field").get("field", "") == field
    problem(service.http.get("/models/wrong"), 404, "unknown-model")
    assert service.http.get(f"/models/{model}").json() == before


@pytest.mark.parametrize("body", [b"{", b'{"w_min": NaN}', b"\xff", b"[" * 50_000], ids=["cut", "nan", "bytes", "deep"])
def test_a_configuration_must_be_json(service: Served, body: bytes) -> None:
    answer = service.http.put("/models/wrong", content=body)
    problem(answer, 422 if answer.status_code == 422 else 400)
    problem(service.http.get("/models/wrong"), 404, "unknown-model")


DETAILS = {
    "no labels": ([], "labels"),
    "unknown field": ([{"label": "a", "colour": "red"}], "labels[0].colour"),
    "empty label": ([{"label": ""}], "labels[0].label"),
    "long label": ([{"label": "ä" * 300}], "labels[0].labels[0]"),
    "long description": ([{"label": "a", "description": "x" * 4097}], "labels[0].description"),
    "metadata": ([{"label": "a", "metadata": [1]}], "labels[0].metadata"),
    "long metadata": ([{"label": "a", "metadata": {"a": "x" * MAX_DETAILS_BYTES}}], "labels[0].metadata"),
    "own parent": ([{"label": "a", "parent": "a"}], "labels[0].parent"),
    "twice": ([{"label": "b"}, {"label": "a"}, {"label": "a"}], "labels[2].label"),
}


@pytest.mark.parametrize("case", [*DETAILS, "wait", "source"])
def test_wrong_registrations_change_nothing(service: Served, model: str, case: str) -> None:
    labels, field = DETAILS.get(case, ([{"label": "a"}], case))
    body = {"labels": labels} | ({} if case in DETAILS else {case: ""})
    problem(service.http.put(f"/models/{model}/labels", json=body), 422, "invalid-field", field)
    assert service.http.get(f"/models/{model}/labels").json()["total"] == 0


EMPTY = {
    "nothing active": (b'{"features": {"f": 0, "g": -3, "h": false, "i": []}, "labels": ["a"]}', "features"),
    "empty features": (b'{"features": {}, "labels": ["a"]}', "features"),
    "empty text": (b'{"text": "  ", "labels": ["a"]}', "text"),
}


@pytest.mark.parametrize(("body", "field"), EMPTY.values(), ids=EMPTY.keys())
def test_an_instance_without_features_is_told_from_a_wrong_one(service, model, body, field):
    problem(learn(service, model, body), 422, "no-features", field)
    problem(learn(service, model, b'{"instances": [' + body + b"]}"), 422, "no-features", f"instances[0].{field}")
    assert service.learned(model) == 0


def test_the_field_that_was_meant_is_named(service: Served, model: str) -> None:
    for body in (b'{"text": "a", "label": ["a"]}', b'{"instances": [{"text": "a", "label": ["a"]}]}'):
        assert problem(learn(service, model, body), 422)["detail"].endswith("; did you mean labels?")


@pytest.mark.parametrize(
    "body",
    [
        {"features": {f"f{i}": 1 for i in range(10_000)}, "labels": ["a"]},
        {"features": {"k" * 512: 1}, "labels": ["l" * 512]},
        {"text": "a", "labels": [str(i) for i in range(100)]},
        {"features": {"ключ": "значение", "\U0001f600": 1e-300}, "labels": ["\0", "метка"]},
        {"features": {"f": 1}, "labels": ["a"], "key": "é" * 255, "source": "s" * 512, "weight": 100},
        b'\r\n\t{"labels":["a"],"features":{"f":1e308,"g":1}}\n',
    ],
    ids=["features", "lengths", "labels", "unicode", "options", "numbers"],
)
def test_what_is_just_within_the_bounds_is_learned(service: Served, body: Any) -> None:
    name = fresh_model(service)
    key = {} if b'"key"' in encoded(body) else {"idempotency_key": "x" * 255}
    assert learn(service, name, encoded(body), **key).status_code == 200
    assert service.learned(name) == 1


def test_a_wrong_name_is_refused_with_the_rule_of_names(service: Served) -> None:
    rule = "must begin with a letter or digit and have up to 64 letters, digits, '_', '.' and '-'"
    for field, noun in (("model", "a model"), ("dataset", "a data set")):
        said = problem(service.http.get(f"/{field}s/my%20news"), 422, "invalid-field", field)["detail"]
        assert said == f"{noun}'s name {rule}"


@pytest.mark.parametrize(
    ("name", "value", "taken"),
    [
        ("Content-Type", "Application/JSON ; charset=UTF-8", True),
        ("Content-Type", 'application/json;charset="utf-8"', True),
        *(("Content-Type", one, False) for one in ("text/plain", "multipart/form-data; boundary=x", "json")),
        *(("Content-Type", f"application/{one}", False) for one in ("xml", "x-www-form-urlencoded", "jsonx")),
        *(("Content-Type", f"application/{one}", False) for one in ("problem+json", "json; charset=latin-1")),
        ("Content-Encoding", "br", False),
        ("Content-Encoding", "identity", True),
        ("Accept", "text/html", True),
    ],
)  # fmt: skip
def test_only_json_in_a_known_encoding_is_read(service: Served, model: str, name: str, value: str, taken: bool) -> None:
    path = f"/models/{fresh_model(service) if taken else model}"
    for method, route, body in (("POST", "/learn", GOOD), ("POST", "/classify", b'{"text": "a"}'), ("PUT", "", b"{}")):
        answer = service.http.request(method, path + route, content=body, headers={name: value})
        if taken:
            assert answer.status_code == 200, answer.text
        else:
            problem(answer, 415, "unsupported-media-type")
            assert answer.headers["accept-encoding"] == "gzip, deflate, zstd" or name != "Content-Encoding"
    assert service.learned(model) == 0


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
        ("POST", "/snapshots"), ("POST", "/classify"), ("POST", "/learn"), ("PUT", "/import"),
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
        ("POST", "/", "GET, HEAD, OPTIONS"),
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


@pytest.mark.parametrize(
    ("given", "kept"),
    [*((one, True) for one in (b"abc", b"0-_/:;=~", b"x" * 128)),
     *((one, False) for one in (b"", b"x" * 129, b"a b", "é".encode(), b"a\tb"))],
)  # fmt: skip
def test_a_sane_request_id_is_given_back_and_another_one_replaced(service: Served, given: bytes, kept: bool) -> None:
    seen = set()
    for method, path in [("POST", "/classify"), ("GET", "/models"), ("GET", "/nope"), ("POST", "/learn")]:
        answer = service.http.request(method, path, content=b"{}", headers={"X-Request-Id": given})
        [id_] = answer.headers.get_list("x-request-id")
        assert id_ == given.decode() if kept else re.fullmatch("[0-9a-f]{12}-[0-9a-f]+", id_)
        assert answer.status_code < 400 or answer.json()["request_id"] == id_
        seen.add(id_)
    assert len(seen) == (1 if kept else 4)


LISTED = "GET /models/default/labels?"


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        (f"{LISTED}limit=0", "limit"), (f"{LISTED}limit=10001", "limit"), (f"{LISTED}limit=many", "limit"),
        (f"{LISTED}offset=-1", "offset"), (f"{LISTED}offset={2**70}", "offset"), (f"{LISTED}prefix={LONG}", "prefix"),
        (f"{LISTED}contain=x", "contain"), ("GET /jobs?status=failed", "status"),
        ("DELETE /models/none?force=1", "force"), ("POST /classify?k=1", "query"),
        ("POST /models/default/learn?wait=log", "query"),
    ],
    ids=["least", "most", "no number", "negative", "huge", "long", "similar", "unknown", "delete", "classify", "learn"],
)  # fmt: skip
def test_wrong_query_parameters_are_named(service: Served, request_: str, field: str) -> None:
    method, path = request_.split()
    answer = service.http.request(method, path, **({"json": {"text": "a"}} if method == "POST" else {}))
    detail = problem(answer, 422, "invalid-field", field)["detail"]
    assert ("did you mean contains?" in detail) == (field == "contain")


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


def test_an_error_that_nobody_meant_is_a_problem_too(service, monkeypatch, caplog):
    def broken(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(type(service.live()), "rank_estimated", broken)
    monkeypatch.setattr(type(service.live()), "stats", broken)
    for method, path in [("POST", "/classify"), ("GET", "/models/default/stats")]:
        answer = service.http.request(method, path, content=b'{"text": "a"}', headers={"X-Request-Id": "mine"})
        assert problem(answer, 500, "internal")["request_id"] == "mine"
        assert "ZeroDivisionError" not in answer.text
    assert caplog.text.count("ZeroDivisionError") >= 2
    problem(service.http.post("/classify", content=b'{"text": "a"}\n', headers=NDJSON), 500, "internal")
