"""Records of erasures: which *forget* jobs are complete, and what unfinished ones erase.

    ...:forgotten     set: the log entries of the adoptions of complete erasures, without those that are marks by now;
                      changed in the script that rewrites history
    ...:forgetting    hash: job -> ``UnfinishedErasure``, from between the job's commit and its adoption until then

An erasure adopts a state without the erased events. Once history is rewritten without them, a replay gives that same
state, so its adoption has no effect any more. The next erasure rewrites history anyway and then replaces such an
adoption by a mark. No former state file has to be made again or kept. The adoption stays until then for the sake of
slow readers: one that applied erased events before the rewrite gets a state without them only from the adoption.

If a job dies or is cancelled after its adoption and before the rewrite, the adoption stays and history still has its
events. The next erasure leaves out these events as well, and all other jobs that read history must wait for that. So
must fits: they are refused until history is rewritten, and again at their end if an erasure began meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from abound.artifacts.checksums import decoding
from abound.log.events import AdoptEvent, MarkEvent
from abound.store.client import Store, store_errors
from abound.store.key_names import ModelKeys
from abound.store.lease import Command
from abound_core.errors import Conflict
from abound_core.model.entry_application import Unit
from abound_core.types import Offset


class UnfinishedErasure(msgspec.Struct, frozen=True):
    """The events that a job erases: those up to ``after`` that meet all given conditions, as in ``ForgetParams``."""

    after: str
    key: str | None = None
    source: str | None = None
    since: float | None = None
    until: float | None = None

    def matches(self, unit: Unit, at: Offset) -> bool:
        return (
            (self.key is None or unit.key == self.key)
            and (self.source is None or unit.source == self.source)
            and (self.since is None or at.milliseconds >= int(self.since * 1000))
            and (self.until is None or at.milliseconds <= int(self.until * 1000))
        )


_unfinished = msgspec.json.Decoder(UnfinishedErasure)


async def completed_adoptions(store: Store, keys: ModelKeys) -> set[Offset]:
    with store_errors():
        return {Offset.of_entry(name) for name in await store.client.smembers(_key(keys))}


async def completing(store: Store, keys: ModelKeys, at: Offset) -> list[Command]:
    """Return the commands that make the adoption at an offset a complete one.

    They also remove two kinds of records: earlier adoptions, because the rewritten history has marks in their place,
    and unfinished erasures that began before this adoption. The rewrite covers the events of those, or their own
    adoption is refused because this one came first.
    """
    earlier = [one for one in await completed_adoptions(store, keys) if one < at]
    jobs = [job for job, what in (await unfinished_erasures(store, keys)).items() if Offset.parse(what.after) < at]
    return [
        *(("SREM", _key(keys), one.entry) for one in earlier),
        ("SADD", _key(keys), at.entry),
        *(("HDEL", _unfinished_key(keys), job) for job in jobs),
    ]


async def add_unfinished(store: Store, keys: ModelKeys, job: str, what: UnfinishedErasure) -> None:
    with store_errors():
        await store.client.hset(_unfinished_key(keys), job, msgspec.json.encode(what))


async def remove_unfinished(store: Store, keys: ModelKeys, jobs: Iterable[str]) -> None:
    """Record that history no longer has the events that these jobs erase."""
    names = sorted(jobs)
    if names:
        with store_errors():
            await store.client.hdel(_unfinished_key(keys), *names)


async def unfinished_erasures(store: Store, keys: ModelKeys) -> dict[str, UnfinishedErasure]:
    """Return the erasures of incomplete jobs, adopted or not."""
    with store_errors():
        said = await store.client.hgetall(_unfinished_key(keys))
    with decoding(f"the records of unfinished erasures of {keys.name}"):
        return {job.decode(): _unfinished.decode(what) for job, what in said.items()}


async def refuse_forgotten(store: Store, keys: ModelKeys, until: Offset) -> None:
    """Raise Conflict if a version that was fitted on the events up to ``until`` may have learned forgotten ones.

    The store records when events were forgotten, not which ones. A version whose events end before the last forget is
    therefore always refused.
    """
    if await unfinished_erasures(store, keys):
        raise Conflict(
            f"events of {keys.name} are being forgotten, and the version may have learned them; try again when the job "
            "has ended. If the job failed, start any forget job on the model: it completes the failed one as well"
        )
    since = max(await completed_adoptions(store, keys), default=None)
    if since is not None and until[:2] < since[:2]:
        raise Conflict(
            f"events of {keys.name} were forgotten at {since}, and the version may have learned them: it was "
            f"fitted on events up to {until}; fit a new version"
        )


def mark_of(adopt: AdoptEvent) -> MarkEvent:
    return MarkEvent(mark_token(adopt.adoption))


def mark_token(adoption: str) -> str:
    return f"adopted {adoption}"


def _key(keys: ModelKeys) -> bytes:
    return keys.key("forgotten")


def _unfinished_key(keys: ModelKeys) -> bytes:
    return keys.key("forgetting")
