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
    """Return the BLAKE2b-128 of ``data`` in hexadecimal digits."""
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def seal(record: Record) -> Record:
    """Return a record with the checksum of its other fields."""
    plain = msgspec.json.encode(msgspec.structs.replace(record, checksum=""))
    return msgspec.structs.replace(record, checksum=checksum_of(plain))


def read_sealed(kind: type[Record], packed: bytes, what: str, **expected: int) -> Record:
    """Decode the JSON of a sealed record.

    Parameters
    ----------
    what : str
        Name of the record in messages.
    expected : int
        Values of fields that this release can read: ``format``, ``apply_version``.

    Raises
    ------
    UnknownApplyVersion
        A field has another value than the expected one: another release wrote the record.
    Corrupted
        It cannot be decoded, or its checksum is wrong.
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
    """Raise Corrupted if the block cannot decode its data. ``what`` names the data in the message."""
    try:
        yield
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise Corrupted(f"{what} cannot be read: {error}") from None
