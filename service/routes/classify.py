"""``POST /classify``: rank the classes for an instance, a batch or a stream of them.

Everything here reads the live model between two turns of the event loop, so an answer and the offset it names belong
together. Answers come from memory; only ``remember`` and a ``min_offset`` that is still to come ask the store.
"""

from __future__ import annotations

from typing import Any

from msgspec import UNSET, Raw

from core.errors import AboundError, InvalidInstance, StoreUnavailable, TooLarge, UnknownVersion
from core.types import START, Offset
from service.dependencies import model_of
from service.errors import problem_of
from service.exchange import Headers
from service.model_replica import ModelReplica
from service.ndjson import AnswerLines, RequestLines
from service.pace import Pace
from service.reading import ABSENT, decode, vector_of
from service.remembered import RememberParams, remember
from service.replica import Replica
from service.schemas import (
    Because,
    ClassifyAnswer,
    ClassifyBatchAnswer,
    ClassifyRequest,
    Instance,
    ScoredLabel,
    classify_decoder,
    encoder,
)
from service.settings import Settings

LIVE = "live"

MAX_ANSWER_BYTES = 64 * 2**20
"""Of a batch: asking for many labels of many instances is refused past this, before memory is short."""

BYTES_A_LABEL = 40
BYTES_A_REASON = 48


class Classify:
    """The work of the route."""

    def __init__(self, replica: Replica, settings: Settings, remember_params: RememberParams) -> None:
        self._replica = replica
        self._remember_params = remember_params
        self._max_batch = settings.max_batch
        self._min_offset_seconds = settings.min_offset_seconds
        self._offset = START
        self._offset_text = str(START)

    async def answer(self, name: str, body: bytes, headers: Headers) -> tuple[int, bytes]:
        """Status and answer for one instance or a batch."""
        model = model_of(self._replica, name)
        request = decode(classify_decoder, body)
        await self._prepare(name, model, request)
        if request.instances is not None:
            return 200, await self._batch(model, request, request.instances)
        vector = vector_of(model.live, request.features, request.text)
        answer = self._rank(model, vector, request)
        if request.remember:
            await self._remember(model, vector, answer)
        return 200, encoder.encode(answer)

    async def answer_lines(
        self, name: str, headers: Headers, request_id: str, lines: RequestLines, answers: AnswerLines
    ) -> None:
        """An answer a line, each request standing alone."""
        model = model_of(self._replica, name)
        pace = Pace()
        async for group in lines.groups():
            for line in group:
                try:
                    if line.error is not None:
                        raise line.error
                    request = decode(classify_decoder, line.body)
                    if request.instances is not None:
                        raise InvalidInstance("instances: a line is one instance", "instances")
                    await self._prepare(name, model, request)
                    vector = vector_of(model.live, request.features, request.text)
                    answer = self._rank(model, vector, request)
                    if request.remember:
                        await self._remember(model, vector, answer)
                    answers.put(encoder.encode(answer))
                except AboundError as error:
                    answers.put(encoder.encode(problem_of(error, request_id, line.number)))
                if pace.due():
                    await answers.room()
                    await pace.rest()
            await answers.room()

    async def _prepare(self, name: str, model: ModelReplica, request: ClassifyRequest) -> None:
        """Check what is not about the instance, and wait for the offset that is asked for."""
        if request.version is not None and request.version != LIVE:
            raise UnknownVersion(f"the model {name} has no version {request.version[:64]}")
        if request.min_offset is not None:
            try:
                offset = Offset.parse(request.min_offset)
            except ValueError as error:
                raise InvalidInstance(f"min_offset is {error}", "min_offset") from None
            if offset > model.offset:
                await self._replica.wait_for(name, offset, self._min_offset_seconds)

    async def _batch(self, model: ModelReplica, request: ClassifyRequest, instances: list[Instance]) -> bytes:
        check_batch(request.features, request.text, len(instances), self._max_batch)
        pace = Pace()
        vectors = []
        for at, instance in enumerate(instances):
            try:
                vectors.append(vector_of(model.live, instance.features, instance.text))
            except InvalidInstance as error:
                raise error.inside(f"instances[{at}]") from None
            if pace.due():
                await pace.rest()
        results = []
        size = 0
        for vector in vectors:
            answer = self._rank(model, vector, request)
            size += _size(answer)
            if size > MAX_ANSWER_BYTES:
                raise TooLarge("the answer would be too large; ask for fewer labels, or send NDJSON")
            results.append(answer)
            if pace.due():
                await pace.rest()
        if request.remember:
            for vector, answer in zip(vectors, results, strict=True):
                await self._remember(model, vector, answer)
        return encoder.encode(ClassifyBatchAnswer(results, results[-1].offset, LIVE))

    def _rank(self, model: ModelReplica, vector: bytes, request: ClassifyRequest) -> ClassifyAnswer:
        """Rank one vector by the live index; synchronous, so that labels and offset are of one state."""
        live = model.live
        ranking = live.rank(vector, request.k, request.include, request.exclude, request.threshold)
        label = live.label_json
        labels = [
            ScoredLabel(Raw(label(class_id)), score)
            for class_id, score in zip(ranking.class_ids.tolist(), ranking.scores.tolist(), strict=True)
        ]
        if request.explain:
            for scored, reasons in zip(labels, live.explain(vector, ranking), strict=True):
                scored.because = [Because(feature, contribution) for feature, contribution in reasons]
        offset = model.offset
        if offset is not self._offset:
            self._offset, self._offset_text = offset, str(offset)
        return ClassifyAnswer(labels, self._offset_text, LIVE)

    async def _remember(self, model: ModelReplica, vector: bytes, answer: ClassifyAnswer) -> None:
        try:
            answer.id = await remember(self._replica.store, model.keys, vector, self._remember_params)
        except StoreUnavailable:
            answer.remembered = False


def check_batch(features: Any, text: str | None, n: int, limit: int) -> None:
    """InvalidInstance when a batch has an instance beside it, or too many in it."""
    if bytes(features) not in ABSENT or text is not None:
        field = "text" if text is not None else "features"
        raise InvalidInstance(f"{field} belongs into the instances of a batch", field)
    if n > limit:
        raise InvalidInstance(f"instances: a batch has at most {limit}, not {n}", "instances")


def _size(answer: ClassifyAnswer) -> int:
    """About the bytes of an answer."""
    size = BYTES_A_LABEL * (1 + len(answer.labels))
    for scored in answer.labels:
        size += len(bytes(scored.label))
        if scored.because is not UNSET:
            size += sum(BYTES_A_REASON + len(reason.feature) for reason in scored.because)
    return size
