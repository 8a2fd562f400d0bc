"""``POST /learn``: append labelled instances to the log, and return the result of applying them.

A request is validated completely before anything is appended: the bytes of its records, its new classes, and one
vector configuration. New classes are counted over all requests in progress on this replica. A batch becomes one log
entry, so it is learned whole or not at all. Each line of an NDJSON request is learned independently of the others.

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
from typing import Any, NamedTuple

import msgspec

from abound.api.decoding import (
    ABSENT,
    LARGE_BODY,
    ByteBudget,
    Warnings,
    add_warning,
    check_batch,
    decode_batch,
    encode_lines,
    in_thread,
    max_work_of,
    vector_of,
)
from abound.api.ndjson import AnswerLines, NdjsonLine, RequestLines
from abound.api.ndjson_rates import admit_lines
from abound.api.problems import problem_of
from abound.api.request_body import Headers
from abound.api.schemas.learn_classify import (
    LabelledInstance,
    LearnAnswer,
    LearnBatchAnswer,
    LearnRequest,
    LearnResult,
    Wait,
    encoder,
    labelled_decoder,
    learn_decoder,
)
from abound.api.times import APPLY_SECONDS
from abound.log.append_group import LearnDraft, LearnOutcome
from abound.processes.remote_encoder import RemoteEncoder
from abound.replica.memory_budget import MemoryBudget
from abound.replica.predictions import RememberParams, mark_learned, recall, vector_fingerprint
from abound.replica.replica import Replica
from abound.security.key_ring import Grant
from abound.security.rate_limits import RateLimiter
from abound.settings import Settings
from abound.state.replicated_model import ReplicatedModel
from abound.store.server_info import LEVELS
from abound.tasks import TimeSlice, run_together
from abound_core.config import VECTOR_FIELDS, ModelConfig
from abound_core.errors import (
    AboundError,
    Conflict,
    InvalidInstance,
    NoFeatures,
    NotReady,
    OutcomeUnknown,
    StoreUnavailable,
    UnknownPrediction,
)
from abound_core.instances.encoded_vector import VectorOfText
from abound_core.instances.record import dense_of, is_empty, pack_labels
from abound_core.limits import MAX_KEY_CHARACTERS
from abound_core.model.live_model import LiveModel
from abound_core.types import Offset

GROUP_LINES = 256  # lines that are appended together
GROUP_BYTES = 2**21  # of records, at which a group is full
GROUPS_AT_ONCE = 4  # groups of one request that may wait for the log
MIN_PRUNED_LABELS = 4096  # pending labels at which those learned in the meantime are removed
KEY_HEADER = b"idempotency-key"


class Learn:
    """Checks labelled instances, appends them and answers with the results."""

    def __init__(
        self,
        replica: Replica,
        settings: Settings,
        remember_params: RememberParams,
        changing: ConfigChanges,
        budget: MemoryBudget,
        rates: RateLimiter,
        remote: RemoteEncoder,
    ) -> None:
        self._replica = replica
        self._remember_params = remember_params
        self._changing = changing
        self._budget = budget
        self._rates = rates
        self._remote = remote
        self._durability = settings.durability
        self._max_batch = settings.max_batch
        self._request_bytes = replica.params.log.request_bytes
        self._pending_classes: weakref.WeakKeyDictionary[ReplicatedModel, PendingClasses] = weakref.WeakKeyDictionary()
        self._appending: set[asyncio.Task[list[LearnOutcome]]] = set()

    async def answer(
        self, model: ReplicatedModel, body: bytes, headers: Headers, grant: Grant | None
    ) -> tuple[int, bytes]:
        header_key = idempotency_key_of(headers)
        request = await decode_batch(
            learn_decoder,
            body,
            "instances",
            labelled_decoder,
            self._max_batch,
            max_work=max_work_of(model.live.limits),
        )
        if self._rates.limits(grant):
            n = 1 if request.instances is None else len(request.instances)
            await self._rates.admit(grant, n, request.source, learns=True)
        warnings = Warnings()
        if request.instances is not None:
            learned = await self._batch(model, request, request.instances, header_key, warnings)
            answer = add_warning(encoder.encode(batch_answer_of(learned)), warnings.first)
            return 200 if all(one.applied for one in learned) else 202, answer
        if header_key is not None:
            if request.key is not None and request.key != header_key:
                raise InvalidInstance("key differs from the header Idempotency-Key; give only one of them", "key")
            request.key = header_key
        await self._remote.encode(model.live.config.analyzer, [request])
        config = model.live.config
        with self.track_new_classes(model) as new:
            room = ByteBudget(self._request_bytes)
            one = await self._prepare(model, config, request, request.source, new, room, warnings)
            if isinstance(one, LearnDraft):
                [one] = await self.append(model, config, [one], request.wait)
        if one.refused is not None:
            raise one.refused
        return 200 if one.applied else 202, add_warning(encoder.encode(answer_of(one)), warnings.first)

    async def answer_lines(
        self,
        model: ReplicatedModel,
        headers: Headers,
        request_id: str,
        lines: RequestLines,
        answers: AnswerLines,
        grant: Grant | None,
    ) -> None:
        """Append the lines in groups, in order; several groups of a request can be in progress."""
        if headers.get(KEY_HEADER) is not None:
            raise InvalidInstance(
                "the header Idempotency-Key does not apply to NDJSON; give each line its own key", "Idempotency-Key"
            )
        groups: asyncio.Queue[PendingGroup | None] = asyncio.Queue(GROUPS_AT_ONCE)
        with self.track_new_classes(model) as new:
            await run_together(
                self._read_groups(model, lines, groups, grant, new), _answer_groups(groups, answers, request_id)
            )

    # what other routes that learn use, too

    def track_new_classes(self, model: ReplicatedModel) -> AbstractContextManager[RequestAdditions]:
        """Return a context that counts the classes of one learn request that the model does not know."""
        new = self._pending_classes.get(model)
        if new is None:
            new = self._pending_classes[model] = PendingClasses(weakref.proxy(model))
        return new.track_request(APPLY_SECONDS)

    async def append(
        self, model: ReplicatedModel, config: ModelConfig, drafts: list[LearnDraft], wait: Wait
    ) -> list[LearnOutcome]:
        """Append drafts of one request, or of several lines, and wait; drafts with a key until they are applied."""
        self._replica.models.check_changeable(model)  # it may have been deleted or replaced since it was found
        self._changing.check(model, config)
        receipts = model.live.receipts
        if any(draft.key is None or draft.key not in receipts for draft in drafts):
            # Repeats only return their first answer and need no memory.
            self._budget.check(model, self._replica.models.all)
        assert model.appender is not None
        try:
            learned = await model.appender.learn(drafts, wait == "applied", APPLY_SECONDS)
        except asyncio.CancelledError:
            raise OutcomeUnknown("the service stopped before the event was applied.") from None
        predictions = [
            prediction
            for draft, one in zip(drafts, learned, strict=True)
            if not one.is_of_another_body
            for prediction in draft.predictions
        ]
        if predictions:
            with suppress(StoreUnavailable):  # learned all the same; at worst the instance is listed again
                await mark_learned(self._replica.store, model.keys, predictions, self._remember_params)
        return learned

    # an instance

    async def _prepare(
        self,
        model: ReplicatedModel,
        config: ModelConfig,
        instance: LabelledInstance,
        source: str | None,
        new: RequestAdditions,
        room: ByteBudget,
        warnings: Warnings,
        pace: TimeSlice | None = None,
    ) -> LearnDraft | LearnOutcome:
        """Return the draft of an instance; the first result of a remembered one whose key came before."""
        key, prediction = instance.key, instance.prediction
        body = b"" if key is None else await body_hash([instance], source, pace)
        if prediction is not None and key is not None:
            earlier = await self.earlier_result(model, key, body)
            if earlier is not None:
                return earlier  # the instance itself may have expired
        record = await self._record(model, config, instance, new, warnings)
        room.reserve(len(record))
        return LearnDraft(record, 1, key, body, source, predictions=() if prediction is None else (prediction,))

    async def earlier_result(self, model: ReplicatedModel, key: str, body: bytes) -> LearnOutcome | None:
        """Return the result of the first request with a key, with the durability that the store confirms now.

        Raises InvalidInstance when that request had another body.
        """
        receipt = model.live.receipts.get(key)
        if receipt is None:
            return None
        if receipt.body != body:
            raise InvalidInstance("this idempotency key came before with another body", "key")
        reached = "log" if self._durability == "log" else await self._replica.confirmed_durability()
        return LearnOutcome(Offset(*receipt.offset), len(receipt.ranks), receipt.ranks, receipt.updated, True, reached)

    async def _record(
        self,
        model: ReplicatedModel,
        config: ModelConfig,
        instance: LabelledInstance,
        new: RequestAdditions,
        warnings: Warnings,
    ) -> bytes:
        weight = 1.0 if instance.weight is None else instance.weight
        true, rejected, ignored = map(
            model.live.vectorizer.labels, (instance.labels, instance.rejected, instance.ignored)
        )
        labels = pack_labels(true, model.live.limits, rejected, ignored, weight, instance.none, instance.partial)
        warnings.first = warnings.first or retired_warning(model.live, (*true, *rejected, *ignored))
        has_features = bytes(instance.features) not in ABSENT
        if instance.prediction is None:
            vector = await vector_of(model.live, instance, warnings)
        elif has_features or any(one is not None for one in (instance.text, instance.vector, instance.vector_model)):
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
        new.check(true, 0 if first is None else len(first))
        return vector + labels

    # a batch

    async def _batch(
        self,
        model: ReplicatedModel,
        request: LearnRequest,
        instances: list[LabelledInstance],
        header_key: str | None,
        warnings: Warnings,
    ) -> list[LearnOutcome]:
        check_batch(request, len(instances), self._max_batch)
        for field in ("labels", "rejected", "ignored", "none", "partial", "weight", "prediction", "key"):
            if getattr(request, field) not in (None, False):
                instead = "use the header Idempotency-Key" if field == "key" else "move it into instances"
                raise InvalidInstance(f"{field}: a batch has none; {instead}", field)
        await _check_instance_keys(model, request, instances, header_key)
        body = b"" if header_key is None else await body_hash(instances, request.source)
        if header_key is not None and any(instance.prediction is not None for instance in instances):
            first = await self.earlier_result(model, header_key, body)
            if first is not None:
                return [first]
        await self._remote.encode(model.live.config.analyzer, instances)
        config = model.live.config
        with self.track_new_classes(model) as new:
            prepared = await self._prepare_all(model, config, instances, request.source, new, warnings)
            drafts = [one for one in prepared if isinstance(one, LearnDraft)]
            if not drafts:
                return [one for one in prepared if isinstance(one, LearnOutcome)]
            if header_key is not None or all(draft.key is None for draft in drafts):
                records = b"".join([draft.records for draft in drafts])
                predictions = tuple(prediction for draft in drafts for prediction in draft.predictions)
                whole = [LearnDraft(records, len(drafts), header_key, body, request.source, predictions=predictions)]
            else:
                whole = [msgspec.structs.replace(drafts[0], batch=len(drafts)), *drafts[1:]]
            learned = await self.append(model, config, whole, request.wait)
        for one in learned:
            if one.refused is not None:
                raise one.refused
        if len(drafts) < len(instances):
            return merge_results([one if isinstance(one, LearnOutcome) else None for one in prepared], learned)
        return learned

    async def _prepare_all(
        self,
        model: ReplicatedModel,
        config: ModelConfig,
        instances: list[LabelledInstance],
        source: str | None,
        new: RequestAdditions,
        warnings: Warnings,
    ) -> list[LearnDraft | LearnOutcome]:
        pace, room = TimeSlice(), ByteBudget(self._request_bytes)
        prepared = []
        for at, instance in enumerate(instances):
            try:
                prepared.append(await self._prepare(model, config, instance, source, new, room, warnings, pace))
            except InvalidInstance as error:
                raise error.inside(f"instances[{at}]") from None
            except UnknownPrediction as error:
                raise UnknownPrediction(str(error), f"instances[{at}].prediction") from None
            if pace.due():
                await pace.pause()
        return prepared

    # lines

    async def _read_groups(
        self,
        model: ReplicatedModel,
        lines: RequestLines,
        groups: asyncio.Queue[PendingGroup | None],
        grant: Grant | None,
        new: RequestAdditions,
    ) -> None:
        pace, warnings = TimeSlice(), Warnings()
        group = _Group()
        async for some in lines.groups():
            if self._rates.limits(grant):
                await admit_lines(self._rates, grant, some, learns=True)
            await encode_lines(self._remote, model.live, some, learn_decoder)
            for line in some:
                config = model.live.config
                try:
                    wait, draft, warning = await self._line(model, config, line, new, warnings)
                except AboundError as error:
                    group.lines.append((line.number, error, None))
                else:
                    if isinstance(draft, LearnDraft) and not group.accepts(wait, config, draft):
                        await groups.put(self._send(model, group, lines))
                        group = _Group()
                    group.add(line.number, wait, config, draft, warning)
                if group.is_full:
                    await groups.put(self._send(model, group, lines))
                    group = _Group()
                if pace.due():
                    await pace.pause()
            if group.lines and not lines.has_more:
                await groups.put(self._send(model, group, lines))
                group = _Group()
        if group.lines:
            await groups.put(self._send(model, group, lines))
        await groups.put(None)

    def _send(self, model: ReplicatedModel, group: _Group, lines: RequestLines) -> PendingGroup:
        if group.wait is None or group.config is None:
            return PendingGroup(group.lines, None)
        lines.may_be_logged = True
        learned = asyncio.create_task(self.append(model, group.config, group.drafts, group.wait))
        self._appending.add(learned)
        learned.add_done_callback(self._forget)
        return PendingGroup(group.lines, learned)

    def _forget(self, learned: asyncio.Task[list[LearnOutcome]]) -> None:
        """Forget a group; retrieve its error, which no task awaits when the client has disconnected."""
        self._appending.discard(learned)
        if not learned.cancelled():
            learned.exception()

    async def _line(
        self,
        model: ReplicatedModel,
        config: ModelConfig,
        line: NdjsonLine,
        new: RequestAdditions,
        warnings: Warnings,
    ) -> tuple[Wait, LearnDraft | LearnOutcome, str | None]:
        """Return what the answer to a line waits for, its draft or its earlier result, and its warning."""
        if line.error is not None:
            raise line.error
        request = line.request
        if request is None:
            request = await decode_batch(learn_decoder, line.body, max_work=max_work_of(model.live.limits))
        if request.instances is not None:
            raise InvalidInstance("instances: a line has one instance; send each on a line of its own", "instances")
        wait: Wait = "applied" if request.key is not None else request.wait  # the lines of a group wait as one
        room = ByteBudget(self._request_bytes)
        before = warnings.first
        prepared = await self._prepare(model, config, request, request.source, new, room, warnings)
        return wait, prepared, None if before else warnings.first


_Line = tuple[int, AboundError | LearnOutcome | None, str | None]


class PendingGroup(NamedTuple):
    """A group of lines being appended; ``learned`` gives the results of lines without an error or earlier result."""

    lines: list[_Line]
    learned: asyncio.Task[list[LearnOutcome]] | None


class _Group:
    """Lines to be appended together."""

    __slots__ = ("config", "drafts", "lines", "size", "wait")

    def __init__(self) -> None:
        self.lines: list[_Line] = []
        self.drafts: list[LearnDraft] = []
        self.wait: Wait | None = None
        self.config: ModelConfig | None = None
        self.size = 0

    @property
    def is_full(self) -> bool:
        return len(self.lines) >= GROUP_LINES or self.size >= GROUP_BYTES

    def accepts(self, wait: Wait, config: ModelConfig, draft: LearnDraft) -> bool:
        if self.wait is None:
            return True
        return self.wait == wait and self.config is config and self.size + len(draft.records) <= GROUP_BYTES

    def add(
        self,
        number: int,
        wait: Wait,
        config: ModelConfig,
        draft: LearnDraft | LearnOutcome,
        warning: str | None,
    ) -> None:
        if isinstance(draft, LearnOutcome):
            self.lines.append((number, draft, warning))
            return
        self.lines.append((number, None, warning))
        self.drafts.append(draft)
        self.wait, self.config = wait, config
        self.size += len(draft.records)


async def _answer_groups(groups: asyncio.Queue[PendingGroup | None], answers: AnswerLines, request_id: str) -> None:
    """Answer the lines of the groups in order, each group as soon as it is learned."""
    pace = TimeSlice()
    while (group := await groups.get()) is not None:
        failure: AboundError | None = None
        learned: list[LearnOutcome] = []
        if group.learned is not None:
            try:
                learned = await group.learned
            except AboundError as error:
                failure = error
        outcomes = iter(learned)
        for number, known, warning in group.lines:
            outcome = next(outcomes, None) if known is None else known if isinstance(known, LearnOutcome) else None
            problem = known if isinstance(known, AboundError) else None
            if problem is None and known is None:
                problem = failure or (outcome.refused if outcome is not None else None)
            if problem is not None or outcome is None:
                assert problem is not None
                answers.put(encoder.encode(problem_of(problem, request_id, number)))
            else:
                answer = answer_of(outcome)
                answer.warning = warning
                answers.put(encoder.encode(answer))
            if pace.due():
                await pace.pause()
        await answers.wait_for_client()


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
        known = live.labels.n_ids if most == live.index.most_classes else live.n_classes  # aliases need an id, too
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


def retired_warning(live: LiveModel, labels: Iterable[str]) -> str | None:
    """Return a warning if one of the labels is retired."""
    for label in labels if live.changes else ():
        if live.changes.is_retired(live.find(label)):
            return f"the label {label[:100]!r} is retired: nothing is learned for it"
    return None


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
        sent = None if isinstance(one.vector, VectorOfText) else one.vector
        parts = (one.features, one.text, sent, one.labels, one.prediction, one.rejected, one.ignored, one.weight)
        part = _encode((*parts, "partial") if one.partial else (*parts, True) if one.none else parts)
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


async def _check_instance_keys(
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
