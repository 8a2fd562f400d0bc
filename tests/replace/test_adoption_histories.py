"""Adoptions in random histories: however a model comes to an offset, its digest is what the definition gives."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from abound.history.archive import ArchiveContext, archive
from abound.history.history import HistoryParams
from abound.history.replay import compact, replay
from abound.log.events import ActivateEvent, AdoptEvent, ConfigureEvent, PrepareEvent
from abound.store.lease import acquire
from abound_core.model.active_version import LIVE
from abound_core.model.live_model import warmup
from abound_core.types import START
from tests.randomness import examples
from tests.support.lab import SMALL, Lab, digest_at, digest_of, events, model_of
from tests.support.replicas import until
from tests.support.small_versions import fitted, write
from tests.support.valkey import Server

FITTED = [fitted("one"), fitted("two")]

steps = st.lists(
    st.one_of(
        st.tuples(st.just("learn"), st.integers(1, 6)),
        st.tuples(st.just("configure"), st.integers(1, 30)),
        st.tuples(st.just("index"), st.integers(0, 12)),
        st.tuples(st.just("adopt"), st.integers(0, 3)),
        st.tuples(st.just("activate"), st.integers(0, 2)),
        st.tuples(st.just("snapshot"), st.just(0)),
        st.tuples(st.just("archive"), st.just(0)),
        st.tuples(st.just("restart"), st.just(0)),
    ),
    min_size=4,
    max_size=24,
)


async def live_through(lab: Lab, story: list[tuple[str, int]]) -> None:
    """Do what a story says, with two replicas looking on, then compare all ways to the end of it."""
    living = await lab.living()
    replicas = [await lab.replica(), await lab.replica()]
    made: list[Any] = []
    versions = [await write(lab.artifacts, living.keys, one) for one in FITTED]
    offsets = [START]
    everything: list[tuple[Any, Any]] = []
    offsets += await lab.append(*events(3))
    for number, (step, n) in enumerate(story):
        if step == "learn":
            offsets += await lab.append(*events(n, number))
        elif step == "configure":
            offsets += await lab.append(ConfigureEvent({"d_max": n}))
        elif step == "index":  # of anything, standing for the log up to here or some way back
            index = await lab.index(model_of(5 + n, number), offsets[max(0, len(offsets) - 1 - n)])
            made.append(index)
            offsets += await lab.append(PrepareEvent(f"a{number}", index.id, index.offset, index.digest))
        elif step == "adopt" and made:
            index = made[-1 - n % len(made)]
            offsets += await lab.append(AdoptEvent(f"a{number}", index.id, index.offset, index.digest))
        elif step == "activate":
            version, digest = [*((card.id, card.digest) for card in versions), (LIVE, "")][n]
            offsets += await lab.append(ActivateEvent(f"v{number}", version, digest))
        elif step == "snapshot":
            await compact(lab.store, living, SMALL, artifacts=lab.artifacts)
        elif step == "archive":
            everything = await everything_so_far(lab, everything)
            async with acquire(lab.store, living.keys) as lease:
                await archive(ArchiveContext(lab.store, lab.artifacts, living, lease, HistoryParams()))
        elif step == "restart":
            await lab.stop(replicas.pop(0))
            replicas.append(await lab.replica())
    everything = await everything_so_far(lab, everything)
    expected = await digest_of(await lab._state(everything, len(everything)))
    last = everything[-1][0]
    for replica in replicas:
        model = replica.model("default")
        await until(lambda model=model: model.offset[:2] == last[:2] and model.ready)
        assert await digest_at(replica, last) == expected
        model.check_serving()
    for from_start in (True, False):
        model = await replay(lab.store, living, from_start=from_start, artifacts=lab.artifacts)
        assert await model.compute_digest() == expected
        assert model.position.adopted == replicas[0].model("default").position.adopted


async def everything_so_far(lab: Lab, before: list[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
    """The events of a log that is trimmed now and then."""
    known = {at for at, _ in before}
    return before + [(at, event) for at, event in await lab.elements() if at not in known]


@settings(max_examples=examples(12), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps)
def test_every_way_to_an_offset_leads_to_one_state(server: Server, story: list[tuple[str, int]]) -> None:
    warmup()

    async def tell() -> None:
        with tempfile.TemporaryDirectory() as folder:
            lab = Lab(server, Path(folder))
            await lab.open()
            try:
                await live_through(lab, story)
            finally:
                await lab.close()

    with server.client() as client:
        client.flushall()
    asyncio.run(tell())
