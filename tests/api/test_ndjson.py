import json
import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest

from abound.api.ndjson import RequestLines
from abound.api.request_body import BodyBudget, Message
from tests.support.job_worker import until
from tests.support.served import NDJSON, Served, checked_problem, fresh_model, lines, ndjson, problem

END = b"0\r\n\r\n"
APPLIED = b'"applied":true'

SETTINGS = {"max_ndjson_lines": 3000, "max_body_bytes": 20_000, "max_ndjson_bytes": 2_000_000}


def instance(i: int) -> dict[str, Any]:
    return {"features": {f"f{i % 50}": 1, f"g{i % 7}": 2}, "labels": [f"c{i % 5}"]}


def test_lines_are_answered_in_order_as_single_requests_are(service: Served, model: str) -> None:
    twin = fresh_model(service)
    many = [instance(i) for i in range(1000)]
    answered = lines(service.http.post(f"/models/{model}/learn", content=ndjson(*many), headers=NDJSON))
    assert len(answered) == 1000
    batch: list[dict[str, Any]] = []
    for start in range(0, 1000, 200):
        body = {"instances": many[start : start + 200]}
        batch += service.http.post(f"/models/{twin}/learn", json=body).json()["results"]
    assert [(one["rank"], one["updated"]) for one in answered] == [(one["rank"], one["updated"]) for one in batch]
    assert all(set(one) == {"offset", "applied", "durability", "rank", "updated"} for one in answered)
    offsets = [one["offset"] for one in answered]
    assert len(set(offsets)) == 1000
    asked = [{"text": f"f{i % 60}", "k": 1 + i % 3} for i in range(500)]
    streamed = lines(service.http.post(f"/models/{model}/classify", content=ndjson(*asked), headers=NDJSON))
    singles = [service.http.post(f"/models/{model}/classify", json=one).json() for one in asked[:60]]
    assert streamed[:60] == singles
    assert len(streamed) == 500
    assert service.http.get(f"/models/{model}").json()["learned"] == 1000


GOOD = json.dumps(instance(1)).encode()
LINES: list[tuple[bytes, int | None, str | None]] = [
    (GOOD, 200, None),
    (b"{", 400, None),
    (b'{"features": {"f": 1}}', 422, "labels"),
    (b"", None, None),
    (b'{"features": {"f": 1}, "labels": ["a"], "colour": 1}', 422, "colour"),
    (b"\xff", 400, None),
    (b'{"text": "\xff", "labels": ["a"]}', 400, None),
    (b'{"features": {"f": NaN}, "labels": ["a"]}', 400, None),
    (b'{"features": {"f": 1e999}, "labels": ["a"]}', 422, "features.f"),
    (b"[" * 5000, 422, None),
    (b"   \t", None, None),
    (b"null", 422, None),
    (b'{"instances": [{"text": "a", "labels": ["b"]}]}', 422, "instances"),
    (b'{"text": "' + b"a" * 20_000 + b'", "labels": ["a"]}', 413, None),
    (GOOD + b"\r", 200, None),
    (GOOD, 200, None),
]
"""Lines with the status and the field of their answers; an empty line has none."""


def test_a_bad_line_does_not_stop_the_rest(service: Served, model: str) -> None:
    body = b"\n".join(line for line, _, _ in LINES)
    answered = lines(service.http.post(f"/models/{model}/learn", content=body, headers=NDJSON))
    numbered = [(at, status, field) for at, (_, status, field) in enumerate(LINES, 1) if status]
    for one, (at, status, field) in zip(answered, numbered, strict=True):
        assert (one.get("status", 200), one.get("field")) == (status, field)
        assert status == 200 or checked_problem(one, status or 0)["line"] == at
    assert service.learned(model) == 3
    asked = b'{"text": "f1"}\n{"text": 1}\n{"text": "f1", "version": "9"}\n{"text": "f1", "min_offset": "x"}'
    answered = lines(service.http.post(f"/models/{model}/classify", content=asked, headers=NDJSON))
    statuses = [(one.get("line"), one.get("status", 200)) for one in answered]
    assert statuses == [(None, 200), (2, 422), (3, 404), (4, 422)]


def test_every_line_stands_alone(service: Served, model: str) -> None:
    path = f"/models/{model}/learn"
    keyed = instance(1) | {"key": "one"}
    mixed = [keyed, instance(2) | {"wait": "log"}, instance(3), keyed]
    mixed += [keyed | {"labels": ["another"]}, instance(4) | {"source": "there"}]
    answered = lines(service.http.post(path, content=ndjson(*mixed), headers=NDJSON))
    assert answered[3] == answered[0]
    assert checked_problem(answered[4], 422, "invalid-field", "key")["line"] == 5
    assert service.learned(model) == 4


def test_the_header_of_a_key_cannot_cover_lines(service: Served, model: str) -> None:
    headers = NDJSON | {"Idempotency-Key": "x"}
    answer = service.http.post(f"/models/{model}/learn", content=ndjson(instance(1)), headers=headers)
    problem(answer, 422, "invalid-field", "Idempotency-Key")
    assert service.learned(model) == 0


def test_too_many_lines_end_with_a_problem(service: Served, model: str) -> None:
    body = ndjson(*(instance(i) for i in range(3002)))
    answered = lines(service.http.post(f"/models/{model}/learn", content=body, headers=NDJSON))
    assert len(answered) == 3001
    assert checked_problem(answered[-1], 413, "too-large")["line"] == 3001
    assert service.learned(model) == 3000


@pytest.mark.parametrize("empty", [b"\n", b" \r\n"])
def test_lines_without_anything_in_them_do_not_count(service: Served, model: str, empty: bytes) -> None:
    body = b'{"text": "a"}\n' + empty * 100_000 + b'{"text": "b"}\n' + empty * 5 + b"{\n" + empty * 100_000
    answered = lines(service.http.post(f"/models/{model}/classify", content=body, headers=NDJSON))
    assert ["labels" in one for one in answered] == [True, True, False]
    assert answered[-1]["line"] == 100_008
    assert lines(service.http.post(f"/models/{model}/classify", content=b"\n" * 1_999_999, headers=NDJSON)) == []


def test_too_many_bytes_are_refused_when_they_are_told_or_when_they_show(service: Served, model: str) -> None:
    big = ndjson(*(instance(i) | {"source": "s" * 500} for i in range(2900))) * 2
    assert len(big) > 2_000_000
    told = service.http.post(f"/models/{model}/learn", content=big, headers=NDJSON)
    problem(told, 413, "too-large")
    assert service.learned(model) == 0

    def chunks() -> Iterator[bytes]:
        for start in range(0, len(big), 50_000):
            yield big[start : start + 50_000]

    shown = lines(service.http.post(f"/models/{model}/learn", content=chunks(), headers=NDJSON))
    assert checked_problem(shown[-1], 413, "too-large")["line"] == len(shown)
    assert service.learned(model) == len(shown) - 1 > 0


async def test_a_line_of_many_pieces_takes_time_in_proportion_to_them() -> None:
    pieces = iter([b"x"] * 60_000 + [b"\n"])

    async def receive() -> Message:
        piece = next(pieces)
        return {"type": "http.request", "body": piece, "more_body": piece != b"\n"}

    request = RequestLines(receive, BodyBudget(), 10**6, 10, 10**6)
    await request.pump()
    began = time.process_time()
    assert [line.body async for group in request.groups() for line in group] == [b"x" * 60_000]
    assert time.process_time() - began < 3


def received(connection: socket.socket, last: bytes = b"") -> bytes:
    """What comes until the end of an answer, or until this has come."""
    got = bytearray()
    while not (last in got if last else got.endswith(END)):
        got += connection.recv(65_536)
    return bytes(got)


def opened(service: Served, path: str, first: bytes = b"", buffer: int | None = None) -> socket.socket:
    """A connection that has sent the head of a stream, and a chunk."""
    connection = socket.create_connection(("127.0.0.1", service.port), timeout=20)
    if buffer is not None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
    head = f"POST {path} HTTP/1.1\r\nHost: {service.url[7:]}\r\nContent-Type: application/x-ndjson\r\n"
    connection.sendall(f"{head}Transfer-Encoding: chunked\r\n\r\n".encode() + (_chunk(first) if first else b""))
    return connection


def _chunk(piece: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(piece), piece)


def test_answers_come_while_the_request_goes_on(service: Served, model: str) -> None:
    with opened(service, f"/models/{model}/learn") as connection:
        for i in range(5):
            connection.sendall(_chunk(ndjson(instance(i))))
            received(connection, APPLIED)
        connection.sendall(END)
        assert APPLIED not in received(connection)


def test_a_client_may_send_everything_before_it_reads_anything(service: Served, model: str) -> None:
    body = ndjson(*(instance(i) for i in range(2999)))
    with opened(service, f"/models/{model}/learn", buffer=65_536) as connection:
        for start in range(0, len(body), 10_000):
            connection.sendall(_chunk(body[start : start + 10_000]))
        connection.sendall(END)
        assert received(connection).count(b'"offset"') == 2999


def test_a_client_that_goes_away_leaves_nothing_behind(service: Served, model: str) -> None:
    begun = ndjson(*(instance(i) for i in range(200))) + b'{"features": '
    for _ in range(5):
        opened(service, f"/models/{model}/learn", begun).close()
    until(lambda: service.app.state.parts.held.n_bytes == 0)
    assert service.http.post(f"/models/{model}/learn", json=instance(1)).status_code == 200
    assert service.learned(model) <= 1001


def test_a_stream_does_not_go_on_in_another_model_of_the_same_name(service: Served, model: str) -> None:
    with opened(service, f"/models/{model}/learn", ndjson(instance(1))) as connection:
        received(connection, APPLIED)
        service.http.delete(f"/models/{model}").raise_for_status()
        service.http.put(f"/models/{model}", json={"boolean": True}).raise_for_status()
        connection.sendall(_chunk(ndjson(instance(2))) + END)
        assert b"/problems/unknown-model" in received(connection)
    assert service.learned(model) == 0
