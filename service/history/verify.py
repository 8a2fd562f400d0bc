"""Verifying: is what is served what the log says?

1. a mark is appended; every replica publishes the digest that it has there. Those that were heard of within the last
   hour and have not withdrawn are waited for: one that is cut off goes on answering, from memory
2. the model is rebuilt up to the mark, from the beginning of history (or its base) and log, and from the newest
   snapshot
3. all digests must be equal, and at least one of them that of a replica, unless none is to be asked
"""

from __future__ import annotations

import asyncio
import secrets
from typing import NamedTuple

from abound.core.errors import ArtifactsUnavailable, Damaged, UnknownApplyVersion, UnknownArtifact, UnknownModel
from abound.core.types import START, Offset
from abound.service.artifacts.artifact_store import Artifacts
from abound.service.history.history import History
from abound.service.history.replay import rebuild
from abound.service.log.catalog import Living, read_catalog
from abound.service.log.events import APPLY_VERSION, Entry, Mark, encode
from abound.service.model import presence
from abound.service.model.presence import Marked
from abound.service.store.client import Store, reaching

WAIT_SECONDS = 60.0
POLL_SECONDS = 0.05


class Verified(NamedTuple):
    """What came of it.

    Attributes
    ----------
    model : str
    offset : Offset
        Of the mark.
    replicas : list of Marked
        Digests of the replicas that answered.
    silent : list of str
        Ids of those that did not, and have not withdrawn.
    from_start, from_snapshot : str
        Digests of the rebuilt states.
    beginning : Offset
        Where the first of them began: START, or the base of history.
    offline : bool
        No replica was asked.
    """

    model: str
    offset: Offset
    replicas: list[Marked]
    silent: list[str]
    from_start: str
    from_snapshot: str
    beginning: Offset
    offline: bool

    @property
    def equal(self) -> bool:
        """Whether all digests that there are are equal."""
        return len({marked.digest for marked in self.replicas} | {self.from_start, self.from_snapshot}) == 1

    @property
    def good(self) -> bool:
        """Whether all digests are equal and every replica answered, at least one."""
        return self.equal and not self.silent and (self.offline or bool(self.replicas))


async def verify(
    store: Store,
    name: str,
    wait_seconds: float = WAIT_SECONDS,
    artifacts: Artifacts | None = None,
    *,
    offline: bool = False,
) -> Verified:
    """Compare what the replicas of a model serve with what its history and log give; ``offline``: only these two.

    Takes the time of a whole replay and the memory of a second model.

    Raises
    ------
    UnknownModel
    Damaged, UnknownApplyVersion
        History or log cannot be applied.
    ArtifactsUnavailable, StoreUnavailable
    """
    living = (await read_catalog(store)).get(name)
    if living is None:
        raise UnknownModel(f"there is no model {name[:64]!r}")
    expected = set() if offline else await _heard_of(store, living)
    token = secrets.token_hex(8)
    offset = await _append_mark(store, living, token)
    try:
        from_start = await rebuild(store, living, offset, from_start=True, artifacts=artifacts)
        from_snapshot = await rebuild(store, living, offset, artifacts=artifacts)
        contents = await History(store, artifacts, living.keys).contents()
    except (ArtifactsUnavailable, Damaged, UnknownApplyVersion, UnknownArtifact) as error:
        raise type(error)(f"the model {name} cannot be rebuilt: {error}") from error
    loop = asyncio.get_running_loop()
    deadline = loop.time() + wait_seconds
    while True:
        said = [] if offline else await presence.marked(store, living.keys, token)
        silent = sorted(expected - {marked.replica for marked in said})
        if silent:
            expected &= await _heard_of(store, living)  # who has stopped meanwhile serves nothing
            silent = sorted(expected.intersection(silent))
        if not silent or loop.time() > deadline:
            break
        await asyncio.sleep(POLL_SECONDS)
    return Verified(
        model=name,
        offset=offset,
        replicas=said,
        silent=silent,
        from_start=str(await from_start.take_digest()),
        from_snapshot=str(await from_snapshot.take_digest()),
        beginning=contents.beginning if contents is not None else START,
        offline=offline,
    )


async def _heard_of(store: Store, living: Living) -> set[str]:
    return {one.replica for one in await presence.heard_of(store, living.keys)}


async def _append_mark(store: Store, living: Living, token: str) -> Offset:
    payload, checksum = encode(Entry(APPLY_VERSION, secrets.token_bytes(8), 1, Mark(token)))
    link = await store.open_link("mark")
    try:
        with reaching():
            words = ("XADD", living.keys.log, "*", "e", payload, "c", checksum)
            return Offset.of_entry(await link.call(*words, seconds=store.params.reply_seconds))
    finally:
        link.close()
