"""Rates: a key's and a source's, over batches and lines, and without the store."""

import asyncio
import time
from dataclasses import replace
from typing import Any

import pytest

from abound.api.ndjson import NdjsonLine
from abound.api.ndjson_rates import admit_lines
from abound.security import rate_limits
from abound.security.key import CreatedKey, KeyTerms, create_key, rate_of
from abound.security.key_ring import Grant
from abound.security.rate_limits import RateLimiter, RateParams
from abound.store.client import Store
from abound_core.errors import RateLimited, StoreUnavailable, TooLarge
from tests.support.served import NDJSON, Served, bearer, lines, make_key, ndjson, problem, served
from tests.support.valkey import PATIENT, Server

ONE = {"features": {"f": 1}}
LABELLED = ONE | {"labels": ["a"]}


@pytest.fixture
def limited(service: Served, monkeypatch: pytest.MonkeyPatch) -> CreatedKey:
    monkeypatch.setattr(rate_limits, "ANSWER_SECONDS", 10.0)  # a slow machine is no outage
    return make_key(service, "classify", "learn", rate="20/minute")


def classify(service: Served, made: CreatedKey, body: Any) -> Any:
    return service.http.post("/classify", json=body, headers=bearer(made))


def test_a_key_is_limited_by_instances_and_others_are_not(service: Served, limited: CreatedKey) -> None:
    free = make_key(service, "classify")
    for _ in range(3):
        assert classify(service, limited, ONE).status_code == 200
    assert classify(service, limited, {"instances": [ONE] * 15}).status_code == 200
    refused = classify(service, limited, {"instances": [ONE] * 3})
    assert 1 <= problem(refused, 429, "rate-limited")["retry_after"] <= 120  # the window ends, then it thins out
    assert 1 <= int(refused.headers["retry-after"]) <= 120
    assert classify(service, limited, {"instances": [ONE] * 2}).status_code == 200
    problem(classify(service, limited, ONE), 429, "rate-limited")
    problem(service.http.post("/learn", json=LABELLED, headers=bearer(limited)), 429, "rate-limited")
    for _ in range(30):
        assert classify(service, free, ONE).status_code == 200


@pytest.mark.parametrize("path", ["/classify", "/learn"])
def test_lines_count_one_each_and_those_too_many_are_refused(service: Served, limited: CreatedKey, path: str) -> None:
    learned = service.live().n_learned
    body = ndjson(*([LABELLED] * 50)) if path == "/learn" else ndjson(*([ONE] * 50))
    answers = lines(service.http.post(path, content=body, headers=bearer(limited) | NDJSON))
    assert len(answers) == 50
    refused = [answer for answer in answers if "status" in answer]
    assert len(refused) == 30
    assert {answer["status"] for answer in refused} == {429}
    assert all(answer["retry_after"] > 0 for answer in refused)
    assert service.live().n_learned - learned == (20 if path == "/learn" else 0)


def test_a_source_is_limited_under_its_key() -> None:
    with served() as service:
        made = make_key(service, "learn", source_rate="3/minute")
        other = make_key(service, "learn")

        def learn(key: CreatedKey, source: str | None, n: int = 1) -> int:
            body = {"instances": [LABELLED] * n} | ({"source": source} if source else {})
            return int(service.http.post("/learn", json=body, headers=bearer(key)).status_code)

        assert [learn(made, "a"), learn(made, "a", 2), learn(made, "a")] == [200, 200, 429]
        assert [learn(made, "b", 3), learn(made, None, 50), learn(other, "a", 50)] == [200, 200, 200]
        body = ndjson(*[LABELLED | {"source": f"s{i % 2}"} for i in range(10)], {"source": 5}, LABELLED)
        answers = lines(service.http.post("/learn", content=body, headers=bearer(made) | NDJSON))
        assert [answer.get("status", 200) for answer in answers] == [200] * 6 + [429] * 4 + [422, 200]


def test_settings_limit_keys_without_a_rate_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ABOUND_RATE_KEY", "2/minute")
    monkeypatch.setenv("ABOUND_RATE_SOURCE", "1/minute")
    monkeypatch.setattr(rate_limits, "ANSWER_SECONDS", 10.0)
    with served() as service:
        body = LABELLED | {"source": "s"}
        assert service.http.post("/learn", json=body).status_code == 200
        problem(service.http.post("/learn", json=body), 429)  # a source is limited without a key, too
        plain, own = make_key(service, "classify"), make_key(service, "classify", rate="100/minute")
        assert [classify(service, plain, ONE).status_code for _ in range(3)] == [200, 200, 429]
        assert [classify(service, own, ONE).status_code for _ in range(5)] == [200] * 5


async def test_a_source_over_its_rate_uses_up_nothing_of_its_key(store: Store) -> None:
    terms = KeyTerms(["learn"], rate="8/minute", source_rate="2/minute")
    rates, grant = RateLimiter(store), Grant(create_key(terms, 0.0, ()).key)
    for source in ("one", "two"):
        await rates.admit(grant, 2, source, learns=True)
        with pytest.raises(RateLimited, match="this source"):
            await rates.admit(grant, 2, source, learns=True)
    noisy = [NdjsonLine(number, b'{"source": "one"}') for number in range(1, 6)]
    await admit_lines(rates, grant, noisy, learns=True)
    assert [type(line.error) for line in noisy] == [RateLimited] * 5
    await rates.admit(grant, 4, learns=True)
    with pytest.raises(RateLimited, match="this key"):
        await rates.admit(grant, 1, learns=True)


async def test_the_wait_that_is_told_is_long_enough_and_not_much_longer(store: Store) -> None:
    rates, rate = RateLimiter(store), rate_of("10/second")

    async def exceed() -> None:
        for _ in range(100):  # the machine may take longer than a second for two
            await rates.count(rate, "key", "k", 8, learns=True)

    with pytest.raises(RateLimited) as refusal:
        await exceed()
    assert 0 < refusal.value.retry_after <= 2
    await asyncio.sleep(refusal.value.retry_after + 0.1)
    await rates.count(rate, "key", "k", 8, learns=True)
    with pytest.raises(TooLarge):
        await rates.count(rate, "key", "k", 11, learns=True)


@pytest.mark.parametrize("n_before", [0, 7])
async def test_a_clock_that_was_set_back_keeps_nobody_out(own_server: Server, n_before: int) -> None:
    """To the store it is as if what was counted stayed for as much longer."""
    store = Store(own_server.url)
    rates, rate = RateLimiter(store), rate_of("10/minute")
    if n_before:
        await rates.count(rate, "key", "a", n_before, learns=True)
        (counter,) = [name async for name in store.client.scan_iter("abound:rates*")]
        await store.client.pexpire(counter, 54_000)  # as if it had been counted 66 seconds ago
    await rates.count(rate, "key", "a", 3, learns=True)
    counters = [name async for name in store.client.scan_iter("abound:rates*")]
    assert len(counters) == (2 if n_before else 1)
    for name in counters:
        await store.client.pexpire(name, await store.client.pttl(name) + 3_600_000)
    await rates.count(rate, "key", "a", 10, learns=True)
    with pytest.raises(RateLimited):
        await rates.count(rate, "key", "a", 10, learns=True)
    await store.close()


async def test_all_replicas_count_together(store: Store) -> None:
    one, other, rate = RateLimiter(store), RateLimiter(store), rate_of("10/minute")
    outcomes = await asyncio.gather(
        *(rates.count(rate, "key", "k", 1, learns=True) for _ in range(10) for rates in (one, other)),
        return_exceptions=True,
    )
    assert sum(outcome is None for outcome in outcomes) == 10


async def test_what_is_to_be_learned_waits_for_the_store_and_is_refused_without_it(own_server: Server) -> None:
    store = Store(own_server.url, PATIENT)
    rates, rate = RateLimiter(store, RateParams(source="10/minute")), rate_of("10/minute")
    try:
        await rates.count(rate, "key", "one", 1, learns=True)
        own_server.pause()
        learning = asyncio.create_task(rates.count(rate, "key", "one", 9, learns=True))
        await rates.count(rate, "key", "one", 10)
        assert rates.take_unchecked_count() == 10
        assert not learning.done()
        own_server.resume()
        await learning
        with pytest.raises(RateLimited):  # also while those who classify leave the store alone
            await rates.count(rate, "key", "one", 1, learns=True)
        own_server.pause()
        await store.close()
        store = Store(own_server.url, replace(PATIENT, reply_seconds=1.0))
        rates = RateLimiter(store, RateParams(source="10/minute"))
        with pytest.raises(StoreUnavailable, match=r"of this key cannot be counted .*; nothing was appended"):
            await rates.count(rate, "key", "one", 1, learns=True)
        several = [NdjsonLine(number, b'{"source": "%d"}' % number) for number in range(1, 61)]
        began = time.monotonic()
        await admit_lines(rates, None, several, learns=True)
        assert [type(line.error) for line in several] == [StoreUnavailable] * 60
        assert time.monotonic() - began < 30  # each of them would take 60
        assert rates.take_unchecked_count() == 0
    finally:
        own_server.resume()
        await store.close()
