"""Turn labelled instances into checked records, and append them to the log.

The limits of one learn request hold for the request as a whole, because all its parts are checked before any of
them is learned: the bytes of its records, its new classes, and one vector configuration. New classes are counted
over all requests in progress on this replica.

Idempotency keys: the log decides whether a key is new (``abound_core.model.receipts``). The API looks up the
receipts earlier for requests that can no longer be repeated: a remembered instance may have expired, but its
first answer stands.
"""

from __future__ import annotations

import asyncio
import hashlib
import weakref
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any

import msgspec

from abound.api.decoding import ABSENT, LARGE_BODY, in_thread, vector_of
from abound.api.request_body import Headers
from abound.api.schemas.learn_classify import (
    LabelledInstance,
    LearnAnswer,
    LearnBatchAnswer,
    LearnRequest,
    LearnResult,
    Wait,
)
from abound.log.append_group import LearnDraft, LearnOutcome
from abound.replica.memory_budget import MemoryBudget
from abound.replica.predictions import RememberParams, mark_learned, recall, vector_fingerprint
from abound.replica.replica import Replica
from abound.settings import Settings
from abound.state.replicated_model import ReplicatedModel
from abound.store.server_info import LEVELS
from abound.tasks import TimeSlice
from abound_core.config import VECTOR_FIELDS, ModelConfig
from abound_core.errors import (
    Conflict,
    InvalidInstance,
    NoFeatures,
    NotReady,
    OutcomeUnknown,
    StoreUnavailable,
    TooLarge,
    UnknownModel,
)
from abound_core.instances.record import dense_of, is_empty, pack_labels
from abound_core.limits import MAX_KEY_CHARACTERS, Limits
from abound_core.types import Offset


class LearnService:
    """Checks labelled instances and appends them."""

    def __init__(
        self,
        replica: Replica,
        settings: Settings,
        remember_params: RememberParams,
        changing: ConfigChanges,
        budget: MemoryBudget,
    ) -> None:
        self._replica = replica
        self._remember_params = remember_params
        self._changing = changing
        self._budget = budget
        self._durability = settings.durability
        self._wait_seconds = settings.wait_seconds
        self._pending_classes: weakref.WeakKeyDictionary[ReplicatedModel, PendingClasses] = weakref.WeakKeyDictionary()

    async def earlier_instance_result(
        self, model: ReplicatedModel, instance: LabelledInstance, source: str | None
    ) -> LearnOutcome | None:
        """Return the first result of a remembered instance with this key; the instance itself may have expired."""
        if instance.prediction is None or instance.key is None:
            return None
        return await self.earlier_result(model, instance.key, await body_hash([instance], source))

    async def earlier_result(self, model: ReplicatedModel, key: str, body: bytes) -> LearnOutcome | None:
        """Return the result of the first request with a key, with the durability that the store confirms now."""
        learned = earlier_result(model, key, body)
        if learned is None or self._durability == "log":
            return learned
        return msgspec.structs.replace(learned, durability=await self._replica.confirmed_durability())

    def track_new_classes(self, model: ReplicatedModel) -> AbstractContextManager[RequestAdditions]:
        """Return a context that counts the classes of one learn request that the model does not know."""
        new = self._pending_classes.get(model)
        if new is None:
            new = self._pending_classes[model] = PendingClasses(weakref.proxy(model))
        return new.track_request(self._wait_seconds)

    async def record(
        self, model: ReplicatedModel, config: ModelConfig, instance: LabelledInstance, new: RequestAdditions
    ) -> bytes:
        labels = _labels_part(instance, model.live.limits)
        has_features = bytes(instance.features) not in ABSENT
        if instance.prediction is None:
            vector = await vector_of(model.live, instance)
        elif has_features or instance.text is not None or instance.vector is not None:
            raise InvalidInstance(
                "prediction refers to a remembered instance; omit features, text and vector", "prediction"
            )
        else:
            store, keys = self._replica.store, model.keys
            vector = await recall(store, keys, instance.prediction, self._remember_params, vector_fingerprint(config))
            dense = dense_of(vector)
            if dense is not None:
                model.live.check_dimension(len(dense))
        if is_empty(vector):
            field = "features" if has_features else "text" if instance.prediction is None else "prediction"
            why = " (numbers below 0 are active only with `negative: split`)" if has_features else ""
            raise NoFeatures(f"{field}: no feature is active{why}, so there is nothing to learn from", field)
        first = None if model.live.dimension else dense_of(vector)
        new.check(instance.labels or (), 0 if first is None else len(first))
        return vector + labels

    async def append(
        self, model: ReplicatedModel, config: ModelConfig, drafts: list[LearnDraft], wait: Wait
    ) -> list[LearnOutcome]:
        """Append drafts of one request, or of several lines, and wait; drafts with a key until they are applied."""
        if self._replica.model(model.name) is not model:
            raise UnknownModel(f"the model {model.name} was deleted, and another one was created under its name")
        self._changing.check(model, config)
        receipts = model.live.receipts
        if any(draft.key is None or draft.key not in receipts for draft in drafts):
            # Repeats only return their first answer and need no memory.
            self._budget.check(model, self._replica.models.all)
        learned = await self._replica.learn(model.name, drafts, wait, self._wait_seconds)
        predictions = [one for draft in drafts for one in draft.predictions]
        if predictions:
            with suppress(StoreUnavailable):  # learned all the same; at worst the instance is listed again
                await mark_learned(self._replica.store, model.keys, predictions, self._remember_params)
        return learned


async def draft_of(
    instance: LabelledInstance, record: bytes, source: str | None, batch: int = 1, pace: TimeSlice | None = None
) -> LearnDraft:
    """Return the draft of one instance; ``batch`` drafts from this one on are learned whole or not at all."""
    body = await body_hash([instance], source, pace) if instance.key is not None else b""
    return LearnDraft(record, 1, instance.key, body, source, batch, predictions_of([instance]))


def predictions_of(instances: Iterable[LabelledInstance]) -> tuple[str, ...]:
    return tuple(one.prediction for one in instances if one.prediction is not None)


def _labels_part(instance: LabelledInstance, limits: Limits) -> bytes:
    weight = 1.0 if instance.weight is None else instance.weight
    return pack_labels(instance.labels or (), limits, instance.rejected or (), instance.ignored or (), weight)


MIN_PRUNED_LABELS = 4096  # pending labels at which those learned in the meantime are removed


class VectorBudget:
    """Bytes left for the vectors and records of one request, which can be many times the size of its body."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._left = limit

    def reserve(self, size: int) -> None:
        self._left -= size
        if self._left < 0:
            raise TooLarge(
                f"the instances of this request take more than {self._limit} bytes as vectors; "
                "send fewer or smaller instances in one request"
            )


class PendingClasses:
    """Labels that pending requests of this replica would add to a model.

    They are bounded by ``max_classes`` and by what the index can hold. A label counts from its check until it is
    learned, or until its request is known to have failed. Pending labels of other replicas are not known here.
    """

    def __init__(self, model: ReplicatedModel) -> None:
        self.model = model
        self._pending: Counter[str] = Counter()  # number of pending requests per label
        self._prune_above = MIN_PRUNED_LABELS
        self._known = -1

    @contextmanager
    def track_request(self, seconds: float) -> Iterator[RequestAdditions]:
        """Yield the labels of one request, counted while it is in progress.

        Labels that may be in the log but are not learned when the context ends count for ``seconds`` more.
        """
        brought = RequestAdditions(self)
        try:
            yield brought
        except (OutcomeUnknown, asyncio.CancelledError):
            self._release_later(brought, seconds)
            raise
        except BaseException:
            self._release(brought.labels)
            raise
        else:
            self._release_later(brought, seconds)

    def reserve(self, labels: Collection[str], brought: set[str]) -> None:
        """Count new labels for a request that has ``brought`` some already; raise Conflict for too many classes."""
        live = self.model.live
        bounds = [bound for bound in (live.config.max_classes, live.index.most_classes) if bound is not None]
        if not bounds:
            return
        most = min(bounds)
        unknown = {label for label in labels if label not in brought and live.labels.find(label.encode()) < 0}
        if not unknown:
            return
        new = {label for label in unknown if label not in self._pending}
        known = len(live.labels)
        is_over = known + len(self._pending) + len(new) > most
        if (is_over and known != self._known) or len(self._pending) > self._prune_above:
            self._pending = Counter({label: n for label, n in self._pending.items() if self._is_unknown(label)})
            self._prune_above = max(MIN_PRUNED_LABELS, 2 * len(self._pending))
            self._known = known
        coming = len(self._pending)
        if new and known + coming + len(new) > most:
            more = f" and {coming} more pending" if coming else ""
            raise Conflict(f"the model has {known} classes{more} of at most {most}: {min(new)!r} is new")
        self._pending.update(unknown)
        if len(brought) > self._prune_above:
            brought.intersection_update(self._pending)
        brought |= unknown

    def _is_unknown(self, label: str) -> bool:
        return self.model.live.labels.find(label.encode()) < 0

    def _release(self, labels: Collection[str]) -> None:
        for label in labels:
            if label in self._pending:
                self._pending[label] -= 1
                if not self._pending[label]:
                    del self._pending[label]

    def _release_later(self, brought: RequestAdditions, seconds: float) -> None:
        left = {label for label in brought.labels if self._is_unknown(label)}
        self._release(brought.labels - left)
        if left:
            asyncio.get_running_loop().call_later(seconds, self._release, left)


class RequestAdditions:
    """What one request adds to a model: new labels, and the dimension if its vectors are the model's first."""

    def __init__(self, new: PendingClasses) -> None:
        self.labels: set[str] = set()
        self._new = new
        self._dimension = 0

    def check(self, labels: Collection[str], dimension: int = 0) -> None:
        """Count what an instance adds, nothing if it is refused. A ``dimension`` of 0 is not checked."""
        if dimension and self._dimension not in (0, dimension):
            raise InvalidInstance(
                f"vector has {dimension} numbers; the first one of this request has {self._dimension}", "vector"
            )
        self._new.reserve(labels, self.labels)
        self._dimension = self._dimension or dimension


class ConfigChanges:
    """Models with a pending change of the configuration of their vectors; nothing is learned until it is applied."""

    def __init__(self) -> None:
        self._names: Counter[str] = Counter()

    @contextmanager
    def pending(self, name: str, changes: Mapping[str, Any]) -> Iterator[None]:
        """Block learning on the model ``name`` while ``changes`` that affect its vectors are pending."""
        if not any(field in changes for field in VECTOR_FIELDS):
            yield
            return
        self._names[name] += 1
        try:
            yield
        finally:
            self._names[name] -= 1
            if not self._names[name]:
                del self._names[name]

    def check(self, model: ReplicatedModel, config: ModelConfig) -> None:
        """Raise NotReady unless a vector made with ``config`` can be appended now."""
        now = model.live.config
        if self._names and model.name in self._names:
            raise NotReady("the configuration of the model is being changed; nothing was learned, try again")
        if now is not config and vector_fingerprint(now) != vector_fingerprint(config):
            raise NotReady("the configuration of the model has just changed; nothing was learned, try again")


def answer_of(learned: LearnOutcome) -> LearnAnswer:
    if learned.ranks is None or learned.updated is None:
        return LearnAnswer(str(learned.offset), learned.applied, learned.durability, None, None)
    return LearnAnswer(
        str(learned.offset), learned.applied, learned.durability, learned.ranks[0] or None, learned.updated[0]
    )


def batch_answer_of(learned: list[LearnOutcome]) -> LearnBatchAnswer:
    """Return the answer for a batch: results in order, with the lowest durability and the last offset."""
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


def merge_results(known: list[LearnOutcome | None], learned: list[LearnOutcome]) -> list[LearnOutcome]:
    """Return one result per instance, in order: the ``known`` one where there is one, else the next of ``learned``."""
    singly = [
        LearnOutcome(
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

_encode = msgspec.json.Encoder().encode  # features are still raw JSON and are hashed as they came


def idempotency_key_of(headers: Headers) -> str | None:
    given = headers.get(KEY_HEADER)
    if given is None:
        return None
    if not 1 <= len(given) <= MAX_KEY_CHARACTERS or not all(32 <= byte < 127 for byte in given):
        raise InvalidInstance(
            f"Idempotency-Key must be 1 to {MAX_KEY_CHARACTERS} printable ASCII characters", "Idempotency-Key"
        )
    return given.decode("ascii")


async def body_hash(instances: list[LabelledInstance], source: str | None, pace: TimeSlice | None = None) -> bytes:
    """Return the hash of instances as sent, feedback and source, by which requests with one key are compared."""
    pace, hashed, before = pace or TimeSlice(), hashlib.blake2b(digest_size=16), b"[["
    for one in instances:
        parts = (one.features, one.text, one.vector, one.labels, one.prediction, one.rejected, one.ignored, one.weight)
        part = _encode(parts)
        hashed.update(before)
        if len(part) > LARGE_BODY:
            await in_thread(hashed.update, part)
        else:
            hashed.update(part)
        before = b","
        if pace.due():
            await pace.pause()
    hashed.update(b"],%b]" % _encode(source))
    return hashed.digest()


def earlier_result(model: ReplicatedModel, key: str, body: bytes) -> LearnOutcome | None:
    """Return the applied result of the first request with ``key``; raise InvalidInstance when it had another body."""
    receipt = model.live.receipts.get(key)
    if receipt is None:
        return None
    if receipt.body != body:
        raise InvalidInstance("this idempotency key came before with another body", "key")
    return LearnOutcome(Offset(*receipt.offset), len(receipt.ranks), receipt.ranks, receipt.updated, True, "log")


async def check_instance_keys(
    model: ReplicatedModel, request: LearnRequest, instances: list[LabelledInstance], header_key: str | None
) -> None:
    """Raise InvalidInstance when the key of an instance is not usable, so that the batch fails as a whole."""
    pace, seen = TimeSlice(), set[str]()
    for at, instance in enumerate(instances):
        key, field = instance.key, f"instances[{at}].key"
        if key is None:
            continue
        if header_key is not None:
            raise InvalidInstance("do not give keys to single instances when the Idempotency-Key header is set", field)
        if key in seen:
            raise InvalidInstance(f"{field} occurs twice in this batch", field)
        seen.add(key)
        receipt = model.live.receipts.get(key)
        if receipt is not None and receipt.body != await body_hash([instance], request.source, pace):
            raise InvalidInstance(f"{field} was used before with another body; use a new key", field)
