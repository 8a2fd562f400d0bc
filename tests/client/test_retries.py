"""Which requests are sent again, how often, and after which pause."""

from __future__ import annotations

import json

import httpx
import pytest

from abound.client import (
    ATTEMPTS,
    MAX_PAUSE,
    Client,
    Model,
    Refused,
    Unreachable,
)
from abound.client import requests as calls
from abound.client.retries import MAX_WAIT
from tests.client.mock_service import client, echo, lines, problem, starting


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


def test_a_stream_waits_for_a_service_that_is_starting() -> None:
    pauses: list[float] = []
    answers = client(starting(100), pauses).learn_stream("m", lines(1500), keyed=True)
    assert [answer["n"] for answer in answers] == list(range(1500))
    assert pauses == [1.0] * 100


def test_a_service_that_never_becomes_ready_is_given_up() -> None:
    pauses: list[float] = []
    with pytest.raises(Refused, match="warming"):
        list(client(starting(10**6), pauses).learn_stream("m", lines(3)))
    assert MAX_WAIT <= sum(pauses) <= MAX_WAIT + 2 * ATTEMPTS


def test_whoever_follows_a_job_waits_for_a_service_that_is_starting() -> None:
    def ended(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, content=b'data: {"id": "a", "ended": 1}\n\n')

    assert list(client(starting(100, ended)).follow("a")) == [{"id": "a", "ended": 1}]


def test_a_single_request_does_not_wait_until_a_service_has_started() -> None:
    pauses: list[float] = []
    with pytest.raises(Refused, match="warming"):
        client(starting(100), pauses).models()
    assert len(pauses) == ATTEMPTS - 1


@pytest.mark.parametrize(("status", "times"), [(503, ATTEMPTS), (507, 1), (422, 1), (500, 1)])
def test_which_refusals_are_tried_again(status: int, times: int) -> None:
    calls, pauses = [], list[float]()

    def refuse(request: httpx.Request) -> httpx.Response:
        calls.append(1)
        return httpx.Response(status, json=problem(status), headers={"Retry-After": "4"})

    with pytest.raises(Refused):
        client(refuse, pauses).learn("m", {"text": "a", "labels": ["x"], "wait": "log"})
    assert len(calls) == times
    assert pauses == [4.0] * (times - 1)


@pytest.mark.parametrize(("asked", "times"), [(60, 2), (4, 30), (0, 480), (121, 0)])
def test_a_rate_is_waited_for_as_long_as_the_service_asks_up_to_a_bound(asked: int, times: int) -> None:
    single, stream = list[float](), list[float]()
    busy = problem(429, retry_after=asked)
    with pytest.raises(Refused):
        client(lambda request: httpx.Response(429, json=busy), single).classify("m", {"text": "a"})
    made = client(lambda request: httpx.Response(200, content=json.dumps(busy)), stream)
    assert [answer["status"] for answer in made.learn_stream("m", lines(1))] == [429]
    assert single == stream == [max(asked, 0.25)] * times


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
