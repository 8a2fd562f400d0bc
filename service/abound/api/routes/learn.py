"""``POST /learn``: append labelled instances to the log, and return the result of applying them.

The request is validated completely before anything is appended. A batch becomes one log entry, so it is learned
whole or not at all.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import msgspec

from abound.api.classify import check_batch
from abound.api.decoding import decode_batch, max_work_of, with_warning
from abound.api.dependencies import trusted_model
from abound.api.learn import (
    KEY_HEADER,
    LearnService,
    RequestAdditions,
    VectorBudget,
    answer_of,
    batch_answer_of,
    body_hash,
    check_instance_keys,
    draft_of,
    idempotency_key_of,
    merge_results,
    predictions_of,
)
from abound.api.learn_stream import LearnStream
from abound.api.ndjson import AnswerLines, RequestLines
from abound.api.request_body import Headers
from abound.api.schemas.learn_classify import (
    LabelledInstance,
    LearnRequest,
    encoder,
    labelled_decoder,
    learn_decoder,
)
from abound.log.append_group import LearnDraft, LearnOutcome
from abound.replica.replica import Replica
from abound.security.key_ring import Grant
from abound.security.rate_limits import RateLimiter
from abound.state.replicated_model import ReplicatedModel
from abound.tasks import TimeSlice
from abound_core.config import ModelConfig
from abound_core.errors import InvalidInstance, OutcomeUnknown, UnknownPrediction


class LearnHandler:
    def __init__(self, replica: Replica, learning: LearnService, rates: RateLimiter, max_batch: int) -> None:
        self._replica = replica
        self._learning = learning
        self._rates = rates
        self._max_batch = max_batch
        self._request_bytes = replica.params.log.request_bytes
        self._lines = LearnStream(learning, rates, self._request_bytes)

    def answer_immediately(self, name: str, body: bytes, grant: Grant | None) -> None:
        """Return None: learning waits for the log."""

    async def answer(self, name: str, body: bytes, headers: Headers, grant: Grant | None) -> tuple[int, bytes]:
        model = trusted_model(self._replica, name)
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
        if request.instances is not None:
            status, answer = await self._batch(model, request, request.instances, header_key)
            return status, await with_warning(model.live, answer, (one.features for one in request.instances))
        if header_key is not None:
            if request.key is not None and request.key != header_key:
                raise InvalidInstance("key differs from the header Idempotency-Key; give only one of them", "key")
            request.key = header_key
        learned = await self._learning.earlier_instance_result(model, request, request.source)
        if learned is None:
            config = model.live.config
            with self._learning.track_new_classes(model) as new:
                record = await self._learning.record(model, config, request, new)
                VectorBudget(self._request_bytes).reserve(len(record))
                draft = await draft_of(request, record, request.source)
                [learned] = await self._await_learning(self._learning.append(model, config, [draft], request.wait))
        if learned.refused is not None:
            raise learned.refused
        answer = await with_warning(model.live, encoder.encode(answer_of(learned)), [request.features])
        return 200 if learned.applied else 202, answer

    async def answer_lines(
        self,
        name: str,
        headers: Headers,
        request_id: str,
        lines: RequestLines,
        answers: AnswerLines,
        grant: Grant | None,
    ) -> None:
        model = trusted_model(self._replica, name)
        if headers.get(KEY_HEADER) is not None:
            raise InvalidInstance(
                "the header Idempotency-Key does not apply to NDJSON; give each line its own key", "Idempotency-Key"
            )
        await self._lines.answer(model, request_id, lines, answers, grant)

    async def _batch(
        self, model: ReplicatedModel, request: LearnRequest, instances: list[LabelledInstance], header_key: str | None
    ) -> tuple[int, bytes]:
        check_batch(request, len(instances), self._max_batch)
        for field in ("labels", "rejected", "ignored", "weight", "prediction", "key"):
            if getattr(request, field) is not None:
                instead = "use the header Idempotency-Key" if field == "key" else "move it into instances"
                raise InvalidInstance(f"{field}: a batch has none; {instead}", field)
        await check_instance_keys(model, request, instances, header_key)
        if header_key is not None and any(instance.prediction is not None for instance in instances):
            body = await body_hash(instances, request.source)
            first = await self._learning.earlier_result(model, header_key, body)
            if first is not None:
                return 200, encoder.encode(batch_answer_of([first]))
        with self._learning.track_new_classes(model) as new:
            return await self._learn_batch(model, request, instances, header_key, new)

    async def _learn_batch(
        self,
        model: ReplicatedModel,
        request: LearnRequest,
        instances: list[LabelledInstance],
        header_key: str | None,
        new: RequestAdditions,
    ) -> tuple[int, bytes]:
        config = model.live.config
        outcomes, records = await self._records(model, config, request, instances, new)
        fresh = [instance for instance, outcome in zip(instances, outcomes, strict=True) if outcome is None]
        keyed = header_key is not None or any(instance.key is not None for instance in fresh)
        if not fresh:
            learned = []
        elif header_key is not None or not keyed:
            body = await body_hash(fresh, request.source) if header_key is not None else b""
            draft = LearnDraft(b"".join(records), len(records), header_key, body, request.source)
            drafts = [msgspec.structs.replace(draft, predictions=predictions_of(fresh))]
        else:
            pace = TimeSlice()
            drafts = [
                await draft_of(instance, record, request.source, len(records) if at == 0 else 1, pace)
                for at, (instance, record) in enumerate(zip(fresh, records, strict=True))
            ]
        if fresh:
            learned = await self._await_learning(self._learning.append(model, config, drafts, request.wait))
            _refuse_batch(learned)
        if len(fresh) < len(instances):
            learned = merge_results(outcomes, learned)
        applied = all(one.applied for one in learned)
        return 200 if applied else 202, encoder.encode(batch_answer_of(learned))

    async def _records(
        self,
        model: ReplicatedModel,
        config: ModelConfig,
        request: LearnRequest,
        instances: list[LabelledInstance],
        new: RequestAdditions,
    ) -> tuple[list[LearnOutcome | None], list[bytes]]:
        """Return the earlier result or None for each instance of a batch, and the records of those without a result."""
        pace = TimeSlice()
        room = VectorBudget(self._request_bytes)
        outcomes: list[LearnOutcome | None] = []
        records = []
        for at, instance in enumerate(instances):
            try:
                outcomes.append(await self._learning.earlier_instance_result(model, instance, request.source))
                if outcomes[-1] is None:
                    records.append(await self._learning.record(model, config, instance, new))
                    room.reserve(len(records[-1]))
            except InvalidInstance as error:
                raise error.inside(f"instances[{at}]") from None
            except UnknownPrediction as error:
                raise UnknownPrediction(str(error), f"instances[{at}].prediction") from None
            if pace.due():
                await pace.pause()
        return outcomes, records

    async def _await_learning(self, learning: Coroutine[Any, Any, list[LearnOutcome]]) -> list[LearnOutcome]:
        """Await learning; raise OutcomeUnknown when the service stops meanwhile."""
        try:
            return await learning
        except asyncio.CancelledError:
            raise OutcomeUnknown("the service stopped before the event was applied.") from None


def _refuse_batch(learned: list[LearnOutcome]) -> None:
    """Raise the refusal of a batch whose key turned out to belong to another body when it was applied."""
    refused = next((one.refused for one in learned if one.refused is not None), None)
    if refused is None:
        return
    raise refused
