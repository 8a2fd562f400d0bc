"""The audit log: what an act leaves behind, in the store and in the log lines."""

import msgspec
import pytest
from structlog.testing import capture_logs

from abound.security import audit
from abound.security.audit import Actor
from abound.store.client import Store
from abound_core.errors import Conflict, OutcomeUnknown, StoreUnavailable
from tests.support.valkey import Server

WHO = Actor("abc", "192.0.2.7", "r-1", "198.51.100.1")


async def test_the_outcome_of_a_block_is_kept(store: Store) -> None:
    async with audit.audited(store, WHO, "model.delete", model="m") as details:
        details["bytes"] = 7
    for error in (Conflict("not so"), OutcomeUnknown("who knows"), ValueError("a bug")):
        with pytest.raises(type(error)):
            async with audit.audited(store, WHO, "model.configure", model="m"):
                raise error
    kept = await audit.newest_acts(store)
    assert [(act.outcome, act.reason) for act in kept] == [
        ("unknown", "who knows"),
        ("refused", "not so"),
        ("done", None),
    ]
    assert kept[2].details == {"model": "m", "bytes": 7}


async def test_the_log_is_bounded_and_so_is_an_act(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit, "MOST_ACTS", 200)
    for _ in range(1000):
        await audit.record(store, WHO, "key.create", {})
    assert 200 <= len(await audit.newest_acts(store, 10_000)) < 400
    await audit.record(store, WHO, "job.submit", {"reason": "x" * 10_000, "list": ["y" * 10_000]}, reason="z" * 10_000)
    [act] = await audit.newest_acts(store, 1)
    assert max(len(act.details["reason"]), len(act.details["list"][0]), len(act.reason or "")) < 600


@pytest.mark.parametrize(
    "params",
    [
        {f"k{i}": "x" * 500 for i in range(300)},
        {"reason": "asked for", "list": [["\u20ac"] * 300] * 30},
        {"\u20ac" * 9000: 1},
        list(range(5000)),
    ],
)
async def test_many_details_are_cut_as_one_and_long_ones_too(store: Store, params: object) -> None:
    who = WHO._replace(forwarded="203.0.113.9, " * 5000)
    with capture_logs() as lines:
        await audit.record(store, who, "job.submit", {"model": "m", "method": "forget", "params": params, "job": "j"})
    [(_, fields)] = await store.client.xrange(audit.AUDIT_KEY)
    assert sum(map(len, fields.values())) < audit.MAX_DETAILS_BYTES + 4 * audit.MAX_TEXT
    assert len(fields[b"details"]) <= audit.MAX_DETAILS_BYTES
    assert len(str(lines)) < 2 * audit.MAX_DETAILS_BYTES
    [act] = await audit.newest_acts(store)
    assert (act.details["model"], act.details["method"], act.details["job"]) == ("m", "forget", "j")
    assert act.details["params"].startswith(msgspec.json.encode(params)[:100].decode("ascii", "replace")[:80])
    assert len(act.details["params"]) < 600


async def test_details_are_cut_where_they_are_nested_too_deeply(store: Store) -> None:
    deep = msgspec.json.decode("[" * 900 + "]" * 900)
    await audit.record(store, WHO, "job.submit", {"model": "m", "params": {"a": deep, "b": [1]}})
    [act] = await audit.newest_acts(store)
    assert act.details["params"]["b"] == [1]
    assert len(msgspec.json.encode(act.details["params"]["a"])) < 100


async def test_without_the_store_the_line_stays(own_server: Server, store: Store) -> None:
    away = Store(own_server.url)
    own_server.kill()
    with capture_logs() as lines:
        await audit.record(away, WHO, "model.delete", {"model": "m"})
    assert [(line["log_level"], line["stored"]) for line in lines] == [("warning", False)]
    with pytest.raises(StoreUnavailable):
        await audit.newest_acts(away)
    await away.close()
