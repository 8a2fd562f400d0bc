"""Requests that come again: idempotency keys at the door, before the log decides.

The log decides whether a key is new (``core.receipts``). The door asks the receipts earlier for what could no longer
be sent again: a remembered instance may be forgotten by then, and its first answer still stands.
"""

from __future__ import annotations

import hashlib

import msgspec

from core.errors import InvalidInstance
from core.types import Offset
from service.appender import Learned
from service.exchange import Headers
from service.model_replica import ModelReplica
from service.schemas import MAX_KEY_CHARACTERS, LabelledInstance, LearnRequest

KEY_HEADER = b"idempotency-key"

_encode = msgspec.json.Encoder().encode  # features are JSON still, and are taken as they are


def key_of(headers: Headers) -> str | None:
    """The idempotency key that the header gives; InvalidInstance when it is not 1 to 255 printable characters."""
    given = headers.get(KEY_HEADER)
    if given is None:
        return None
    if not 1 <= len(given) <= MAX_KEY_CHARACTERS or not all(32 <= byte < 127 for byte in given):
        raise InvalidInstance(
            f"Idempotency-Key must be 1 to {MAX_KEY_CHARACTERS} printable characters", "Idempotency-Key"
        )
    return given.decode("ascii")


def body_hash(instances: list[LabelledInstance], source: str | None) -> bytes:
    """What makes two requests under one idempotency key the same: the instances as they were sent, and their labels."""
    parts = [(one.features, one.text, one.labels, one.prediction) for one in instances]
    return hashlib.blake2b(_encode((parts, source)), digest_size=16).digest()


def first_time(model: ModelReplica, key: str, body: bytes) -> Learned | None:
    """What came of the first request under ``key``, which is in the log; None when none has come.

    InvalidInstance: it had another body.
    """
    receipt = model.live.receipts.get(key)
    if receipt is None:
        return None
    if receipt.body != body:
        raise InvalidInstance("this idempotency key came before with another body", "key")
    return Learned(Offset(*receipt.offset), len(receipt.ranks), receipt.ranks, receipt.updated, True, "log")


def check_keys(
    model: ModelReplica, request: LearnRequest, instances: list[LabelledInstance], header_key: str | None
) -> None:
    """InvalidInstance when a key of an instance in a batch cannot stand, so that the batch fails as a whole."""
    seen: set[str] = set()
    for at, instance in enumerate(instances):
        key, field = instance.key, f"instances[{at}].key"
        if key is None:
            continue
        if header_key is not None:
            raise InvalidInstance("the header Idempotency-Key covers this batch; its instances have no more", field)
        if key in seen:
            raise InvalidInstance(f"{field} comes twice in this batch", field)
        seen.add(key)
        receipt = model.live.receipts.get(key)
        if receipt is not None and receipt.body != body_hash([instance], request.source):
            raise InvalidInstance(f"{field} came before with another body", field)
