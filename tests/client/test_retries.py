"""Which requests are sent again, how often, and after which pause."""

import asyncio
import json
import signal
import threading
import time
from collections.abc import Iterator

import httpx
import pytest

from abound.client import ATTEMPTS, MAX_PAUSE, Client, Interrupted, Refused, Unreachable
from abound.client import requests as calls
from abound.client.retries import MAX_WAIT
from tests.client.mock_service import AWAY, Script, body, client, cut, echo, lines, problem, starting


def test_a_whole_request_that_was_refused_is_sent_again() -> None:
    pauses: list[float] = []
    busy = body(json.dumps(problem(503, retry_after=2.5)), 503, {"Retry-After": "3"})
    assert len(list(client(Script(busy, busy, echo), pauses).learn_stream("m", lines(3)))) == 3
    assert pauses == [2.5, 2.5]


def test_a_request_that_never_arrived_is_sent_again_and_given_up_at_last() -> None:
    script = Script(AWAY)
    with pytest.raises(Unreachable, match="no service answers at http://test"):
        list(client(script).learn_stream("m", lines(3)))
    assert len(script.requests) == ATTEMPTS


def test_streams_and_jobs_that_are_followed_wait_for_a_service_that_is_starting() -> None:
    pauses: list[float] = []
    answers = client(starting(100), pauses).learn_stream("m", lines(1500), keyed=True)
    assert [answer["n"] for answer in answers] == list(range(1500))
    assert pauses == [1.0] * 100
    ended = starting(100, body(b'data: {"id": "a", "ended": 1}\n\n'))
    assert list(client(ended).follow("a")) == [{"id": "a", "ended": 1}]


def test_a_service_that_never_becomes_ready_is_given_up() -> None:
    pauses: list[float] = []
    with pytest.raises(Refused, match="warming"):
        list(client(starting(10**4), pauses).learn_stream("m", lines(3)))
    assert MAX_WAIT <= sum(pauses) <= MAX_WAIT + 2 * ATTEMPTS


def test_a_single_request_does_not_wait_until_a_service_has_started() -> None:
    pauses: list[float] = []
    with pytest.raises(Refused, match="warming"):
        client(starting(100), pauses).models()
    assert len(pauses) == ATTEMPTS - 1


@pytest.mark.parametrize(("status", "times"), [(503, ATTEMPTS), (507, 1), (422, 1), (500, 1)])
def test_which_refusals_are_tried_again(status: int, times: int) -> None:
    pauses: list[float] = []
    script = Script(body(json.dumps(problem(status)), status, {"Retry-After": "4"}))
    with pytest.raises(Refused):
        client(script, pauses).learn("m", {"text": "a", "labels": ["x"], "wait": "log"})
    assert len(script.requests) == times
    assert pauses == [4.0] * (times - 1)


@pytest.mark.parametrize(("asked", "times"), [(60, 2), (4, 30), (0, 480), (121, 0)])
def test_a_rate_is_waited_for_as_long_as_the_service_asks_up_to_a_bound(asked: int, times: int) -> None:
    single, stream = list[float](), list[float]()
    busy = json.dumps(problem(429, retry_after=asked))
    with pytest.raises(Refused):
        client(body(busy, 429), single).classify("m", {"text": "a"})
    assert [answer["status"] for answer in client(body(busy), stream).learn_stream("m", lines(1))] == [429]
    assert single == stream == [max(asked, 0.25)] * times


def test_a_service_that_never_answered_is_not_waited_for_and_one_that_did_is() -> None:
    script = Script(AWAY, 200, AWAY, AWAY, 200)
    made = client(script)
    with pytest.raises(Unreachable):
        made.models()
    for _ in range(2):
        assert made.models() == {}
    assert len(script.requests) == 5


def test_what_takes_the_service_long_is_waited_for() -> None:
    script = Script(200)
    for seconds in (60.0, 1000.0):
        made = Client("http://test", timeout=seconds, transport=httpx.MockTransport(script))
        made.activate("m", "live")
        made.snapshot("m")
        made.describe("m")
        timeouts = [request.extensions["timeout"] for request in script.requests[-3:]]
        read = [max(seconds, calls.ACTIVATE_SECONDS), max(seconds, calls.SNAPSHOT_SECONDS), seconds]
        assert [(one["read"], one["connect"]) for one in timeouts] == [(one, seconds) for one in read]


HUGE = "9" * 400


@pytest.mark.parametrize(
    ("headers", "said", "pause"),
    [
        ({"Retry-After": HUGE * 20}, "{}", 1.0),
        ({"Retry-After": "²".encode()}, "{}", 1.0),
        ({}, f'{{"title": "X", "retry_after": {HUGE}}}', MAX_PAUSE),
        ({}, '{"title": "X", "retry_after": 1e300}', MAX_PAUSE),
    ],
    ids=["header", "no number", "integer", "float"],
)
def test_a_pause_of_ages_is_bounded_and_one_that_is_no_number_is_none(headers, said, pause):
    pauses: list[float] = []
    with pytest.raises(Refused):
        client(body(said, 503, headers), pauses).submit({})
    assert pauses == [pause] * (ATTEMPTS - 1)


def test_a_follower_connects_again_when_the_events_break_off_and_gives_up_in_the_end() -> None:
    begun = body(b'data: {"ended": null, "progress": 0.1}\n\n')
    script = Script(begun, 503, body(b'data: {"ended": 1.0, "progress": 1.0}\n\n'))
    assert [job["progress"] for job in client(script).follow("a")] == [0.1, 1.0]
    silent = Script(body(b": ping\n\n"))
    with pytest.raises(Interrupted):
        list(client(silent).follow("a"))
    assert len(silent.requests) == 6
    with pytest.raises(Refused):
        list(client(Script(404)).follow("a"))


# an interrupted learn is never learned twice, and never ends as if nothing was learned


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
    learned, ranked = made.learn_stream("m", lines(3), keyed=True), made.classify_stream("m", lines(3))
    answers = ranked if stream == "classify" else learned
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
