"""The audit log: every administrative act, who did it, from where, when by the store's clock, and what came of it.

An act is one entry of the stream ``abound:audit``, bounded in number, and one log line ``audit``. The entry's id is
the store's clock, so the clocks of the hosts do not matter and nobody can date an act back. With the store away only
the log line is left, which then says ``stored=False``: an act that is done is never undone for want of its record.

What classify and learn do is no administrative act; what was learned stands in the log of the model itself.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import msgspec
import structlog

from abound.core.errors import AboundError, OutcomeUnknown, StoreUnavailable
from abound.service.store.client import Store, reaching

log = structlog.get_logger(__name__)

AUDIT_KEY = b"abound:audit"

MOST_ACTS = 100_000
"""Acts that are kept; the oldest go first."""

MOST_TEXT = 512
"""Characters of one text in the details; the rest is cut off."""

MOST_BYTES = 4096
"""Of an act's details. Where they take more, those that are not small are cut as the texts that they are as JSON."""

DONE, REFUSED, UNKNOWN = "done", "refused", "unknown"


class Actor(NamedTuple):
    """Who acts.

    Attributes
    ----------
    key : str or None
        Id of the key that was shown; None: there was none to show.
    address : str
        Where the connection came from; ``user@host`` for the command line, the process for the service itself.
    request_id : str or None
    forwarded : str or None
        What the request said of the addresses before the last one (X-Forwarded-For). Not checked.
    """

    key: str | None
    address: str
    request_id: str | None = None
    forwarded: str | None = None


class Act(msgspec.Struct, frozen=True, kw_only=True):
    """One entry.

    Attributes
    ----------
    id : str
        Its place in the stream.
    at : float
        Seconds since 1970, of the store's clock.
    action : str
        Like ``model.create``, ``key.revoke``, ``job.submit``.
    details : dict
        What it was about. Never holds a secret.
    outcome : ``done`` | ``refused`` | ``unknown``
    reason : str or None
        Why it was refused, or why the outcome is unknown.
    """

    id: str
    at: float
    action: str
    key: str | None
    address: str
    forwarded: str | None
    request_id: str | None
    details: dict[str, Any]
    outcome: str
    reason: str | None


_details = msgspec.json.Decoder(dict[str, Any])


async def record(
    store: Store,
    actor: Actor,
    action: str,
    details: Mapping[str, Any],
    outcome: str = DONE,
    reason: str | None = None,
) -> None:
    """Keep an act. Never raises for want of the store; the log line is written in any case.

    Parameters
    ----------
    action : str
        A noun and a verb: ``model.delete``.
    details : mapping
        JSON values, under a few names; texts in it are cut at ``MOST_TEXT`` characters, all of it at ``MOST_BYTES``. No
        secrets.
    """
    plain = {name: _short(value) for name, value in details.items()}
    packed = msgspec.json.encode(plain)
    if len(packed) > MOST_BYTES:
        plain = {name: _cut(value) for name, value in plain.items()}
        packed = msgspec.json.encode(plain)
    fields = {
        "action": action,
        "details": packed,
        "address": actor.address,
        "outcome": outcome,
    }
    given = {"key": actor.key, "request_id": actor.request_id, "forwarded": actor.forwarded, "reason": reason}
    given = {name: _short(value) for name, value in given.items()}
    fields |= {name: value for name, value in given.items() if value is not None}
    stored = True
    try:
        with reaching():
            await store.client.xadd(AUDIT_KEY, fields, maxlen=MOST_ACTS, approximate=True)
    except StoreUnavailable:
        stored = False
    line = {"key": actor.key, "address": actor.address, "details": plain, "outcome": outcome, "stored": stored}
    line |= {name: value for name, value in given.items() if value is not None}
    (log.info if stored else log.warning)("audit", action=action, **line)


@asynccontextmanager
async def act(store: Store, actor: Actor, action: str, **details: Any) -> AsyncIterator[dict[str, Any]]:
    """Keep what the block does as one act, with its outcome; the block may add to the details that it is given."""
    try:
        yield details
    except OutcomeUnknown as error:
        await record(store, actor, action, details, UNKNOWN, str(error))
        raise
    except AboundError as error:
        await record(store, actor, action, details, REFUSED, str(error))
        raise
    await record(store, actor, action, details)


async def acts(store: Store, limit: int = 100, before: str | None = None) -> list[Act]:
    """The newest acts, newest first; ``before``: only those older than this id. StoreUnavailable."""
    if before is not None and not before.strip("0-"):
        return []  # nothing is older than the first id, and the store calls it no id to end before
    with reaching():
        entries = await store.client.xrevrange(AUDIT_KEY, f"({before}" if before else "+", "-", count=limit)
    return [_act(entry_id.decode(), fields) for entry_id, fields in entries]


def _act(entry_id: str, fields: Mapping[bytes, bytes]) -> Act:
    texts = {name.decode(): value.decode("utf-8", "replace") for name, value in fields.items()}
    return Act(
        id=entry_id,
        at=int(entry_id.partition("-")[0]) / 1000,
        action=texts.get("action", "?"),
        key=texts.get("key"),
        address=texts.get("address", "?"),
        forwarded=texts.get("forwarded"),
        request_id=texts.get("request_id"),
        details=_details.decode(texts.get("details", "{}")),
        outcome=texts.get("outcome", UNKNOWN),
        reason=texts.get("reason"),
    )


def _cut(value: Any) -> Any:
    """``value``, or its beginning as JSON where that is long."""
    packed = msgspec.json.encode(value)
    return value if len(packed) <= MOST_TEXT else _short(packed[: MOST_TEXT + 1].decode("ascii", "replace"))


def _short(value: Any) -> Any:
    """``value`` with its texts cut."""
    if isinstance(value, str):
        return value if len(value) <= MOST_TEXT else value[:MOST_TEXT] + "..."
    if isinstance(value, Mapping):
        return {str(name): _short(inner) for name, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_short(inner) for inner in value]
    return value
