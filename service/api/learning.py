"""What a labelled instance is learned as: everything about it checked, its record made, and its way into the log.

What one request to learn may take in: bytes of its records, classes that are new, one way of reading instances.

Each is bounded over the whole request, since its parts are checked before any of them is learned; new classes over all
requests that are on their way.

What came of labelled instances, as answers to ``/learn``.

Requests that come again: idempotency keys at the door, before the log decides.

The log decides whether a key is new (``abound.core.model.receipts``). The door asks the receipts earlier for what could
no longer be sent again: a remembered instance may be forgotten by then, and its first answer still stands.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Literal, NamedTuple

import msgspec

from abound.core.config import ModelConfig
from abound.core.errors import Conflict, InvalidInstance, NotReady, OutcomeUnknown, TooLarge
from abound.core.instances.record import pack_labels
from abound.core.limits import MAX_KEY_CHARACTERS
from abound.core.types import Offset
from abound.service.api.asgi import Headers
from abound.service.api.decoding import ABSENT, is_empty, vector_of
from abound.service.api.schemas.hot import LabelledInstance, LearnAnswer, LearnBatchAnswer, LearnRequest, LearnResult
from abound.service.log.append_group import Draft, Learned
from abound.service.model.replicated_model import ModelReplica
from abound.service.replica.memory_budget import Budget
from abound.service.replica.predictions import RememberParams, reading_of, recall
from abound.service.replica.replica import Replica
from abound.service.settings import Settings
from abound.service.store.server_info import LEVELS


class Terms(NamedTuple):
    """How drafts are to be kept and what their answer waits for; the lines of one group share them."""

    wait: Literal["applied", "log"]
    durability: str


class Learning:
    """Checks labelled instances and appends them.

    Parameters
    ----------
    replica : Replica
    settings : Settings
        For the durability that is not asked for, and how long an answer waits.
    remember_params : RememberParams
    changing : Changing
    budget : Budget
    """

    def __init__(
        self,
        replica: Replica,
        settings: Settings,
        remember_params: RememberParams,
        changing: Changing,
        budget: Budget,
    ) -> None:
        self._replica = replica
        self._remember_params = remember_params
        self._changing = changing
        self._budget = budget
        self._durability = settings.durability
        self._wait_seconds = settings.wait_seconds
        self._new_classes: dict[str, NewClasses] = {}

    def terms(self, request: LearnRequest, keyed: bool) -> Terms:
        """Of a request: with a key it waits until it is applied, for only then is known whether it is a repeat."""
        return Terms("applied" if keyed else request.wait, request.durability or self._durability)

    async def again(
        self, model: ModelReplica, instance: LabelledInstance, source: str | None, durability: str | None
    ) -> Learned | None:
        """What came of a remembered instance under this key the first time: it may be forgotten by now."""
        if instance.prediction is None or instance.key is None:
            return None
        return await self.first_time(model, instance.key, body_hash([instance], source), durability)

    async def first_time(self, model: ModelReplica, key: str, body: bytes, durability: str | None) -> Learned | None:
        """What came of the first request under a key, and how safe that is by now, as far as is asked."""
        learned = first_time(model, key, body)
        if learned is None or (durability or self._durability) == "log":
            return learned
        return msgspec.structs.replace(learned, durability=await self._replica.confirmed())

    def new_classes(self, model: ModelReplica) -> AbstractContextManager[Brought]:
        """What a request to learn brings that the model does not know, as long as it is on its way."""
        new = self._new_classes.get(model.name)
        if new is None or new.model is not model:
            new = self._new_classes[model.name] = NewClasses(model)
        return new.of_request(self._wait_seconds)

    async def record(self, model: ModelReplica, config: ModelConfig, instance: LabelledInstance, new: Brought) -> bytes:
        """The record of one labelled instance, with everything checked."""
        if instance.labels is None:
            raise InvalidInstance("labels is missing", "labels")
        labels = pack_labels(instance.labels, model.live.limits)
        has_features = bytes(instance.features) not in ABSENT
        if instance.prediction is None:
            vector = vector_of(model.live, instance.features, instance.text)
        elif has_features or instance.text is not None:
            raise InvalidInstance("prediction stands for an instance; give one or the other", "prediction")
        else:
            store, keys = self._replica.store, model.keys
            vector = await recall(store, keys, instance.prediction, self._remember_params, reading_of(config))
        if is_empty(vector):
            field = "features" if has_features else "text" if instance.prediction is None else "prediction"
            why = " (numbers below 0 count with `negative: split` alone)" if has_features else ""
            raise InvalidInstance(f"{field}: no feature is active{why}, so there is nothing to learn from", field)
        new.check(instance.labels)
        return vector + labels

    async def append(
        self, model: ModelReplica, config: ModelConfig, drafts: list[Draft], terms: Terms
    ) -> list[Learned]:
        """Append drafts of one request or of several lines, and await what they wait for.

        Raises what ``Replica.learn`` does, and what ``Budget.check`` does.
        """
        self._changing.check(model, config)
        receipts = model.live.receipts
        if any(draft.key is None or draft.key not in receipts for draft in drafts):
            self._budget.check(model)  # not for what was learned before and only wants its answer again
        return await self._replica.learn(model.name, drafts, terms.wait, terms.durability, self._wait_seconds)


def draft_of(instance: LabelledInstance, record: bytes, source: str | None, batch: int = 1) -> Draft:
    """A draft of one instance; ``batch`` as in :class:`~abound.service.log.append_group.Draft`."""
    body = body_hash([instance], source) if instance.key is not None else b""
    return Draft(record, 1, instance.key, body, source, batch)


READ_BY = ("boolean", "analyzer", "negative")
"""Fields of a configuration that decide what vector an instance becomes."""

LABELS_KEPT = 4096
"""So many new labels are kept before those that have been learned meanwhile are let go."""


class Room:
    """Bytes for the vectors and records of one request: they can be many times those of its body."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._left = limit

    def take(self, size: int) -> None:
        """Take ``size`` bytes; TooLarge when they are not left."""
        self._left -= size
        if self._left < 0:
            raise TooLarge(
                f"the instances of this request are over {self._limit} bytes once they are vectors; "
                "send fewer or smaller ones at once"
            )


class NewClasses:
    """The labels that requests of this replica would add to a model, for ``max_classes`` and what its index can hold.

    They count from when they are checked until they are learned, or until the request is known to have failed. What
    other replicas have on its way is not known here.
    """

    def __init__(self, model: ModelReplica) -> None:
        self.model = model
        self._coming: Counter[str] = Counter()  # how many requests bring each
        self._look_again = LABELS_KEPT
        self._known = -1

    @contextmanager
    def of_request(self, seconds: float) -> Iterator[Brought]:
        """The labels of one request, as long as it is on its way.

        What may be in the log and is not learned yet when the context ends counts for so many ``seconds`` more.
        """
        brought = Brought(self)
        try:
            yield brought
        except (OutcomeUnknown, asyncio.CancelledError):
            self._let_go_later(brought, seconds)
            raise
        except BaseException:
            self._let_go(brought.labels)
            raise
        else:
            self._let_go_later(brought, seconds)

    def bring(self, labels: Collection[str], brought: set[str]) -> None:
        """Count labels for a request that has ``brought`` some. Conflict when they would be too many classes."""
        live = self.model.live
        bounds = [bound for bound in (live.config.max_classes, live.index.most_classes) if bound is not None]
        if not bounds:
            return
        most = min(bounds)
        unknown = {label for label in labels if label not in brought and live.labels.find(label.encode()) < 0}
        if not unknown:
            return
        new = {label for label in unknown if label not in self._coming}
        known = len(live.labels)
        is_over = known + len(self._coming) + len(new) > most
        if (is_over and known != self._known) or len(self._coming) > self._look_again:
            self._coming = Counter({label: n for label, n in self._coming.items() if self._is_unknown(label)})
            self._look_again = max(LABELS_KEPT, 2 * len(self._coming))
            self._known = known
        coming = len(self._coming)
        if new and known + coming + len(new) > most:
            more = f" and {coming} more on their way" if coming else ""
            raise Conflict(f"the model holds {known} classes{more} of at most {most}: {min(new)!r} is new")
        self._coming.update(unknown)
        if len(brought) > self._look_again:
            brought.intersection_update(self._coming)
        brought |= unknown

    def _is_unknown(self, label: str) -> bool:
        return self.model.live.labels.find(label.encode()) < 0

    def _let_go(self, labels: Collection[str]) -> None:
        for label in labels:
            if label in self._coming:
                self._coming[label] -= 1
                if not self._coming[label]:
                    del self._coming[label]

    def _let_go_later(self, brought: Brought, seconds: float) -> None:
        left = {label for label in brought.labels if self._is_unknown(label)}
        self._let_go(brought.labels - left)
        if left:
            asyncio.get_running_loop().call_later(seconds, self._let_go, left)


class Brought:
    """The new labels of one request."""

    def __init__(self, new: NewClasses) -> None:
        self.labels: set[str] = set()
        self._new = new

    def check(self, labels: Collection[str]) -> None:
        """Conflict when these labels would be too many classes, together with all that are on their way."""
        self._new.bring(labels, self.labels)


class Changing:
    """Models whose configuration is being changed in what it makes of instances: nothing is learned meanwhile."""

    def __init__(self) -> None:
        self._names: Counter[str] = Counter()

    @contextmanager
    def to(self, name: str, changes: Mapping[str, Any]) -> Iterator[None]:
        """While ``changes`` of the model ``name`` are on their way."""
        if not any(field in changes for field in READ_BY):
            yield
            return
        self._names[name] += 1
        try:
            yield
        finally:
            self._names[name] -= 1
            if not self._names[name]:
                del self._names[name]

    def check(self, model: ModelReplica, config: ModelConfig) -> None:
        """NotReady unless a vector that was made by ``config`` can be appended now."""
        now = model.live.config
        if self._names and model.name in self._names:
            raise NotReady("the configuration of the model is being changed; nothing was learned")
        if now is not config and reading_of(now) != reading_of(config):
            raise NotReady("the configuration of the model has just been changed; nothing was learned")


def answer_of(learned: Learned) -> LearnAnswer:
    """The answer for one instance."""
    if learned.ranks is None or learned.updated is None:
        return LearnAnswer(str(learned.offset), learned.applied, learned.durability, None, None)
    return LearnAnswer(
        str(learned.offset), learned.applied, learned.durability, learned.ranks[0] or None, learned.updated[0]
    )


def batch_answer_of(learned: list[Learned]) -> LearnBatchAnswer:
    """The answer for a batch: the results in order, and the least that holds for all of them."""
    results = []
    for one in learned:
        stem = f"{one.offset.entry}."
        for at in range(one.n):
            offset = f"{stem}{one.offset.position + at}"
            if one.ranks is None or one.updated is None:
                results.append(LearnResult(offset, None, None))
            else:
                results.append(LearnResult(offset, one.ranks[at] or None, one.updated[at]))
    last = max(one.offset._replace(position=one.offset.position + one.n - 1) for one in learned)
    reached = min((one.durability for one in learned), key=LEVELS.index)
    return LearnBatchAnswer(results, str(last), all(one.applied for one in learned), reached)


def merged(known: list[Learned | None], learned: list[Learned]) -> list[Learned]:
    """Outcomes in the order of the instances: those that were known, and those of the others, one each."""
    singly = [
        Learned(
            one.offset._replace(position=one.offset.position + at),
            1,
            None if one.ranks is None else one.ranks[at : at + 1],
            None if one.updated is None else one.updated[at : at + 1],
            one.applied,
            one.durability,
        )
        for one in learned
        for at in range(one.n)
    ]
    others = iter(singly)
    return [next(others) if one is None else one for one in known]


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
