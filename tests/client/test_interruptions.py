"""An interrupted learn is never learned twice, and never ends as if nothing was learned."""

from __future__ import annotations

import asyncio
import json
import signal
import threading
import time
from collections.abc import Iterator

import httpx
import pytest

from abound.client import ATTEMPTS, Client, Interrupted, Refused, Unreachable
from tests.client.mock_service import AWAY, Script, body, client, cut, echo, lines, problem

BUSY = json.dumps(problem(429, retry_after=0))
LESSON = {"text": "a", "labels": ["x"]}
RESET = httpx.ReadError("reset")


def test_an_interrupted_learn_is_never_sent_twice() -> None:
    script = Script(cut(b'{"n": 0}\n{"n": 1}\n{"n"'))
    with pytest.raises(Interrupted, match="broke off") as raised:
        list(client(script).learn_stream("m", lines(5)))
    assert len(script.requests) == 1
    assert ([answer["n"] for answer in raised.value.answers], raised.value.sent) == ([0, 1], 5)


@pytest.mark.parametrize("keyed", [False, True])
@pytest.mark.parametrize(("last", "away", "times"), [(AWAY, Unreachable, ATTEMPTS), (401, Refused, 1)])
def test_what_was_learned_in_part_does_not_end_as_if_nothing_was(keyed, last, away, times):
    script = Script(body(f'{{"n": 0}}\n{BUSY}\n{{"n": 2}}\n{BUSY}\n'), last)
    with pytest.raises(Interrupted) as raised:
        list(client(script).learn_stream("m", lines(4), keyed=keyed))
    assert ([answer["n"] for answer in raised.value.answers], raised.value.sent) == ([0], 4)
    assert isinstance(raised.value.__cause__, away)
    assert script.numbers == [[0, 1, 2, 3]] + [[1, 3]] * times


@pytest.mark.parametrize("last", [AWAY, 503, body(f"{BUSY}\n" * 3)], ids=["away", "refused", "lines refused"])
def test_an_interrupted_learn_that_is_sent_again_in_vain_may_have_been_taken(last: int) -> None:
    with pytest.raises(Interrupted) as raised:
        list(client(Script(cut(), last)).learn_stream("m", lines(3), keyed=True))
    assert (raised.value.answers, raised.value.sent) == ([], 3)


@pytest.mark.parametrize("first", [RESET, 502, 504], ids=["reset", "502", "504"])
def test_a_single_learn_that_was_interrupted_and_never_arrived_again_may_have_been_taken(first: int) -> None:
    script = Script(first, AWAY)
    with pytest.raises(Interrupted):
        client(script).learn("m", LESSON)
    assert len(script.requests) > 1


@pytest.mark.parametrize("stream", ["classify", "keyed"])
def test_an_interrupted_request_that_may_be_repeated_is(stream: str) -> None:
    made = client(Script(cut(b'{"n": 0}\n'), echo))
    answers = (
        made.classify_stream("m", lines(3)) if stream == "classify" else made.learn_stream("m", lines(3), keyed=True)
    )
    assert [answer["n"] for answer in answers] == [0, 1, 2]


def test_lines_that_were_refused_for_now_before_the_answer_broke_off_are_sent_again() -> None:
    script = Script(cut(f'{{"n": 0}}\n{BUSY}\n{{"n": 2}}\n'.encode()), echo)
    answers = client(script).learn_stream("m", lines(5), keyed=True)
    assert [answer.get("n") for answer in answers] == [0, 1, 2, 3, 4]
    assert script.numbers == [[0, 1, 2, 3, 4], [1, 3, 4]]


def test_an_answer_with_all_lines_is_complete_although_its_end_was_lost() -> None:
    made = client(lambda request: cut(request.content)(request))
    assert [answer["n"] for answer in made.learn_stream("m", lines(3))] == [0, 1, 2]


def test_an_answer_that_lacks_lines_is_interrupted() -> None:
    with pytest.raises(Interrupted):
        list(client(body(b'{"n": 0}\n')).learn_stream("m", lines(2)))


def test_a_single_learn_gets_a_key_and_is_sent_again_with_the_same_one() -> None:
    script = Script(RESET, RESET, 200)
    made = client(script)
    for _ in range(2):
        made.learn("m", LESSON)
    keys = [request.headers["Idempotency-Key"] for request in script.requests]
    assert keys[0] == keys[1] == keys[2] != keys[3]


@pytest.mark.parametrize("error", [RESET, 502, 504], ids=["reset", "502", "504"])
def test_a_learn_that_waits_for_the_log_only_is_never_sent_twice(error: int) -> None:
    script = Script(error)
    with pytest.raises((Interrupted, Refused)):
        client(script).learn("m", LESSON | {"wait": "log"})
    assert ["Idempotency-Key" in request.headers for request in script.requests] == [False]


@pytest.fixture
def interruptible() -> Iterator[None]:
    """SIGINT interrupts also where the tests run in the background of a shell, which ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
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
        while not cancelled.wait(20):  # it did not wait yet: nothing woke it
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
