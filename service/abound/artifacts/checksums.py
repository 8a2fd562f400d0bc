"""Checksums of parts and files, and sealed records: structs with a field ``checksum`` that covers all other fields."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

import msgspec

from abound_core.errors import Corrupted, UnknownApplyVersion

Record = TypeVar("Record", bound=msgspec.Struct)


def checksum_of(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def seal(record: Record) -> Record:
    plain = msgspec.json.encode(msgspec.structs.replace(record, checksum=""))
    return msgspec.structs.replace(record, checksum=checksum_of(plain))


def read_sealed(kind: type[Record], packed: bytes, what: str, **expected: int) -> Record:
    """Decode the JSON of a sealed record. ``what`` names it in messages.

    ``expected`` has the values of fields that this release can read, such as ``format``. Raises UnknownApplyVersion if
    another release wrote the record, and Corrupted if it cannot be decoded or its checksum is wrong.
    """
    with decoding(what):
        head = msgspec.json.decode(packed)
        for name, value in expected.items():
            if isinstance(head, dict) and head.get(name, value) != value:
                raise UnknownApplyVersion(
                    f"{what} has the {name.replace('_', ' ')} {head[name]!r}; this release reads {value}: "
                    "run the release that wrote it"
                )
        record = msgspec.json.decode(packed, type=kind)
        is_intact = msgspec.json.encode(seal(record)) == packed  # so every flipped byte counts, also in field names
    if not is_intact:
        raise Corrupted(f"{what} is damaged: its checksum is wrong")
    return record


@contextmanager
def decoding(what: str) -> Iterator[None]:
    try:
        yield
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise Corrupted(f"{what} cannot be read: {error}") from None
