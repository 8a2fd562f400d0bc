"""``POST /learn``: append labelled instances to the log, and tell what applying them found.

All that can be wrong with a request is found before anything is appended; a batch goes into one entry, so it is learned
whole or not at all. The lines of an NDJSON request stand alone: each is a draft of its own, and drafts are appended in
groups, several of which are on their way at once, in order.
"""

from __future__ import annotations

import asyncio
import hashlib
from typing import Literal, NamedTuple

import msgspec

from core.errors import AboundError, InvalidInstance, UnknownPrediction
from core.record import pack_labels
from core.types import Offset
from service.appender import Draft, Learned
from service.dependencies import trusted_model
from service.errors import problem_of
from service.exchange import Headers
from service.model_replica import ModelReplica
from service.ndjson import AnswerLines, Line, RequestLines, together
from service.pace import Pace
from service.reading import ABSENT, decode, is_empty, vector_of
from service.remembered import RememberParams, recall
from service.replica import Replica
from service.routes.classify import check_batch
from service.schemas import (
    MAX_KEY_CHARACTERS,
    LabelledInstance,
    LearnAnswer,
    LearnBatchAnswer,
    LearnRequest,
    LearnResult,
    encoder,
    learn_decoder,
)
from service.settings import Settings

GROUP_LINES = 256
"""Most lines that are appended together."""

GROUPS_AT_ONCE = 4
"""Groups of one request that may be on their way to the log."""

KEY_HEADER = b"idempotency-key"


class Terms(NamedTuple):
    """How drafts are to be kept and what their answer waits for; the lines of one group share them."""

    wait: Literal["applied", "log"]
    durability: str


class Sent(NamedTuple):
    """A group of lines on its way: what is wrong with a line, and what becomes of all the others."""

    lines: list[tuple[int, AboundError | None]]
    learned: asyncio.Task[list[Learned]] | None


class Learn:
    """The work of the route."""

    def __init__(self, replica: Replica, settings: Settings, remember_params: RememberParams) -> None:
        self._replica = replica
        self._remember_params = remember_params
        self._max_batch = settings.max_batch
        self._durability = settings.durability
        self._wait_seconds = settings.wait_seconds
        self._under_way: set[asyncio.Task[list[Learned]]] = set()

    async def answer(self, name: str, body: bytes, headers: Headers) -> tuple[int, bytes]:
        """Status and answer for one instance or a batch."""
        model = trusted_model(self._replica, name)
        header_key = _key_of(headers)
        request = decode(learn_decoder, body)
        if request.instances is not None:
            return await self._batch(model, request, request.instances, header_key)
        if header_key is not None:
            if request.key is not None and request.key != header_key:
                raise InvalidInstance("key is not the one of the header Idempotency-Key", "key")
            request.key = header_key
        try:
            record = await self._record(model, request)
        except UnknownPrediction:
            answer = _first_answer(model, request)
            if answer is None:
                raise
            return 200, encoder.encode(answer)
        terms = self._terms(request, request.key is not None)
        [learned] = await self._learn(model, [_draft(request, record, request.source)], terms)
        if learned.refused is not None:
            raise learned.refused
        return 200 if learned.applied else 202, encoder.encode(_answer(learned))

    async def answer_lines(
        self, name: str, headers: Headers, request_id: str, lines: RequestLines, answers: AnswerLines
    ) -> None:
        """An answer a line, each request standing alone."""
        model = trusted_model(self._replica, name)
        if headers.get(KEY_HEADER) is not None:
            raise InvalidInstance(
                "the header Idempotency-Key cannot cover NDJSON; give each line its key", "Idempotency-Key"
            )
        groups: asyncio.Queue[Sent | None] = asyncio.Queue(GROUPS_AT_ONCE)
        await together(self._read_groups(model, lines, groups), _answer_groups(groups, answers, request_id))

    async def _read_groups(self, model: ModelReplica, lines: RequestLines, groups: asyncio.Queue[Sent | None]) -> None:
        pace = Pace()
        group = _Group()
        async for some in lines.groups():
            for line in some:
                try:
                    terms, draft = await self._line(model, line)
                except AboundError as error:
                    group.lines.append((line.number, error))
                else:
                    if group.terms not in (None, terms):
                        await groups.put(self._send(model, group))
                        group = _Group()
                    group.add(line.number, terms, draft)
                if len(group.lines) >= GROUP_LINES:
                    await groups.put(self._send(model, group))
                    group = _Group()
                if pace.due():
                    await pace.rest()
            if group.lines and not lines.at_hand:
                await groups.put(self._send(model, group))
                group = _Group()
        if group.lines:
            await groups.put(self._send(model, group))
        await groups.put(None)

    def _send(self, model: ModelReplica, group: _Group) -> Sent:
        if group.terms is None:
            return Sent(group.lines, None)
        learned = asyncio.create_task(self._learn(model, group.drafts, group.terms))
        self._under_way.add(learned)
        learned.add_done_callback(self._ended)
        return Sent(group.lines, learned)

    def _ended(self, learned: asyncio.Task[list[Learned]]) -> None:
        """Let go of a group; its error, if any, is looked at even when the client is gone."""
        self._under_way.discard(learned)
        if not learned.cancelled():
            learned.exception()

    async def _line(self, model: ModelReplica, line: Line) -> tuple[Terms, Draft]:
        if line.error is not None:
            raise line.error
        request = decode(learn_decoder, line.body)
        if request.instances is not None:
            raise InvalidInstance("instances: a line is one instance", "instances")
        record = await self._record(model, request)
        return self._terms(request, request.key is not None), _draft(request, record, request.source)

    async def _batch(
        self, model: ModelReplica, request: LearnRequest, instances: list[LabelledInstance], header_key: str | None
    ) -> tuple[int, bytes]:
        check_batch(request.features, request.text, len(instances), self._max_batch)
        for field in ("labels", "prediction", "key"):
            if getattr(request, field) is not None:
                instead = "the header Idempotency-Key covers a batch" if field == "key" else "it goes into instances"
                raise InvalidInstance(f"{field}: a batch has none; {instead}", field)
        pace = Pace()
        records = []
        for at, instance in enumerate(instances):
            try:
                records.append(await self._record(model, instance))
            except InvalidInstance as error:
                raise error.inside(f"instances[{at}]") from None
            if pace.due():
                await pace.rest()
        if any(instance.key is not None for instance in instances):
            _check_keys(model, request, instances, header_key)
            drafts = [
                _draft(instance, record, request.source, 1 if at else len(instances))
                for at, (instance, record) in enumerate(zip(instances, records, strict=True))
            ]
        else:
            body = _hash(instances, request.source) if header_key is not None else b""
            drafts = [Draft(b"".join(records), len(records), header_key, body, request.source)]
        keyed = any(draft.key is not None for draft in drafts)
        learned = await self._learn(model, drafts, self._terms(request, keyed))
        _refuse_batch(learned)
        return 200 if learned[0].applied else 202, encoder.encode(_batch_answer(learned))

    async def _learn(self, model: ModelReplica, drafts: list[Draft], terms: Terms) -> list[Learned]:
        return await self._replica.learn(model.name, drafts, terms.wait, terms.durability, self._wait_seconds)

    def _terms(self, request: LearnRequest, keyed: bool) -> Terms:
        return Terms("applied" if keyed else request.wait, request.durability or self._durability)

    async def _record(self, model: ModelReplica, instance: LabelledInstance) -> bytes:
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
            vector = await recall(self._replica.store, model.keys, instance.prediction, self._remember_params)
        if is_empty(vector):
            field = "features" if has_features else "text" if instance.prediction is None else "prediction"
            raise InvalidInstance(f"{field}: no feature is active, so there is nothing to learn from", field)
        model.live.check_labels(instance.labels)
        return vector + labels


class _Group:
    """Lines to be appended together."""

    __slots__ = ("drafts", "lines", "terms")

    def __init__(self) -> None:
        self.lines: list[tuple[int, AboundError | None]] = []
        self.drafts: list[Draft] = []
        self.terms: Terms | None = None

    def add(self, number: int, terms: Terms, draft: Draft) -> None:
        """A line that can be learned."""
        self.lines.append((number, None))
        self.drafts.append(draft)
        self.terms = terms


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
        for number, refusal in group.lines:
            outcome = next(outcomes, None) if refusal is None else None
            problem = refusal or failure or (outcome.refused if outcome is not None else None)
            if problem is not None or outcome is None:
                assert problem is not None
                answers.put(encoder.encode(problem_of(problem, request_id, number)))
            else:
                answers.put(encoder.encode(_answer(outcome)))
            if pace.due():
                await pace.rest()
        answers.flush()


def _draft(instance: LabelledInstance, record: bytes, source: str | None, batch: int = 1) -> Draft:
    body = _hash([instance], source) if instance.key is not None else b""
    return Draft(record, 1, instance.key, body, source, batch)


def _hash(instances: list[LabelledInstance], source: str | None) -> bytes:
    """What makes two requests under one idempotency key the same: the instances as they were sent, and their labels."""
    parts = [(bytes(one.features), one.text, one.labels, one.prediction) for one in instances]
    return hashlib.blake2b(msgspec.msgpack.encode((parts, source)), digest_size=16).digest()


def _check_keys(
    model: ModelReplica, request: LearnRequest, instances: list[LabelledInstance], header_key: str | None
) -> None:
    """InvalidInstance when a key of an instance in a batch cannot stand, so that the batch fails as a whole."""
    seen: set[str] = set()
    for at, instance in enumerate(instances):
        key, field = instance.key, f"instances[{at}].key"
        if header_key is not None:
            raise InvalidInstance("the header Idempotency-Key covers this batch; its instances have no more", field)
        if key is None:
            continue
        if key in seen:
            raise InvalidInstance(f"{field} comes twice in this batch", field)
        seen.add(key)
        receipt = model.live.receipts.get(key)
        if receipt is not None and receipt.body != _hash([instance], request.source):
            raise InvalidInstance(f"{field} came before with another body", field)


def _refuse_batch(learned: list[Learned]) -> None:
    """Raise when a key of a batch turned out, while applying, to be taken by another body."""
    refused = next((one.refused for one in learned if one.refused is not None), None)
    if refused is None:
        return
    raise refused


def _first_answer(model: ModelReplica, request: LearnRequest) -> LearnAnswer | None:
    """The answer that a repeated request had, when its prediction is no longer remembered; None: it is no repeat."""
    receipt = model.live.receipts.get(request.key) if request.key is not None else None
    if receipt is None or receipt.body != _hash([request], request.source):
        return None
    return LearnAnswer(str(Offset(*receipt.offset)), True, "log", receipt.ranks[0] or None, receipt.updated[0])


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
    return LearnBatchAnswer(results, results[-1].offset, learned[0].applied, learned[0].durability)


def _key_of(headers: Headers) -> str | None:
    """The idempotency key that the header gives; InvalidInstance when it is not 1 to 255 printable characters."""
    given = headers.get(KEY_HEADER)
    if given is None:
        return None
    if not 1 <= len(given) <= MAX_KEY_CHARACTERS or not all(32 <= byte < 127 for byte in given):
        raise InvalidInstance(
            f"Idempotency-Key must be 1 to {MAX_KEY_CHARACTERS} printable characters", "Idempotency-Key"
        )
    return given.decode("ascii")
