"""The client against a transport that misbehaves in every way it knows about."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import numpy as np
import pytest

from abound.service.client import (
    ATTEMPTS,
    MAX_PAUSE,
    AsyncClient,
    Client,
    ClientError,
    InputInstance,
    Interrupted,
    Labelled,
    Model,
    Refused,
    Unreachable,
    bounded,
    refusal_of,
)
from abound.service.client import (
    requests as calls,
)
from abound.service.client import streams as lines_of_a_request
from abound.service.client.retries import START_SECONDS

Handler = Callable[[httpx.Request], httpx.Response]


class Cut(httpx.SyncByteStream):
    """An answer that breaks off behind these bytes."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def __iter__(self) -> Iterator[bytes]:
        yield self._data
        raise httpx.RemoteProtocolError("peer closed the connection")


def client(handler: Handler, pauses: list[float] | None = None) -> Client:
    kept = [] if pauses is None else pauses
    return Client("http://test", transport=httpx.MockTransport(handler), pause=kept.append)


def echo(request: httpx.Request) -> httpx.Response:
    """Answers each line with itself."""
    return httpx.Response(200, content=request.read())


def lines(n: int, size: int = 0) -> list[bytes]:
    return [json.dumps({"n": i, "pad": "x" * size}).encode() for i in range(n)]


def problem(status: int, **fields: object) -> dict[str, object]:
    return {"type": "/problems/x", "title": "X", "status": status, "detail": "it is so"} | fields


def test_long_streams_are_cut_into_requests_and_answered_in_order() -> None:
    sizes = []

    def count(request: httpx.Request) -> httpx.Response:
        sizes.append(request.read().count(b"\n"))
        assert request.headers["Content-Type"] == "application/x-ndjson"
        return echo(request)

    answers = list(client(count).learn_stream("a/b", lines(2500)))
    assert [answer["n"] for answer in answers] == list(range(2500))
    assert sizes == [1000, 1000, 500]


def test_requests_are_bounded_by_bytes_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines_of_a_request, "STREAM_BYTES", 300)
    assert [len(request) for request in bounded(lines(7, 80))] == [3, 3, 1]


def test_a_request_of_a_slow_source_is_closed_by_the_next_line(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = iter([5.0, 5.4, 5.9, 6.0, 6.3, 7.2, 7.3, 9.0, 9.1])
    monkeypatch.setattr(lines_of_a_request, "time", SimpleNamespace(monotonic=lambda: next(seconds)))
    assert [len(request) for request in bounded(lines(9))] == [4, 3, 2]


def test_what_a_slow_source_gave_is_sent_while_it_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = iter(range(100))
    monkeypatch.setattr(lines_of_a_request, "time", SimpleNamespace(monotonic=lambda: next(seconds)))
    given, sent = [], []

    def source() -> Iterator[bytes]:
        for line in lines(10):
            given.append(line)
            yield line

    def keep(request: httpx.Request) -> httpx.Response:
        sent.extend(request.read().splitlines())
        return echo(request)

    answers = client(keep).learn_stream("m", source())
    assert [next(answers)["n"] for _ in range(5)] == list(range(5))
    assert sent == given == lines(6)


def test_none_in_the_place_of_a_line_sends_what_came_before() -> None:
    assert list(bounded([None, *lines(2), None, None, *lines(1)])) == [lines(2), lines(1)]
    with pytest.raises(ValueError, match=r"^line 2 of the stream"):
        list(bounded([*lines(1), None, b""]))


def test_no_line_is_read_ahead_of_its_request() -> None:
    read = []

    def source() -> Iterator[bytes]:
        for line in lines(2000):
            read.append(line)
            yield line

    next(client(echo).learn_stream("m", source()))
    assert len(read) == 1000


NO_LINE = [b"", b"\n", b"\r\n", b" \t\n", b'{"n":\n2}', b'{"n": 2}\n{"n": 3}']


@pytest.mark.parametrize("line", NO_LINE)
def test_a_line_that_would_shift_the_answers_is_an_error_behind_those_before(line: bytes) -> None:
    answers = client(echo).classify_stream("m", [*lines(1000), b'{"n": 1000}', line, b'{"n": 1001}'])
    assert [next(answers)["n"] for _ in range(1001)] == list(range(1001))
    with pytest.raises(ValueError, match=r"^line 1002 of the stream"):
        next(answers)


def test_lines_may_have_their_ends() -> None:
    bodies = []

    def keep(request: httpx.Request) -> httpx.Response:
        bodies.append(request.read())
        return echo(request)

    file = io.BytesIO(b'{"n": 0}\n{"n": 1}\r\n{"n": 2}')
    assert [answer["n"] for answer in client(keep).learn_stream("m", file)] == [0, 1, 2]
    assert bodies == [b'{"n": 0}\n{"n": 1}\n{"n": 2}\n']


def test_a_whole_request_that_was_refused_is_sent_again() -> None:
    calls: list[int] = []
    pauses: list[float] = []

    def busy(request: httpx.Request) -> httpx.Response:
        calls.append(1)
        if len(calls) < 3:
            return httpx.Response(503, json=problem(503, retry_after=2.5), headers={"Retry-After": "3"})
        return echo(request)

    assert len(list(client(busy, pauses).learn_stream("m", lines(3)))) == 3
    assert pauses == [2.5, 2.5]


def test_a_request_that_never_arrived_is_sent_again_and_given_up_at_last() -> None:
    calls = []

    def away(request: httpx.Request) -> httpx.Response:
        calls.append(1)
        raise httpx.ConnectError("refused")

    with pytest.raises(Unreachable, match="no service answers at http://test"):
        list(client(away).learn_stream("m", lines(3)))
    assert len(calls) == ATTEMPTS


def starting(n: int, then: Handler = echo) -> Handler:
    """Begins to answer after so many requests."""
    left = [n]

    def handler(request: httpx.Request) -> httpx.Response:
        left[0] -= 1
        said = problem(
            503, type="/problems/not-ready", detail="this replica accepts no changes: warming", retry_after=1
        )
        return then(request) if left[0] < 0 else httpx.Response(503, json=said)

    return handler


def test_a_stream_waits_for_a_service_that_is_starting() -> None:
    pauses: list[float] = []
    answers = client(starting(100), pauses).learn_stream("m", lines(1500), keyed=True)
    assert [answer["n"] for answer in answers] == list(range(1500))
    assert pauses == [1.0] * 100


def test_a_service_that_never_becomes_ready_is_given_up() -> None:
    pauses: list[float] = []
    with pytest.raises(Refused, match="warming"):
        list(client(starting(10**6), pauses).learn_stream("m", lines(3)))
    assert START_SECONDS <= sum(pauses) <= START_SECONDS + 2 * ATTEMPTS


def test_whoever_follows_a_job_waits_for_a_service_that_is_starting() -> None:
    def ended(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, content=b'data: {"id": "a", "ended": 1}\n\n')

    assert list(client(starting(100, ended)).follow("a")) == [{"id": "a", "ended": 1}]


def test_a_single_request_does_not_wait_until_a_service_has_started() -> None:
    pauses: list[float] = []
    with pytest.raises(Refused, match="warming"):
        client(starting(100), pauses).models()
    assert len(pauses) == ATTEMPTS - 1


def test_refused_lines_are_sent_again_alone() -> None:
    bodies = []

    def half(request: httpx.Request) -> httpx.Response:
        sent = [json.loads(line) for line in request.read().splitlines()]
        bodies.append([line["n"] for line in sent])
        first = len(bodies) == 1
        answers = [problem(503, retry_after=0.5) if first and line["n"] % 2 else line for line in sent]
        return httpx.Response(200, content="\n".join(map(json.dumps, answers)))

    assert [answer["n"] for answer in client(half).learn_stream("m", lines(4))] == [0, 1, 2, 3]
    assert bodies == [[0, 1, 2, 3], [1, 3]]


def test_invalid_lines_are_answers_like_others() -> None:
    def bad(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, content=json.dumps(problem(422, field="text", line=1)) + '\n{"rank": 1}\n')

    first, second = client(bad).learn_stream("m", lines(2))
    refusal = refusal_of(first)
    assert refusal is not None
    assert str(refusal) == "text: it is so (422)"
    assert refusal_of(second) is None


def test_an_interrupted_learn_is_never_sent_twice() -> None:
    calls = []

    def cut(request: httpx.Request) -> httpx.Response:
        calls.append(1)
        return httpx.Response(200, stream=Cut(b'{"n": 0}\n{"n": 1}\n{"n"'))

    with pytest.raises(Interrupted, match="broke off") as raised:
        list(client(cut).learn_stream("m", lines(5)))
    assert len(calls) == 1
    assert [answer["n"] for answer in raised.value.answers] == [0, 1]
    assert raised.value.sent == 5


@pytest.mark.parametrize("keyed", [False, True])
@pytest.mark.parametrize("away", [Unreachable, Refused])
def test_what_was_learned_in_part_does_not_end_as_if_nothing_was(keyed: bool, away: type[ClientError]) -> None:
    busy = json.dumps(problem(429, retry_after=0))
    calls = []

    def half(request: httpx.Request) -> httpx.Response:
        calls.append(request.read().count(b"\n"))
        if len(calls) == 1:
            return httpx.Response(200, content=f'{{"n": 0}}\n{busy}\n{{"n": 2}}\n{busy}\n')
        if away is Refused:
            return httpx.Response(401, json=problem(401))
        raise httpx.ConnectError("refused", request=request)

    with pytest.raises(Interrupted) as raised:
        list(client(half).learn_stream("m", lines(4), keyed=keyed))
    assert [answer["n"] for answer in raised.value.answers] == [0]
    assert raised.value.sent == 4
    assert isinstance(raised.value.__cause__, away)
    assert calls == ([4, 2] if away is Refused else [4] + [2] * (ATTEMPTS - 1))


@pytest.mark.parametrize("last", ["away", "refused", "lines refused"])
def test_an_interrupted_learn_that_is_sent_again_in_vain_may_have_been_taken(last: str) -> None:
    calls = []

    def cut(request: httpx.Request) -> httpx.Response:
        calls.append(1)
        if len(calls) == 1:
            return httpx.Response(200, stream=Cut(b""))
        if last == "away":
            raise httpx.ConnectError("refused", request=request)
        busy = problem(503, retry_after=0)
        if last == "refused":
            return httpx.Response(503, json=busy)
        return httpx.Response(200, content=f"{json.dumps(busy)}\n" * 3)

    with pytest.raises(Interrupted) as raised:
        list(client(cut).learn_stream("m", lines(3), keyed=True))
    assert (raised.value.answers, raised.value.sent) == ([], 3)


@pytest.mark.parametrize("status", [None, 502, 504])
def test_a_single_learn_that_was_interrupted_and_never_arrived_again_may_have_been_taken(status: int | None) -> None:
    calls = []

    def cut(request: httpx.Request) -> httpx.Response:
        calls.append(1)
        if len(calls) > 1:
            raise httpx.ConnectError("refused", request=request)
        if status is None:
            raise httpx.ReadError("reset", request=request)
        return httpx.Response(status, json=problem(status))

    with pytest.raises(Interrupted):
        client(cut).learn("m", {"text": "a", "labels": ["b"]})
    assert len(calls) > 1


def test_a_stream_that_is_left_sends_nothing_more_and_keeps_the_client() -> None:
    sizes = []

    def count(request: httpx.Request) -> httpx.Response:
        sizes.append(request.read().count(b"\n"))
        return echo(request)

    made = client(count)
    answers = made.learn_stream("m", lines(3000))
    next(answers)
    answers.close()
    assert sizes == [1000]
    assert len(list(made.classify_stream("m", lines(3)))) == 3


@pytest.mark.parametrize("stream", ["classify", "keyed"])
def test_an_interrupted_request_that_may_be_repeated_is(stream: str) -> None:
    calls = []

    def once_cut(request: httpx.Request) -> httpx.Response:
        calls.append(1)
        return httpx.Response(200, stream=Cut(b'{"n": 0}\n')) if len(calls) == 1 else echo(request)

    made = client(once_cut)
    answers = (
        made.classify_stream("m", lines(3)) if stream == "classify" else made.learn_stream("m", lines(3), keyed=True)
    )
    assert [answer["n"] for answer in answers] == [0, 1, 2]


def test_an_answer_that_lacks_lines_is_interrupted() -> None:
    with pytest.raises(Interrupted):
        list(client(lambda request: httpx.Response(200, content=b'{"n": 0}\n')).learn_stream("m", lines(2)))


def test_the_rest_of_a_request_that_was_refused_as_a_whole() -> None:
    content = b'{"n": 0}\n' + json.dumps(problem(413, line=2)).encode()
    answers = list(client(lambda request: httpx.Response(200, content=content)).learn_stream("m", lines(4)))
    assert [answer.get("status") for answer in answers] == [None, 413, 413, 413]


def test_problem_documents_are_exceptions() -> None:
    made = client(lambda request: httpx.Response(404, json=problem(404)))
    with pytest.raises(Refused, match=r"it is so \(404\)") as raised:
        made.describe("x")
    assert raised.value.status == 404


def test_what_is_no_problem_document_says_where_it_came_from() -> None:
    made = client(lambda request: httpx.Response(502, content=b"<html>"))
    with pytest.raises(Refused, match="http://test/models answers 502"):
        made.models()


def test_another_service_altogether() -> None:
    with pytest.raises(Refused, match="does not answer like this service"):
        client(lambda request: httpx.Response(200, content=b"hello")).models()


def test_the_key_travels_as_bearer_token() -> None:
    def check(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, json={"token": request.headers["Authorization"]})

    made = Client("http://test", key="secret", transport=httpx.MockTransport(check))
    assert made.models() == {"token": "Bearer secret"}


def test_a_single_learn_gets_a_key_and_is_sent_again_with_the_same_one() -> None:
    keys = []

    def lost(request: httpx.Request) -> httpx.Response:
        keys.append(request.headers["Idempotency-Key"])
        if len(keys) < 3:
            raise httpx.ReadError("reset")
        return httpx.Response(200, json={"rank": 1})

    made = client(lost)
    assert made.learn("m", {"text": "a", "labels": ["x"]}) == {"rank": 1}
    assert len(set(keys)) == 1
    assert made.learn("m", {"text": "a", "labels": ["x"]}) == {"rank": 1}
    assert len(set(keys)) == 2


@pytest.mark.parametrize("error", [httpx.ReadError("reset"), 502, 504])
def test_a_learn_that_waits_for_the_log_only_is_never_sent_twice(error: httpx.ReadError | int) -> None:
    calls = []

    def lost(request: httpx.Request) -> httpx.Response:
        calls.append("Idempotency-Key" in request.headers)
        if isinstance(error, int):
            return httpx.Response(error, json=problem(error))
        raise error

    with pytest.raises((Interrupted, Refused)):
        client(lost).learn("m", {"text": "a", "labels": ["x"], "wait": "log"})
    assert calls == [False]


@pytest.mark.parametrize(("status", "times"), [(429, ATTEMPTS), (503, ATTEMPTS), (507, 1), (422, 1), (500, 1)])
def test_which_refusals_are_tried_again(status: int, times: int) -> None:
    calls, pauses = [], list[float]()

    def refuse(request: httpx.Request) -> httpx.Response:
        calls.append(1)
        return httpx.Response(status, json=problem(status), headers={"Retry-After": "4"})

    with pytest.raises(Refused):
        client(refuse, pauses).learn("m", {"text": "a", "labels": ["x"], "wait": "log"})
    assert len(calls) == times
    assert pauses == [4.0] * (times - 1)


def test_a_service_that_never_answered_is_not_waited_for_and_one_that_did_is() -> None:
    calls: list[int] = []

    def away_at_times(request: httpx.Request) -> httpx.Response:
        calls.append(1)
        if len(calls) in (1, 3, 4):
            raise httpx.ConnectError("refused")
        return httpx.Response(200, json={})

    made = client(away_at_times)
    with pytest.raises(Unreachable):
        made.models()
    assert made.models() == {}
    assert made.models() == {}
    assert len(calls) == 5


def test_only_what_was_not_answered_is_sent_again() -> None:
    bodies = []

    def cut(request: httpx.Request) -> httpx.Response:
        bodies.append(request.read().splitlines())
        if len(bodies) < 8:  # each time something comes of it, so the attempts count anew
            return httpx.Response(200, stream=Cut(bodies[-1][0] + b"\n"))
        return httpx.Response(200, content=request.content)

    answers = client(cut).learn_stream("m", lines(9), keyed=True)
    assert [answer["n"] for answer in answers] == list(range(9))
    assert [len(body) for body in bodies] == [9, 8, 7, 6, 5, 4, 3, 2]


def test_an_error_of_the_source_comes_behind_the_answers_of_what_was_sent() -> None:
    n_sent = []

    def keep(request: httpx.Request) -> httpx.Response:
        n_sent.append(request.read().count(b"\n"))
        return echo(request)

    def source() -> Iterator[bytes]:
        yield from lines(2400)
        raise OSError("the disk is gone")

    answers = client(keep).learn_stream("m", source())
    assert [next(answers)["n"] for _ in range(2000)] == list(range(2000))
    with pytest.raises(OSError, match="the disk is gone"):
        next(answers)
    assert n_sent == [1000, 1000]


def broken_gzip(request: httpx.Request) -> httpx.Response:
    return httpx.Response(200, headers={"Content-Encoding": "gzip"}, stream=httpx.ByteStream(b"no gzip at all"))


@pytest.mark.parametrize(
    "answer",
    [
        broken_gzip,
        lambda request: httpx.Response(200, content=b'{"n": "\xff"}\n'),
        lambda request: httpx.Response(200, content=b"[1]\n"),
        lambda request: httpx.Response(200, json={"labels": "none", "applied": 3}),
        lambda request: httpx.Response(200, content=b'{"n":' + b"[" * 100_000),
    ],
    ids=["gzip", "utf-8", "no object", "another shape", "too deep"],
)
def test_an_answer_that_cannot_be_read_is_an_error_of_the_client(answer: Handler) -> None:
    model = Model(client(answer), "m")
    for ask in (
        lambda: model.classify(text="a"),
        lambda: model.learn("a", ["x"]),
        lambda: list(model.classify_many([InputInstance(text="a")])),
        lambda: list(model.learn_many([Labelled(text="a", labels=["x"])])),
    ):
        with pytest.raises(ClientError, match=r"cannot be read|does not answer like this service"):
            ask()


def test_what_numpy_holds_is_sent_as_what_it_is() -> None:
    bodies = []

    def keep(request: httpx.Request) -> httpx.Response:
        bodies.append({name: one for name, one in json.loads(request.read()).items() if name != "key"})
        answer = {"offset": "1-0.0", "applied": True, "durability": "log", "rank": 2, "updated": True}
        return httpx.Response(200, json=answer)

    model = Model(client(keep), "m")
    features: Any = {np.str_("a"): np.float64(2.5), "b": np.float32(0.5), "c": np.int64(3), "d": np.bool_(True)}
    labels: Any = np.array(["x", "y"])
    model.learn(labels=labels, features=features)
    list(model.learn_many([Labelled(labels=labels, features=features)]))
    model.client.learn("m", {"features": features, "labels": labels})
    assert bodies == [{"features": {"a": 2.5, "b": 0.5, "c": 3, "d": True}, "labels": ["x", "y"]}] * 3
    with pytest.raises(TypeError, match="a complex cannot be sent"):
        model.learn(labels=["x"], features={"a": 1j})
    assert calls.encode([np.longdouble(1.5), np.array([0.5], np.longdouble), np.array(["a", 1], object)]) == (
        b'[1.5,[0.5],["a",1]]'
    )


@pytest.mark.parametrize(
    "value",
    [
        np.array([b"red"]),
        np.bytes_(b"red"),
        np.datetime64("2020-01-01", "ns"),
        np.datetime64("2020-01-01", "s"),
        np.timedelta64(1, "ns"),
        np.clongdouble(1),
        np.zeros(1, "i4,i4"),
    ],
    ids=str,
)
def test_what_would_become_something_else_is_not_sent(value: Any) -> None:
    with pytest.raises(TypeError, match="cannot be sent"):
        calls.encode({"a": value})


def test_what_takes_the_service_long_is_waited_for() -> None:
    waited = {}

    def keep(request: httpx.Request) -> httpx.Response:
        timeout = request.extensions["timeout"]
        waited[request.url.path.rsplit("/", 1)[-1]] = (timeout["read"], timeout["connect"])
        return httpx.Response(200, json={})

    for seconds in (60.0, 1000.0):
        made = Client("http://test", timeout=seconds, transport=httpx.MockTransport(keep))
        made.activate("m", "live")
        made.snapshot("m")
        made.describe("m")
        assert waited == {
            "activate": (max(seconds, calls.ACTIVATE_SECONDS), seconds),
            "snapshots": (max(seconds, calls.SNAPSHOT_SECONDS), seconds),
            "m": (seconds, seconds),
        }


def test_a_pause_that_is_no_number_is_none() -> None:
    model = Model(
        client(lambda request: httpx.Response(403, headers={"Retry-After": "²".encode()}, content=b"{}")), "m"
    )
    with pytest.raises(Refused) as raised:
        model.classify(text="a")
    assert "retry_after" not in raised.value.problem


HUGE = "9" * 400


@pytest.mark.parametrize(
    ("headers", "body", "pause"),
    [
        ({"Retry-After": HUGE * 20}, "{}", 1.0),
        ({}, f'{{"title": "X", "retry_after": {HUGE}}}', MAX_PAUSE),
        ({}, '{"title": "X", "retry_after": 1e300}', MAX_PAUSE),
    ],
    ids=["header", "integer", "number"],
)
def test_a_pause_of_ages_is_bounded(headers: dict[str, str], body: str, pause: float) -> None:
    pauses: list[float] = []
    made = client(lambda request: httpx.Response(503, headers=headers, content=body), pauses)
    with pytest.raises(Refused):
        made.submit({})
    assert pauses == [pause] * (ATTEMPTS - 1)


def test_no_cookie_is_kept() -> None:
    sent = []

    def answer(request: httpx.Request) -> httpx.Response:
        sent.append("cookie" in request.headers)
        return httpx.Response(200, headers=[(b"Set-Cookie", b"replica=2"), (b"Set-Cookie", b"\xff=1")], json={})

    made = client(answer)
    made.models()
    made.models()
    assert sent == [False, False]


@pytest.mark.parametrize("answer", [broken_gzip, lambda request: httpx.Response(200, content=b'data: {"n": 1}\n\n')])
def test_files_and_events_that_cannot_be_read(answer: Handler) -> None:
    made = client(answer)
    with pytest.raises(Interrupted):
        list(made.follow("j"))
    if answer is broken_gzip:
        with pytest.raises(Interrupted, match="the file cannot be read"):
            list(made.export("m"))


@pytest.mark.parametrize("key", ["abk_é", "abk_1\n", "abk_1\r\nX: y"])
def test_a_key_that_cannot_travel_is_refused_at_once(key: str) -> None:
    for make in (Client, AsyncClient):
        with pytest.raises(ValueError, match="printable ASCII"):
            make("http://test", key=key)
    with pytest.raises(ValueError, match="printable ASCII"):
        client(echo).submit({}, key=key)


@pytest.mark.parametrize("name", [None, "other"])
async def test_a_data_set_is_a_file(name: str | None, tmp_path: Path) -> None:
    file = tmp_path / "news.jsonl.gz"
    file.write_bytes(bytes(range(256)) * 5000)
    seen: list[tuple[str, bytes]] = []

    def keep(request: httpx.Request) -> httpx.Response:
        seen.append((str(request.url), request.content))
        return httpx.Response(201, json={})

    async def read_and_keep(request: httpx.Request) -> httpx.Response:
        await request.aread()
        return keep(request)

    def read_first(request: httpx.Request) -> httpx.Response:
        request.read()
        return keep(request)

    client(read_first).put_dataset(file, name)
    async with AsyncClient("http://test", transport=httpx.MockTransport(read_and_keep)) as other:
        await other.put_dataset(str(file), name)
    url = f"http://test/datasets/{name or 'news'}?filename=news.jsonl.gz"
    assert seen == [(url, file.read_bytes())] * 2
    with pytest.raises(FileNotFoundError):
        client(read_first).put_dataset(tmp_path / "missing.jsonl")
