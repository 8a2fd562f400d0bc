"""Forget: find events in the past of a model, and replay it without them.

Nothing is erased here. The new incarnation has a log, history and state without the events, and the old one is deleted
as a whole (``delete_others``).

Forgetting a request also leaves out the later requests with its key that were not learned: repeats, and requests that
were refused for another body. Without the first one a replay would learn them. A request that arrives after the model
was replaced counts as a new one.

A forgotten event leaves its position empty, so no offset changes.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field

from abound.history import full_log
from abound.history.history import History
from abound.history.replay import replay
from abound.log.catalog import CatalogModel
from abound.log.events import MAX_POSITIONS, LearnEvent
from abound.log.stream import Element
from abound.replace.context import ReplaceContext
from abound.replace.copying import Past
from abound.replace.replace import Replacement, find_model, hold
from abound.replica.predictions import hashes_of
from abound.state import replica_status, snapshots, state_files
from abound.state.replica_status import SILENT_SECONDS
from abound.store.key_names import ModelKeys
from abound.store.replication import rewrite_aof, wait_replicated
from abound.tasks import wait_until
from abound.versions import versions
from abound.versions.cache_cleanup import POLL_SECONDS, cleanup_requests, request_cleanup
from abound.versions.card import Card
from abound_core.errors import Conflict, NotReady, UnknownOffset
from abound_core.limits import MAX_SOURCE_CHARACTERS, Limits
from abound_core.model.entry_application import OutcomeReplay, Unit
from abound_core.model.receipts import BodyMismatch, Outcome, Receipts
from abound_core.types import START, Offset

LATEST = 1e12  # accepted Unix time

Time = Annotated[float, Field(json_schema_extra={"format": "unix-time"})]


@dataclass(frozen=True, kw_only=True)
class ForgetParams:
    """Events to forget: those that match all given conditions.

    Attributes
    ----------
    key : str or None
        The events of the request with this idempotency key.
    offset : str or None
        The events of the request that was learned at this offset, such as 1790000000000-0.3.
    source : str or None
        The events that were sent with this ``source``; the page sends ``page``.
    since : float or None
        The events appended at this time or later: seconds since 1970 (Unix time), by the store's clock.
    until : float or None
        The events appended at this time or before: seconds since 1970 (Unix time), by the store's clock.
    reason : str
        Reason of the job, 1 to 1000 characters; stored with the job.
    keep_versions : bool
        Fail if versions, or a refit, have learned the events, instead of deleting these.
    dry_run : bool
        Count the events and change nothing.
    """

    reason: str
    key: str | None = None
    offset: str | None = None
    source: str | None = None
    since: Time | None = None
    until: Time | None = None
    keep_versions: bool = False
    dry_run: bool = False

    def __post_init__(self) -> None:
        if not 1 <= len(self.reason) <= 1000:
            raise ValueError("reason must say why, in 1 to 1000 characters")
        for name, at in (("since", self.since), ("until", self.until)):
            if at is not None and not 0 <= at <= LATEST:
                raise ValueError(f"{name} must be from 0 to {LATEST:.0f} seconds")
        if self.offset is not None:
            try:
                Offset.parse(self.offset)
            except ValueError as error:
                raise ValueError(f"offset: {error}") from None
        if all(one is None for one in (self.key, self.offset, self.source, self.since, self.until)):
            raise ValueError("key, offset, source, since or until must say which events")
        if max(len(self.key or ""), len(self.source or "")) > MAX_SOURCE_CHARACTERS:
            raise ValueError(f"key and source have at most {MAX_SOURCE_CHARACTERS} characters")
        if self.since is not None and self.until is not None and self.since > self.until:
            raise ValueError("since must not be after until")

    def matching(self, event: LearnEvent, entry: Offset) -> list[bool]:
        """Return for each request of an entry whether it is to be forgotten."""
        if not self.covers(entry):
            return [False] * len(event.units)
        chosen = None if self.offset is None else Offset.parse(self.offset).position
        found, first = [], 0
        for unit in event.units:
            found.append(
                not unit.emptied
                and (self.key is None or unit.key == self.key)
                and (self.source is None or unit.source == self.source)
                and (chosen is None or first <= chosen < first + unit.n)
            )
            first += unit.n
        return found

    def covers(self, entry: Offset) -> bool:
        return (
            (self.offset is None or Offset.parse(self.offset).entry == entry.entry)
            and (self.since is None or entry.milliseconds >= int(self.since * 1000))
            and (self.until is None or entry.milliseconds <= int(self.until * 1000))
        )

    def may_match(self, element: Element) -> bool:
        """Return False only if no request of an entry matches; the entry is not decoded."""
        payload = element[1][1]
        return (
            self.covers(Offset.of_entry(element[0]))
            and (self.key is None or self.key.encode() in payload)
            and (self.source is None or self.source.encode() in payload)
        )


class Forgetting:
    """The search for the events of one request to forget, and the replay without them."""

    def __init__(self, replacement: Replacement, params: ForgetParams) -> None:
        self.counts: dict[str, Any] = {}
        self.first: Offset | None = None  # entry of the first event
        self._replacement = replacement
        self._context = replacement.context
        self._living = replacement.living
        self._params = params

    async def past(self) -> Past | None:
        """Return the past of the model without the events; None if there are none, or nothing shall be changed.

        Raises UnknownOffset if some may have been learned in a state whose events are not in history.
        """
        context, living, params = self._context, self._living, self._params
        after = self._replacement.after
        contents = await History(context.store, context.artifacts, living.keys).manifest()
        missed = None
        if contents is not None and contents.base is not None:
            base = contents.base
            live = await state_files.load(context.artifacts, living.keys, base.index, base.digest, Limits())
            missed = self._check(contents.start, live.receipts)
            del live
        start = START if contents is None else contents.start
        if params.offset is not None:
            start = max(start, Offset.parse(params.offset).before)
        before = await self._find_first(start)
        if self.first is None:
            if missed is not None:
                raise missed
            self.counts = {"forgotten": {"requests": 0, "instances": 0}, "from": None}
            return None
        refitted = contents.refitted if contents is not None else None
        if refitted is not None and refitted.position.offset[:2] < self.first[:2]:
            refitted = None
        if params.keep_versions:
            learned = [
                card.id for card in await versions.cards(context.artifacts, living.keys) if not self._keeps(card)
            ]
            if learned or refitted is not None:
                what = f"the version {learned[0]}" if learned else "a refit"
                raise Conflict(f"{what} has learned the events and would be deleted with them: correct them instead")
        context.progress("replaying up to the first event", 0.1)
        model = await replay(
            context.store,
            living,
            before,
            params=context.log,
            between=context.checkpoint,
            artifacts=context.artifacts,
        )
        past = Past(model=model, source=living, tail_after=after, keeps_version=self._keeps, keep=False)
        n = {"requests": 0, "instances": 0}
        outcomes = OutcomeReplay(Receipts.from_arrays(model.live.receipts.to_arrays()))
        async with contextlib.aclosing(self._read(model.offset)) as reading:
            async for element in reading:
                event = full_log.decode_element(element).event
                if isinstance(event, LearnEvent):
                    at = Offset.of_entry(element[0])
                    gone = self._gone(event, at, outcomes.replay(event.records, event.units, at), past.gone_keys)
                    if any(gone):
                        past.gone[element[0]] = gone
                        past.gone_vectors.update(hashes_of(event, gone))
                        units = [unit for unit, is_gone in zip(event.units, gone, strict=True) if is_gone]
                        n["requests"] += len(units)
                        n["instances"] += sum(unit.n for unit in units)
                if not params.dry_run:
                    await model.apply(past.copied(element))
        self.counts = {"forgotten": n, "from": str(self.first)}
        if refitted is not None:
            self.counts["refits_dropped"] = (
                f"the refit at {refitted.offset} had learned forgotten events and was dropped, with its settings; "
                "submit it again"
            )
        return None if params.dry_run else past

    async def _find_first(self, start: Offset) -> Offset:
        """Set ``first``; return the offset of the last event before it."""
        before = start
        self._context.progress("searching for the events", 0.05)
        async with contextlib.aclosing(self._read(start)) as reading:
            async for element in reading:
                at = Offset.of_entry(element[0])
                if self._params.may_match(element):
                    event = full_log.decode_element(element).event
                    if isinstance(event, LearnEvent) and any(self._params.matching(event, at)):
                        self.first = at
                        return before
                before = at._replace(position=MAX_POSITIONS)
        return before

    async def _read(self, after: Offset) -> AsyncGenerator[Element]:
        context = self._context
        reading = full_log.read_entries(
            context.store, context.artifacts, self._living.keys, after, self._replacement.after, params=context.log
        )
        async with contextlib.aclosing(reading):
            async for elements in reading:
                for element in elements:
                    yield element
                await context.checkpoint()

    def _gone(self, event: LearnEvent, at: Offset, outcomes: list[Outcome], keys: set[str]) -> list[bool]:
        gone = self._params.matching(event, at)
        keys |= {unit.key for unit, is_gone in zip(event.units, gone, strict=True) if is_gone and unit.key is not None}
        return [
            is_gone or _known_key(unit, outcome) in keys
            for is_gone, unit, outcome in zip(gone, event.units, outcomes, strict=True)
        ]

    def _check(self, at: Offset, receipts: Receipts) -> UnknownOffset | None:
        """Raise UnknownOffset if events to forget were learned before history begins, where none can be left out.

        Return it if they may have been.
        """
        key = self._params.key
        offset = START if self._params.offset is None else Offset.parse(self._params.offset)
        if offset[:2] > at[:2] or int((self._params.since or 0.0) * 1000) > at.milliseconds:
            return None
        why = ", and a request with this key has been learned in it" if key is not None and key in receipts else ""
        error = UnknownOffset(
            f"the history of {self._living.keys.name} begins at {at}; earlier events exist only as a state and cannot "
            f"be forgotten one by one{why}: give a since of at least {at.milliseconds / 1000 + 0.001:.3f}",
            at,
        )
        if key is None or why:
            raise error
        return error

    def _keeps(self, card: Card) -> bool:
        """Return whether a version has learned none of the events."""
        until = None if card.data_range is None else card.data_range.get("until")
        return until is None or self.first is None or Offset.parse(until)[:2] < self.first[:2]


def _known_key(unit: Unit, outcome: Outcome) -> str | None:
    """Return the key because of which a request was not learned; None if it was learned."""
    if outcome is None:
        return None
    return outcome.key if isinstance(outcome, BodyMismatch) else unit.key


async def delete_others(context: ReplaceContext) -> dict[str, Any]:
    """Delete all incarnations of a model that are no longer needed from both stores, and from their files.

    Repeating it is harmless. Raises NotReady if copies of the store, or of its files, stay behind, or if the store has
    lost the replacement.
    """
    store, artifacts = context.store, context.artifacts
    async with hold(context) as (catalog, living, _):
        known = {keys for keys in catalog.incarnations() if keys.name == context.name}

        def is_needed(keys: ModelKeys) -> bool:
            # This may take longer than the lease lasts: what has begun since the catalog was read is left alone.
            return keys in known or Offset.of_entry(keys.incarnation) > catalog.offset

        context.progress("deleting the replaced model from the store", 0.9)
        await snapshots.delete_others(store, context.name, is_needed)
        context.progress("making the store rewrite its append-only file", 0.92)
        store_file = await rewrite_aof(store)
        context.progress("waiting until copies of the store are up to date", 0.94)
        # The files go last: if a failover lost the replacement, they would be needed again.
        await wait_replicated(store)
        # The store that answers may be a copy that has taken over meanwhile, without the replacement.
        if await find_model(store, context.name, context.origin) != living:
            raise NotReady(f"a failover of the store lost the replacement of {context.name}; try again", 60.0)
        context.progress("deleting the replaced model from the artifact store", 0.96)
        found = {name.split("/")[1] for name in await artifacts.names(context.name)}
        for keys in [ModelKeys(context.name, incarnation) for incarnation in sorted(found)]:
            if not is_needed(keys):
                await artifacts.clear(keys.folder)
        await _clean_caches(context, living)
    return {"store_file": store_file}


async def _clean_caches(context: ReplaceContext, living: CatalogModel) -> None:
    """Make every replica clean its file cache of deleted versions, and wait for it; NotReady if that takes too long."""
    if context.artifacts.is_directory:
        return  # replicas map its files, there are no copies
    name = secrets.token_hex(4)

    async def behind() -> list[str]:
        present = await replica_status.live_replicas(context.store, living.keys, SILENT_SECONDS)
        return [one.replica for one in present if one.swept_for is not None and name not in one.swept_for]

    async def are_cleaned() -> bool:
        if name not in await cleanup_requests(context.store):
            await request_cleanup(context.store, name)
        return not await behind()

    if not await wait_until(are_cleaned, POLL_SECONDS, context.prepare_seconds):
        raise NotReady(f"replicas may still have copies of deleted versions: {', '.join(await behind())}", 60.0)
