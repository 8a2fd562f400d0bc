"""An interrupted learn is never learned twice, and never ends as if nothing was learned."""

from __future__ import annotations

import asyncio
import json
import signal
import threading
import time

import httpx
import pytest

from abound.client import (
    ATTEMPTS,
    AsyncClient,
    Client,
    ClientError,
    Interrupted,
    Refused,
    Unreachable,
)
from tests.client.mock_service import Cut, client, echo, lines, problem


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
    assert calls == ([4, 2] if away is Refused else [4] + [2] * ATTEMPTS)


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


def test_lines_that_were_refused_for_now_before_the_answer_broke_off_are_sent_again() -> None:
    busy = json.dumps(problem(429, retry_after=0))
    bodies = []

    def once_cut(request: httpx.Request) -> httpx.Response:
        bodies.append([json.loads(line)["n"] for line in request.read().splitlines()])
        if len(bodies) == 1:
            return httpx.Response(200, stream=Cut(f'{{"n": 0}}\n{busy}\n{{"n": 2}}\n'.encode()))
        return echo(request)

    answers = client(once_cut).learn_stream("m", lines(5), keyed=True)
    assert [answer.get("n") for answer in answers] == [0, 1, 2, 3, 4]
    assert bodies == [[0, 1, 2, 3, 4], [1, 3, 4]]


async def test_an_answer_with_all_lines_is_complete_although_its_end_was_lost() -> None:
    def cut(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, stream=Cut(request.read()))

    assert [answer["n"] for answer in client(cut).learn_stream("m", lines(3))] == [0, 1, 2]
    async with AsyncClient("http://test", transport=httpx.MockTransport(cut)) as made:
        assert [answer["n"] async for answer in made.learn_stream("m", lines(3))] == [0, 1, 2]


def test_an_answer_that_lacks_lines_is_interrupted() -> None:
    with pytest.raises(Interrupted):
        list(client(lambda request: httpx.Response(200, content=b'{"n": 0}\n')).learn_stream("m", lines(2)))


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


def test_an_interrupted_call_ends_its_request_and_the_client_goes_on() -> None:
    begun, cancelled = threading.Event(), threading.Event()

    async def wait(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/models":
            return httpx.Response(200, json={"models": []})
        begun.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.set()
            raise
        raise AssertionError("nothing interrupted the call")

    def interrupt() -> None:
        begun.wait(30)
        time.sleep(0.5)  # the caller waits for the result by then, which nothing tells
        signal.pthread_kill(main, signal.SIGINT)

    main = threading.main_thread().ident
    assert main is not None
    with Client("http://test", transport=httpx.MockTransport(wait)) as made:
        threading.Thread(target=interrupt).start()
        with pytest.raises(KeyboardInterrupt):
            made.describe("news")
        assert cancelled.wait(30)
        assert made.models() == {"models": []}


def test_a_client_is_not_used_in_a_process_that_was_forked_after_it_was_made(monkeypatch: pytest.MonkeyPatch) -> None:
    with client(echo) as made:
        monkeypatch.setattr("os.getpid", lambda: -1)
        with pytest.raises(RuntimeError, match="made in another process"):
            made.models()
        monkeypatch.undo()
