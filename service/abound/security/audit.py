"""The audit log: every administrative act with its actor, address, time and outcome.

An act is one entry of the stream ``abound:audit``, which is bounded in number, and one log line ``audit``.
The store's clock gives the entry its id, so clocks of hosts do not matter and an act cannot be backdated.
If the store is unreachable, only the log line remains, with ``stored=False``. A completed act is never undone
because it could not be recorded.

Classifying and learning are not administrative acts; the log of the model itself records what was learned.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Annotated, Any, NamedTuple

import msgspec
import structlog
from msgspec import Meta

from abound.store.client import Store, store_errors
from abound_core.errors import AboundError, OutcomeUnknown, StoreUnavailable

log = structlog.get_logger(__name__)

AUDIT_KEY = b"abound:audit"

MOST_ACTS = 100_000  # the oldest are removed first
MAX_TEXT = 512  # characters of one text in the details
MAX_DETAILS_BYTES = 4096  # of an act; if it has more, of each large value only the beginning of its JSON stays
MAX_NESTING = 32  # levels of lists and objects in the details
DONE, REFUSED, UNKNOWN = "done", "refused", "unknown"


class Actor(NamedTuple):
    """The initiator of an act."""

    key: str | None  # id of the key that was used; None if the request had none
    address: str  # of the connection; ``user@host`` for the command line, the process for the service itself
    request_id: str | None = None
    forwarded: str | None = None  # X-Forwarded-For, not verified


class Act(msgspec.Struct, frozen=True, kw_only=True):
    """One entry of the audit log, by the id of its entry in the stream.

    ``action`` is for example ``model.create`` or ``key.revoke``. ``details`` never hold a secret. ``reason`` says why
    the act was refused, or why its outcome is unknown.
    """

    id: str
    at: Annotated[float, Meta(description="Seconds since 1970, of the store's clock.")]
    action: str
    key: Annotated[str | None, Meta(description="Id of the key; null: no key, or the command line.")]
    address: str
    forwarded: Annotated[str | None, Meta(description="Forwarding headers of the request; not verified.")]
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
    """Record an act in the store and in the log. An unreachable store raises nothing; the log line is always written.

    ``details`` hold no secrets. They are cut at ``MAX_TEXT``, ``MAX_NESTING`` and ``MAX_DETAILS_BYTES``.
    """
    plain = {name: _short(value) for name, value in details.items()}
    packed = msgspec.json.encode(plain)
    if len(packed) > MAX_DETAILS_BYTES:
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
        with store_errors():
            await store.client.xadd(AUDIT_KEY, fields, maxlen=MOST_ACTS, approximate=True)
    except StoreUnavailable:
        stored = False
    line = {"key": actor.key, "address": actor.address, "details": plain, "outcome": outcome, "stored": stored}
    line |= {name: value for name, value in given.items() if value is not None}
    (log.info if stored else log.warning)("audit", action=action, **line)


@asynccontextmanager
async def audited(store: Store, actor: Actor, action: str, **details: Any) -> AsyncIterator[dict[str, Any]]:
    """Record the block as one act, with its outcome. The block may add to the yielded details."""
    try:
        yield details
    except OutcomeUnknown as error:
        await record(store, actor, action, details, UNKNOWN, str(error))
        raise
    except AboundError as error:
        await record(store, actor, action, details, REFUSED, str(error))
        raise
    await record(store, actor, action, details)


async def newest_acts(store: Store, limit: int = 100, before: str | None = None) -> list[Act]:
    """Return the newest acts, newest first. With ``before``, only acts older than this id. Raise StoreUnavailable."""
    if before is not None and not before.strip("0-"):
        return []  # nothing is older than the first id, and the store refuses it as an exclusive end
    with store_errors():
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
    packed = msgspec.json.encode(value)
    return value if len(packed) <= MAX_TEXT else _short(packed[: MAX_TEXT + 1].decode("ascii", "replace"))


def _short(value: Any, levels: int = MAX_NESTING) -> Any:
    """Return ``value`` with its texts cut, and lists and objects below ``levels`` replaced by ``...``."""
    if isinstance(value, str):
        return value if len(value) <= MAX_TEXT else value[:MAX_TEXT] + "..."
    if not isinstance(value, (Mapping, list, tuple)):
        return value
    if not levels:
        return "..."
    if isinstance(value, Mapping):
        return {str(name): _short(inner, levels - 1) for name, inner in value.items()}
    return [_short(inner, levels - 1) for inner in value]
