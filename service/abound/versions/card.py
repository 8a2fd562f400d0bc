"""Card of a version: its metadata record, its valid ids, and the checks that every card passes.

A version file from elsewhere brings its own card, and later code trusts it. Every field is therefore checked
when the card is read.
"""

from __future__ import annotations

import math
import re
import secrets
from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from abound.artifacts.checksums import checksum_of, read_sealed
from abound.artifacts.npy import ArrayFile
from abound_core.config import BEFORE, VECTOR_FIELDS, ModelConfig
from abound_core.errors import Conflict, Corrupted, InvalidInstance
from abound_core.types import Offset

FORMAT = 1
CARD = "card.json"

SIZES = frozenset(("instances", "features", "classes", "nnz", "assertions"))

MOST_ENTRIES = 200
MOST_CHARACTERS = 300
MOST_NUMBER = 2**63 - 1

_ID = re.compile(r"[0-9a-z]{8,32}")
_FILE = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{0,120}\.npy")
_CHECKSUM = re.compile(r"[0-9a-f]{32}")


class Card(msgspec.Struct, frozen=True, kw_only=True):
    """Metadata of a version.

    ``data_range`` has the offsets ``after`` and ``until``. ``origin`` has ``id``, ``model``, ``incarnation`` and
    ``data`` of the exported version. ``reads`` are the ``reading_settings`` of its training instances: the version
    cannot rank instances that are read in another way. ``meta`` is the state of the fitted method beside its arrays.
    ``checksum`` covers all other fields.
    """

    id: str
    format: int
    model: str
    incarnation: str
    method: str
    params: dict[str, Any]
    seed: int
    data: Annotated[str, Meta(description="`history`, the data set, or `import`.")]
    data_range: dict[str, str | None] | None
    offset: Annotated[str, Meta(description="Offset of the model when the version was fitted.")]
    created: Annotated[float, Meta(description="Seconds since 1970.")]
    metrics: Annotated[dict[str, Any], Meta(description="Metrics on held-out instances, the newest of its data.")]
    sizes: dict[str, int]
    n_bytes: int
    libraries: dict[str, str]
    digest: Annotated[str, Meta(description="Digest of everything that determines its answers; equal for all copies.")]
    job: Annotated[str | None, Meta(description="The job that produced it.")]
    meta: dict[str, Any]
    files: list[ArrayFile]
    origin: Annotated[dict[str, str] | None, Meta(description="The version that it was imported from.")] = None
    upload: str | None = None
    reads: dict[str, Any] | None = None
    checksum: str = ""


def new_id() -> str:
    return secrets.token_hex(8)


def is_id(text: str) -> bool:
    """Return whether a text has the form of a version id; ``live`` does not."""
    return _ID.fullmatch(text) is not None


def digest_of(meta: Mapping[str, Any], files: list[ArrayFile]) -> str:
    """Return the BLAKE2b-128 digest of a fitted method; names of arrays count, names of files do not."""
    plain = msgspec.json.encode(
        [meta, sorted((one.name, one.dtype, one.shape, one.checksum) for one in files)], order="deterministic"
    )
    return checksum_of(plain)


def reading_settings(config: ModelConfig) -> dict[str, Any]:
    """Return the part of a model's configuration that decides how an instance becomes a vector."""
    plain = config.to_dict()
    return {name: plain[name] for name in VECTOR_FIELDS}


def refuse_other_reading(card: Card, config: ModelConfig) -> None:
    """Raise Conflict if a version was fitted on instances that were read in another way than the model reads them."""
    if not card.reads:
        return
    ours, theirs = reading_settings(config), reading_settings(ModelConfig.from_stored(dict(card.reads)))
    differing = [f"{name} {msgspec.json.encode(theirs[name]).decode()}" for name in ours if theirs[name] != ours[name]]
    if differing:
        raise Conflict(
            f"the version {card.id} was fitted on instances that are read otherwise than the model reads them: with "
            f"{', '.join(differing)}; fit a version on this model's own data"
        )


def read_card(packed: bytes) -> Card:
    """Decode and check a card. Raises Corrupted, or UnknownApplyVersion if its format is unknown."""
    card = read_sealed(Card, packed, "the card of a version", format=FORMAT)
    if digest_of(card.meta, card.files) != card.digest:
        raise Corrupted(f"the card of the version {card.id} does not match the digest of its files")
    if len({one.file for one in card.files} | {CARD}) != len(card.files) + 1:
        raise Corrupted(f"the card of the version {card.id} names a file twice")
    _check(card)
    return card


def _check(card: Card) -> None:
    plain = (
        card.model,
        card.incarnation,
        card.method,
        card.data,
        card.job or "",
        card.upload or "",
        *card.libraries.values(),
    )
    names = (*card.libraries, *card.metrics, *card.params, *(card.origin or {}), *(card.origin or {}).values())
    _demand(all(len(text) <= MOST_CHARACTERS for text in (*plain, *names)), "a text is too long")
    entries = (card.libraries, card.metrics, card.params, card.meta, card.origin or {})
    _demand(all(len(one) <= MOST_ENTRIES for one in entries), "there are too many entries")
    _demand(_ID.fullmatch(card.id) is not None, "the id is invalid")
    _demand((card.method, card.params) == (card.meta.get("method"), card.meta.get("params")), "methods differ")
    _demand(all(_is_plain(value) for value in card.params.values()), "a parameter is not a plain value")
    _demand(all(value is None or _is_number(value) for value in card.metrics.values()), "a metric is not a number")
    _demand(set(card.sizes) == SIZES and all(_counts(n) for n in card.sizes.values()), "the sizes are invalid")
    _demand(0 <= card.seed <= MOST_NUMBER and _counts(card.n_bytes), "a number is out of range")
    _demand(0.0 <= card.created < 1e11, "the time is invalid")
    _offset(card.offset)
    if card.data_range is not None:
        _range(card.data_range)
    if card.reads:
        _reads(card.reads)
    for one in card.files:
        _demand(_FILE.fullmatch(one.file) is not None and len(one.name) <= MOST_CHARACTERS, "a file name is invalid")
        _demand(
            _CHECKSUM.fullmatch(one.checksum) is not None and _counts(one.size),
            "the size or checksum of a file is invalid",
        )
        _demand(all(_counts(n) for n in one.shape) and len(one.shape) <= 8, "the shape of an array is invalid")
        _demand(len(one.dtype) <= 16, "the type of an array is invalid")


def _reads(settings: Mapping[str, Any]) -> None:
    fields = set(settings)
    _demand(set(VECTOR_FIELDS) - set(BEFORE) <= fields <= set(VECTOR_FIELDS), "the reading settings are invalid")
    try:
        ModelConfig.from_stored(dict(settings))
    except InvalidInstance:
        raise Corrupted("the card of a version is invalid: the reading settings are invalid") from None


def _demand(holds: bool, otherwise: str) -> None:
    if not holds:
        raise Corrupted(f"the card of a version is invalid: {otherwise}")


def _counts(value: int) -> bool:
    return 0 <= value <= MOST_NUMBER


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and math.isfinite(value) and abs(value) <= MOST_NUMBER


def _is_plain(value: Any) -> bool:
    return value is None or _is_number(value) or (isinstance(value, str) and len(value) <= MOST_CHARACTERS)


def _offset(text: str) -> None:
    try:
        Offset.parse(text)
    except ValueError:
        raise Corrupted("the card of a version is invalid: an offset is malformed") from None


def _range(ends: Mapping[str, str | None]) -> None:
    _demand(set(ends) == {"after", "until"}, "the data range is invalid")
    for end in ends.values():
        if end is not None:
            _offset(end)
