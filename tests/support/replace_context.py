"""What the tests of replacements share: a job without jobs, and a plain telling of what must come out."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

from abound.history import full_log
from abound.log import stream
from abound.log.events import LearnEvent, decode_entry
from abound.replica.replica import Replica
from abound_core.errors import Cancelled
from abound_core.model.entry_application import Unit
from abound_core.model.live_model import LiveModel
from abound_core.types import START, Offset
from tests.support.lab import SMALL, Lab, apply, digest_at, digest_of
from tests.support.streams import drafts


class Context:
    """What a job is given, without jobs."""

    def __init__(
        self,
        lab: Lab,
        living: Any,
        job: str = "job",
        committed: bool = False,
        outcome: dict[str, Any] | None = None,
    ) -> None:
        self.store, self.artifacts, self.living = lab.store, lab.artifacts, living
        self.job = SimpleNamespace(id=job, committed=committed, outcome=outcome or {})
        self.settings = SimpleNamespace(
            prepare_seconds=10.0, undo_bytes=2**30, group=lambda kind: SMALL if kind is type(SMALL) else kind()
        )
        self.ranges: list[tuple[Offset | None, Offset | None]] = []
        self.stages: list[str] = []
        self.stop_at: str | None = None

    def check(self) -> None:
        if self.stop_at is not None and self.stages and self.stages[-1].startswith(self.stop_at):
            raise Cancelled("the job was told to stop")

    async def pin(self, offset: Offset) -> None:
        """Nothing is deleted meanwhile."""

    async def range(self, after: Offset | None, until: Offset | None) -> None:
        self.ranges.append((after, until))

    async def so_far(self, outcome: dict[str, Any]) -> None:
        self.job.outcome = outcome

    async def commit(self) -> None:
        self.stages.append("commit")

    def progress(self, stage: str, fraction: float) -> None:
        assert 0 <= fraction <= 1
        self.stages.append(stage)
        self.check()


async def run(lab: Lab, method: Any, params: Any, **given: Any) -> dict[str, Any]:
    context = Context(lab, await lab.living(), **given)
    async with asyncio.timeout(60):
        return cast("dict[str, Any]", await method(context, params, context.progress))


async def without(lab: Lab, gone: Any, until: Offset | None = None) -> LiveModel:
    """A model that never saw what ``gone`` says of a unit and its offset, told as plainly as can be."""
    live = LiveModel((await lab.living()).config, (8, 8))
    for at, event in lab.past:
        if until is not None and at > until:
            break
        if isinstance(event, LearnEvent):
            units = [Unit(unit.n, batch=unit.batch, emptied=True) if gone(unit, at) else unit for unit in event.units]
            assert len(units) == 1
            records = b"" if units[0].emptied else event.records
            apply(live, at, LearnEvent(records, event.n, units))
        else:
            apply(live, at, event)
    return live


async def same(lab: Lab, replica: Replica, expected: LiveModel) -> None:
    """The replica, and all that can be made of what is kept, is the expected model."""
    digest = await digest_of(expected)
    assert await digest_at(replica, await end_of(lab)) == digest
    for from_start in (True, False):
        model = await lab.replayed(from_start=from_start)
        assert await model.compute_digest() == digest


async def replayed(lab: Lab) -> str:
    """The digest of what both stores give."""
    digests = set()
    for from_start in (True, False):
        model = await lab.replayed(from_start=from_start)
        digests.add(await model.compute_digest())
    [digest] = digests
    assert digest is not None
    return digest


async def end_of(lab: Lab) -> Offset:
    return (await stream.tail(lab.store, (await lab.living()).keys.log)).last


def keyed(n: int, seed: int, prefix: str, source: str | None = None) -> list[LearnEvent]:
    return [
        LearnEvent(one.records, 1, [Unit(1, f"{prefix}{i}", b"body", source)]) for i, one in enumerate(drafts(n, seed))
    ]


async def teach(lab: Lab, *learned: Any) -> list[Offset]:
    """Append events, and keep what they were."""
    offsets = await lab.append(*learned)
    lab.past += list(zip(offsets, learned, strict=True))
    return offsets


async def of_history(lab: Lab) -> list[Any]:
    """The events in history and log, as they are there by now."""
    living = await lab.living()
    contents = await lab.contents()
    start = START if contents is None else contents.start
    found = []
    async for elements in full_log.read_entries(lab.store, lab.artifacts, living.keys, start):
        found += [decode_entry(fields).event for _, fields in elements]
    return found


async def start_of(lab: Lab) -> Offset:
    contents = await lab.contents()
    return START if contents is None else contents.start
