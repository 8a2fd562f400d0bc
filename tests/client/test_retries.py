"""Which requests are sent again, how often, and after which pause."""

from __future__ import annotations

import json

import httpx
import pytest

from abound.client import ATTEMPTS, MAX_PAUSE, Client, Interrupted, Refused, Unreachable
from abound.client import requests as calls
from abound.client.retries import MAX_WAIT
from tests.client.mock_service import AWAY, Script, body, client, echo, lines, problem, starting


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
