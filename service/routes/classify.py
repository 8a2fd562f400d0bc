"""``POST /classify``: rank the classes for an instance, a batch or a stream of them.

Everything here reads the live model between two turns of the event loop, so an answer and the offset it names belong
together. Answers come from memory; only ``remember`` and a ``min_offset`` that is still to come ask the store.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from core.config import ModelConfig
from core.errors import AboundError, InvalidInstance, StoreUnavailable, TooLarge, UnknownVersion
from core.types import Offset
from service.answers import LIVE, Answers
from service.dependencies import trusted_model
from service.errors import problem_of
from service.exchange import Headers
from service.intake import Room
from service.keyring import Grant
from service.model_replica import ModelReplica
from service.ndjson import AnswerLines, Line, RequestLines
from service.pace import Pace
from service.rates import Rates
from service.reading import ABSENT, decode, vector_of
from service.remembered import RememberParams, reading_of, remember
from service.replica import Replica
from service.schemas import ClassifyAnswer, ClassifyRequest, Instance, classify_decoder, encoder
from service.settings import Settings

REMEMBERED_BYTES = 2**21
"""Of vectors of one NDJSON request that wait at once for being remembered, about."""

MAX_ANSWER_BYTES = 64 * 2**20
"""Of a batch: asking for many labels of many instances is refused past this, before memory is short."""


class Classify:
    """The work of the route."""

    def __init__(self, replica: Replica, settings: Settings, remember_params: RememberParams, rates: Rates) -> None:
        self._replica = replica
        self._rates = rates
        self._remember_params = remember_params
        self._request_bytes = replica.params.log.request_bytes
        self._max_batch = settings.max_batch
        self._min_offset_seconds = settings.min_offset_seconds
        self._answers = Answers()

    def at_once(self, name: str, body: bytes, grant: Grant | None) -> bytes | None:
        """The answer for one instance that nothing has to be asked of the store for; else None."""
        model = trusted_model(self._replica, name)
        request = decode(classify_decoder, body)
        usual = request.version is None and request.min_offset is None and request.instances is None
        if not usual or request.remember or self._rates.watches(grant):
            return None
        vector = vector_of(model.live, request.features, request.text)
        return self._rank(model, vector, request, model.live.config)[0]

    async def answer(self, name: str, body: bytes, headers: Headers, grant: Grant | None) -> tuple[int, bytes]:
        """Status and answer for one instance or a batch."""
        model = trusted_model(self._replica, name)
        request = decode(classify_decoder, body)
        if self._rates.watches(grant):
            await self._rates.admit(grant, 1 if request.instances is None else len(request.instances))
        if request.version is not None or request.min_offset is not None:
            await self._prepare(name, model, request)
        if request.instances is not None:
            return 200, await self._batch(model, request, request.instances)
        vector = vector_of(model.live, request.features, request.text)
        answer, remembering = self._rank(model, vector, request, model.live.config)
        return 200, answer if remembering is None else await remembering

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
        pace = Pace()
        async for group in lines.groups():
            if self._rates.watches(grant):
                await self._rates.admit_lines(grant, group, learns=False)
            waiting: list[bytes | asyncio.Task[bytes]] = []
            size = 0
            for line in group:
                try:
                    answer, remembering, vector_bytes = await self._line(name, model, line)
                except AboundError as error:
                    answer, remembering = encoder.encode(problem_of(error, request_id, line.number)), None
                if remembering is not None:
                    waiting.append(asyncio.create_task(remembering))
                    size += vector_bytes
                    if size >= REMEMBERED_BYTES:
                        for kept in waiting:
                            answers.put(kept if isinstance(kept, bytes) else await kept)
                        waiting, size = [], 0
                elif waiting:
                    waiting.append(answer)
                else:
                    answers.put(answer)
                if pace.due():
                    await answers.room()
                    await pace.rest()
            for kept in waiting:
                answers.put(kept if isinstance(kept, bytes) else await kept)
            await answers.room()

    async def _line(
        self, name: str, model: ModelReplica, line: Line
    ) -> tuple[bytes, Coroutine[Any, Any, bytes] | None, int]:
        """The answer to a line, or what gives it once the instance is remembered, and the bytes of its vector."""
        if line.error is not None:
            raise line.error
        request = decode(classify_decoder, line.body)
        if request.instances is not None:
            raise InvalidInstance("instances: a line is one instance", "instances")
        if request.version is not None or request.min_offset is not None:
            await self._prepare(name, model, request)
        vector = vector_of(model.live, request.features, request.text)
        return *self._rank(model, vector, request, model.live.config), len(vector)

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
        room = Room(self._request_bytes)
        vectors = []
        for at, instance in enumerate(instances):
            try:
                vector = vector_of(model.live, instance.features, instance.text)
            except InvalidInstance as error:
                raise error.inside(f"instances[{at}]") from None
            room.take(len(vector))
            vectors.append((vector, model.live.config))
            if pace.due():
                await pace.rest()
        results: list[bytes] = []
        waiting: list[Coroutine[Any, Any, bytes]] = []
        size = 0
        for vector, config in vectors:
            result, remembering = self._rank(model, vector, request, config)
            if remembering is not None:
                waiting.append(remembering)
            size += len(result)
            if size > MAX_ANSWER_BYTES:
                for abandoned in waiting:
                    abandoned.close()
                raise TooLarge("the answer would be too large; ask for fewer labels, or send NDJSON")
            results.append(result)
            if pace.due():
                await pace.rest()
        if waiting:
            results = await asyncio.gather(*waiting)
        offset = self._answers.offset_text(model.offset).encode()
        return b'{"results":[%b],"offset":"%b","version":"live"}' % (b",".join(results), offset)

    def _rank(
        self, model: ModelReplica, vector: bytes, request: ClassifyRequest, config: ModelConfig
    ) -> tuple[bytes, Coroutine[Any, Any, bytes] | None]:
        """Rank one vector by the live index: the answer, and what gives the one to send if it is to be remembered.

        ``config`` made the vector. Synchronous, so that labels and offset are of one state.
        """
        live = model.live
        ranking = live.rank(vector, request.k, request.include, request.exclude, request.threshold)
        if not request.explain and not request.remember:
            return self._answers.plain(live, ranking, model.offset), None
        answer = self._answers.whole(live, vector, ranking, model.offset, request.explain)
        return encoder.encode(answer), self._remember(model, vector, answer, config) if request.remember else None

    async def _remember(self, model: ModelReplica, vector: bytes, answer: ClassifyAnswer, config: ModelConfig) -> bytes:
        try:
            answer.id = await remember(
                self._replica.store, model.keys, vector, self._remember_params, reading_of(config)
            )
        except StoreUnavailable:
            answer.remembered = False
        return encoder.encode(answer)


def check_batch(features: Any, text: str | None, n: int, limit: int) -> None:
    """InvalidInstance when a batch has an instance beside it, or too many in it."""
    if bytes(features) not in ABSENT or text is not None:
        field = "text" if text is not None else "features"
        raise InvalidInstance(f"{field} belongs into the instances of a batch", field)
    if n > limit:
        raise InvalidInstance(f"instances: a batch has at most {limit}, not {n}", "instances")
