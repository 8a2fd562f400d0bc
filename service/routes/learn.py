"""``POST /learn``: append labelled instances to the log, and tell what applying them found.

All that can be wrong with a request is found before anything is appended; a batch goes into one entry, so it is learned
whole or not at all. The lines of an NDJSON request stand alone: each is a draft of its own, and drafts are appended in
groups, several of which are on their way at once, in order.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Literal, NamedTuple

from core.config import ModelConfig
from core.errors import AboundError, InvalidInstance, OutcomeUnknown, UnknownPrediction
from core.record import pack_labels
from service.appender import Draft, Learned
from service.budget import Budget
from service.dependencies import trusted_model
from service.errors import problem_of
from service.exchange import Headers
from service.intake import Changing, NewClasses, Room
from service.keyring import Grant
from service.model_replica import ModelReplica
from service.ndjson import AnswerLines, Line, RequestLines, together
from service.pace import Pace
from service.rates import Rates
from service.reading import ABSENT, decode, is_empty, vector_of
from service.remembered import RememberParams, reading_of, recall
from service.repeats import KEY_HEADER, body_hash, check_keys, first_time, key_of
from service.replica import Replica
from service.routes.classify import check_batch
from service.schemas import (
    LabelledInstance,
    LearnAnswer,
    LearnBatchAnswer,
    LearnRequest,
    LearnResult,
    encoder,
    learn_decoder,
)
from service.settings import Settings
from service.store import LEVELS

GROUP_LINES = 256
"""Most lines that are appended together."""

GROUP_BYTES = 2**21
"""Bytes of records at which a group is full."""

GROUPS_AT_ONCE = 4
"""Groups of one request that may be on their way to the log."""


class Terms(NamedTuple):
    """How drafts are to be kept and what their answer waits for; the lines of one group share them."""

    wait: Literal["applied", "log"]
    durability: str


class Sent(NamedTuple):
    """A group of lines on its way: what is wrong with a line or came of it before, and what becomes of the others."""

    lines: list[tuple[int, AboundError | Learned | None]]
    learned: asyncio.Task[list[Learned]] | None


class Learn:
    """The work of the route."""

    def __init__(
        self,
        replica: Replica,
        settings: Settings,
        remember_params: RememberParams,
        changing: Changing,
        rates: Rates,
        budget: Budget,
    ) -> None:
        self._replica = replica
        self._rates = rates
        self._budget = budget
        self._changing = changing
        self._request_bytes = replica.params.log.request_bytes
        self._remember_params = remember_params
        self._max_batch = settings.max_batch
        self._durability = settings.durability
        self._wait_seconds = settings.wait_seconds
        self._under_way: set[asyncio.Task[list[Learned]]] = set()

    def at_once(self, name: str, body: bytes, grant: Grant | None) -> None:
        """Never: learning waits for the log."""

    async def answer(self, name: str, body: bytes, headers: Headers, grant: Grant | None) -> tuple[int, bytes]:
        """Status and answer for one instance or a batch."""
        model = trusted_model(self._replica, name)
        header_key = key_of(headers)
        request = decode(learn_decoder, body)
        if self._rates.watches(grant):
            n = 1 if request.instances is None else len(request.instances)
            await self._rates.admit(grant, n, request.source)
        if request.instances is not None:
            return await self._batch(model, request, request.instances, header_key)
        if header_key is not None:
            if request.key is not None and request.key != header_key:
                raise InvalidInstance("key is not the one of the header Idempotency-Key", "key")
            request.key = header_key
        learned = self._again(model, request, request.source, request.durability)
        if learned is None:
            config = model.live.config
            record = await self._record(model, config, request, NewClasses(model))
            Room(self._request_bytes).take(len(record))
            terms = self._terms(request, request.key is not None)
            [learned] = await self._surely(self._learn(model, config, [_draft(request, record, request.source)], terms))
        if learned.refused is not None:
            raise learned.refused
        return 200 if learned.applied else 202, encoder.encode(_answer(learned))

    async def answer_lines(
        self,
        name: str,
        headers: Headers,
        request_id: str,
        lines: RequestLines,
        answers: AnswerLines,
        grant: Grant | None,
    ) -> None:
        """An answer a line, each request standing alone."""
        model = trusted_model(self._replica, name)
        if headers.get(KEY_HEADER) is not None:
            raise InvalidInstance(
                "the header Idempotency-Key cannot cover NDJSON; give each line its key", "Idempotency-Key"
            )
        groups: asyncio.Queue[Sent | None] = asyncio.Queue(GROUPS_AT_ONCE)
        await together(self._read_groups(model, lines, groups, grant), _answer_groups(groups, answers, request_id))

    async def _read_groups(
        self, model: ModelReplica, lines: RequestLines, groups: asyncio.Queue[Sent | None], grant: Grant | None
    ) -> None:
        pace = Pace()
        new = NewClasses(model)
        group = _Group()
        async for some in lines.groups():
            if self._rates.watches(grant):
                await self._rates.admit_lines(grant, some, learns=True)
            for line in some:
                config = model.live.config
                try:
                    terms, draft = await self._line(model, config, line, new)
                except AboundError as error:
                    group.lines.append((line.number, error))
                else:
                    if isinstance(draft, Draft) and not group.takes(terms, config, draft):
                        await groups.put(self._send(model, group, lines))
                        group = _Group()
                    group.add(line.number, terms, config, draft)
                if group.is_full:
                    await groups.put(self._send(model, group, lines))
                    group = _Group()
                if pace.due():
                    await pace.rest()
            if group.lines and not lines.at_hand:
                await groups.put(self._send(model, group, lines))
                group = _Group()
        if group.lines:
            await groups.put(self._send(model, group, lines))
        await groups.put(None)

    def _send(self, model: ModelReplica, group: _Group, lines: RequestLines) -> Sent:
        if group.terms is None or group.config is None:
            return Sent(group.lines, None)
        lines.used = True
        learned = asyncio.create_task(self._learn(model, group.config, group.drafts, group.terms))
        self._under_way.add(learned)
        learned.add_done_callback(self._ended)
        return Sent(group.lines, learned)

    def _ended(self, learned: asyncio.Task[list[Learned]]) -> None:
        """Let go of a group; its error, if any, is looked at even when the client is gone."""
        self._under_way.discard(learned)
        if not learned.cancelled():
            learned.exception()

    async def _line(
        self, model: ModelReplica, config: ModelConfig, line: Line, new: NewClasses
    ) -> tuple[Terms, Draft | Learned]:
        """What a line is to be learned as, or what came of it the first time."""
        if line.error is not None:
            raise line.error
        request = decode(learn_decoder, line.body)
        if request.instances is not None:
            raise InvalidInstance("instances: a line is one instance", "instances")
        terms = self._terms(request, request.key is not None)
        learned = self._again(model, request, request.source, request.durability)
        if learned is not None:
            return terms, learned
        record = await self._record(model, config, request, new)
        Room(self._request_bytes).take(len(record))
        return terms, _draft(request, record, request.source)

    async def _batch(
        self, model: ModelReplica, request: LearnRequest, instances: list[LabelledInstance], header_key: str | None
    ) -> tuple[int, bytes]:
        check_batch(request.features, request.text, len(instances), self._max_batch)
        for field in ("labels", "prediction", "key"):
            if getattr(request, field) is not None:
                instead = "the header Idempotency-Key covers a batch" if field == "key" else "it goes into instances"
                raise InvalidInstance(f"{field}: a batch has none; {instead}", field)
        check_keys(model, request, instances, header_key)
        if header_key is not None and any(instance.prediction is not None for instance in instances):
            body = body_hash(instances, request.source)
            first = first_time(model, header_key, body, self._reached(request.durability))
            if first is not None:
                return 200, encoder.encode(_batch_answer([first]))
        config = model.live.config
        outcomes, records = await self._records(model, config, request, instances)
        fresh = [instance for instance, outcome in zip(instances, outcomes, strict=True) if outcome is None]
        keyed = header_key is not None or any(instance.key is not None for instance in fresh)
        if not fresh:
            learned = []
        elif header_key is not None or not keyed:
            body = body_hash(fresh, request.source) if header_key is not None else b""
            drafts = [Draft(b"".join(records), len(records), header_key, body, request.source)]
        else:
            drafts = [
                _draft(instance, record, request.source, len(records) if at == 0 else 1)
                for at, (instance, record) in enumerate(zip(fresh, records, strict=True))
            ]
        if fresh:
            learned = await self._surely(self._learn(model, config, drafts, self._terms(request, keyed)))
            _refuse_batch(learned)
        if len(fresh) < len(instances):
            learned = _merged(outcomes, learned)
        applied = all(one.applied for one in learned)
        return 200 if applied else 202, encoder.encode(_batch_answer(learned))

    async def _records(
        self, model: ModelReplica, config: ModelConfig, request: LearnRequest, instances: list[LabelledInstance]
    ) -> tuple[list[Learned | None], list[bytes]]:
        """For each instance of a batch what came of it the first time, else None; and the records of the latter."""
        pace = Pace()
        room = Room(self._request_bytes)
        new = NewClasses(model)
        outcomes: list[Learned | None] = []
        records = []
        for at, instance in enumerate(instances):
            try:
                outcomes.append(self._again(model, instance, request.source, request.durability))
                if outcomes[-1] is None:
                    records.append(await self._record(model, config, instance, new))
                    room.take(len(records[-1]))
            except InvalidInstance as error:
                raise error.inside(f"instances[{at}]") from None
            except UnknownPrediction as error:
                raise UnknownPrediction(str(error), f"instances[{at}].prediction") from None
            if pace.due():
                await pace.rest()
        return outcomes, records

    def _again(
        self, model: ModelReplica, instance: LabelledInstance, source: str | None, durability: str | None
    ) -> Learned | None:
        """What came of a remembered instance under this key the first time: it may be forgotten by now."""
        if instance.prediction is None or instance.key is None:
            return None
        return first_time(model, instance.key, body_hash([instance], source), self._reached(durability))

    def _reached(self, durability: str | None) -> str:
        """How safe what is in the log is known to be without asking again, as far as is asked."""
        facts = self._replica.facts()
        return "fsync" if facts is not None and facts.syncs and (durability or self._durability) != "log" else "log"

    async def _learn(
        self, model: ModelReplica, config: ModelConfig, drafts: list[Draft], terms: Terms
    ) -> list[Learned]:
        self._changing.check(model, config)
        receipts = model.live.receipts
        if any(draft.key is None or draft.key not in receipts for draft in drafts):
            self._budget.check(model)  # not for what was learned before and only wants its answer again
        return await self._replica.learn(model.name, drafts, terms.wait, terms.durability, self._wait_seconds)

    async def _surely(self, learning: Coroutine[Any, Any, list[Learned]]) -> list[Learned]:
        """Await learning; when the service stops meanwhile, nobody knows what becomes of it."""
        try:
            return await learning
        except asyncio.CancelledError:
            raise OutcomeUnknown("the service stopped before the event was applied.") from None

    def _terms(self, request: LearnRequest, keyed: bool) -> Terms:
        return Terms("applied" if keyed else request.wait, request.durability or self._durability)

    async def _record(
        self, model: ModelReplica, config: ModelConfig, instance: LabelledInstance, new: NewClasses
    ) -> bytes:
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


class _Group:
    """Lines to be appended together."""

    __slots__ = ("config", "drafts", "lines", "size", "terms")

    def __init__(self) -> None:
        self.lines: list[tuple[int, AboundError | Learned | None]] = []
        self.drafts: list[Draft] = []
        self.terms: Terms | None = None
        self.config: ModelConfig | None = None
        self.size = 0

    @property
    def is_full(self) -> bool:
        """Whether it is time to append."""
        return len(self.lines) >= GROUP_LINES or self.size >= GROUP_BYTES

    def takes(self, terms: Terms, config: ModelConfig, draft: Draft) -> bool:
        """Whether a line fits to the ones before it."""
        if self.terms is None:
            return True
        return self.terms == terms and self.config is config and self.size + len(draft.records) <= GROUP_BYTES

    def add(self, number: int, terms: Terms, config: ModelConfig, draft: Draft | Learned) -> None:
        """A line that can be learned, or was."""
        if isinstance(draft, Learned):
            self.lines.append((number, draft))
            return
        self.lines.append((number, None))
        self.drafts.append(draft)
        self.terms, self.config = terms, config
        self.size += len(draft.records)


async def _answer_groups(groups: asyncio.Queue[Sent | None], answers: AnswerLines, request_id: str) -> None:
    """Answer the lines of the groups in order, each group as soon as it is learned."""
    pace = Pace()
    while (group := await groups.get()) is not None:
        failure: AboundError | None = None
        learned: list[Learned] = []
        if group.learned is not None:
            try:
                learned = await group.learned
            except AboundError as error:
                failure = error
        outcomes = iter(learned)
        for number, known in group.lines:
            outcome = next(outcomes, None) if known is None else known if isinstance(known, Learned) else None
            problem = known if isinstance(known, AboundError) else None
            if problem is None and known is None:
                problem = failure or (outcome.refused if outcome is not None else None)
            if problem is not None or outcome is None:
                assert problem is not None
                answers.put(encoder.encode(problem_of(problem, request_id, number)))
            else:
                answers.put(encoder.encode(_answer(outcome)))
            if pace.due():
                await pace.rest()
        answers.flush()


def _draft(instance: LabelledInstance, record: bytes, source: str | None, batch: int = 1) -> Draft:
    body = body_hash([instance], source) if instance.key is not None else b""
    return Draft(record, 1, instance.key, body, source, batch)


def _refuse_batch(learned: list[Learned]) -> None:
    """Raise when a key of a batch turned out, while applying, to be taken by another body."""
    refused = next((one.refused for one in learned if one.refused is not None), None)
    if refused is None:
        return
    raise refused


def _merged(known: list[Learned | None], learned: list[Learned]) -> list[Learned]:
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


def _answer(learned: Learned) -> LearnAnswer:
    if learned.ranks is None or learned.updated is None:
        return LearnAnswer(str(learned.offset), learned.applied, learned.durability, None, None)
    return LearnAnswer(
        str(learned.offset), learned.applied, learned.durability, learned.ranks[0] or None, learned.updated[0]
    )


def _batch_answer(learned: list[Learned]) -> LearnBatchAnswer:
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
