"""``POST /classify``: rank the classes for an instance, a batch or a stream of instances.

The live model is read between two turns of the event loop, so an answer and the offset that it names belong
together. Answers come from memory. Three things wait: ``remember``, a ``min_offset`` that is not applied yet, and
a version that is not loaded. Versions rank in threads (``replica/ranking_pool.py``). A request that names no
version gets the one that is active at the answer's offset.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Coroutine
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

from abound.api.answer_json import AnswerEncoder, add_names
from abound.api.decoding import (
    ABSENT,
    LONG_TEXT,
    LineWarnings,
    add_warning,
    decode,
    decode_batch,
    is_long,
    max_work_of,
    sole_features,
    vector_immediately,
    vector_of,
    with_warning,
)
from abound.api.dependencies import trusted_model
from abound.api.learn import VectorBudget
from abound.api.ndjson import AnswerLines, NdjsonLine, RequestLines
from abound.api.ndjson_rates import admit_lines
from abound.api.problems import problem_of
from abound.api.request_body import Headers
from abound.api.schemas.learn_classify import (
    ClassifyAnswer,
    ClassifyRequest,
    Instance,
    ScoredLabel,
    classify_decoder,
    encoder,
    instance_decoder,
)
from abound.processes.tracing import Tracing
from abound.replica.predictions import RememberParams, remember, vector_fingerprint
from abound.replica.rankers import Rankers
from abound.replica.replica import Replica
from abound.security.key_ring import Grant
from abound.security.rate_limits import RateLimiter
from abound.settings import Settings
from abound.state.replicated_model import ReplicatedModel
from abound.tasks import TimeSlice
from abound.versions.ranking import Labels, RankingRequest
from abound.versions.versions import LoadedVersion
from abound_core.config import ModelConfig
from abound_core.errors import AboundError, InvalidInstance, StoreUnavailable, TooLarge
from abound_core.instances.json_fallback import LONG_JSON
from abound_core.instances.negative_numbers import warning_of
from abound_core.model.active_version import LIVE
from abound_core.types import Offset

MAX_REMEMBERED_BYTES = 2**21  # approximate, of vectors that one NDJSON request collects before it stores them
MAX_ANSWER_BYTES = 64 * 2**20  # of a batch answer: many labels of many instances are refused before memory runs out


DEFAULT_OPTIONS = ClassifyRequest()  # the options of a request that has only an instance


class DeferredLine(NamedTuple):
    """A line to be ranked in a thread, its request, the configuration that made its vector, and a warning."""

    asked: RankingRequest
    request: ClassifyRequest
    config: ModelConfig
    warning: str | None = None


class BatchResults:
    def __init__(self) -> None:
        self._answers: list[bytes] = []
        self._waiting: list[Coroutine[Any, Any, bytes]] = []
        self._size = 0

    def add(self, answer: bytes, remembering: Coroutine[Any, Any, bytes] | None) -> None:
        """Add an answer, and the coroutine that gives its final form; raise TooLarge at the size limit."""
        if remembering is not None:
            self._waiting.append(remembering)
        self._answers.append(answer)
        self._size += len(answer)
        if self._size > MAX_ANSWER_BYTES:
            self.abandon()
            raise TooLarge("the answer would be too large; request fewer labels (k), or send NDJSON")

    def abandon(self) -> None:
        """Close, without running them, the coroutines that would store instances to be remembered."""
        for coroutine in self._waiting:
            coroutine.close()

    async def encode(self, offset: str, version: str) -> bytes:
        results = await asyncio.gather(*self._waiting) if self._waiting else self._answers
        return b'{"results":[%b],"offset":"%b","version":"%b"}' % (
            b",".join(results),
            offset.encode(),
            version.encode(),
        )


class Classify:
    def __init__(
        self,
        replica: Replica,
        settings: Settings,
        remember_params: RememberParams,
        rates: RateLimiter,
        rankers: Rankers,
        tracing: Tracing | None = None,
    ) -> None:
        self._replica = replica
        self._rankers = rankers
        self._rates = rates
        self._remember_params = remember_params
        self._request_bytes = replica.params.log.request_bytes
        self._max_batch = settings.max_batch
        self._min_offset_seconds = settings.min_offset_seconds
        self._answers = AnswerEncoder()
        self._tracing = tracing

    def answer_immediately(self, name: str, body: bytes, grant: Grant | None) -> bytes | None:
        if len(body) > LONG_JSON:
            return None
        model = trusted_model(self._replica, name)
        features = sole_features(body)
        if features is not None and model.live.serving.is_live and not self._rates.limits(grant):
            vector = model.live.vectorizer.vectorize_usual(features)
            if vector is not None:
                answer = self._rank(model, vector, DEFAULT_OPTIONS, model.live.config)[0]
                model.n_classified += 1
                return _with_warning(model, answer, features) if b"-" in features else answer
        request = decode(classify_decoder, body)
        version = model.live.serving.version if request.version is None else request.version
        usual = version == LIVE and request.min_offset is None and request.instances is None
        if not usual or request.remember or self._rates.limits(grant):
            return None
        if 2 * len(body) > LONG_TEXT and is_long(model.live, request):
            return None
        vector = vector_immediately(model.live, request)
        answer = self._rank(model, vector, request, model.live.config)[0]
        model.n_classified += 1
        return _with_warning(model, answer, bytes(request.features))

    async def answer(self, name: str, body: bytes, headers: Headers, grant: Grant | None) -> tuple[int, bytes]:
        model = trusted_model(self._replica, name)
        request = await decode_batch(
            classify_decoder,
            body,
            "instances",
            instance_decoder,
            self._max_batch,
            max_work=max_work_of(model.live.limits),
        )
        if self._rates.limits(grant):
            await self._rates.admit(grant, 1 if request.instances is None else len(request.instances))
        if request.min_offset is not None:
            await self._wait(name, model, request.min_offset)
        if request.instances is not None:
            with self._rank_span(len(request.instances)):
                batch = await self._batch(model, request, request.instances)
            model.n_classified += len(request.instances)
            return 200, await with_warning(model.live, batch, (one.features for one in request.instances))
        way = await self._choose(model, request)
        config, vector = model.live.config, await vector_of(model.live, request)
        with self._rank_span(1):
            if way is None:
                answer, remembering = self._rank(model, vector, request, config)
            else:
                later = DeferredLine(ranking_request(model, way, vector, request), request, config)
                [labels] = await self._rankers.rank([later.asked])
                answer, remembering = self._deferred_answer(model, later, labels)
        model.n_classified += 1
        answer = answer if remembering is None else await remembering
        return 200, await with_warning(model.live, answer, [request.features])

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
        pace, warnings = TimeSlice(), LineWarnings()
        async for group in lines.groups():
            if self._rates.limits(grant):
                await admit_lines(self._rates, grant, group, learns=False)
            waiting: list[bytes | asyncio.Task[bytes] | DeferredLine] = []
            size = n_refused = 0
            for line in group:
                try:
                    answer, remembering, vector_bytes = await self._line(name, model, line, warnings)
                except AboundError as error:
                    answer, remembering = encoder.encode(problem_of(error, request_id, line.number)), None
                    n_refused += 1
                if remembering is not None or isinstance(answer, DeferredLine):
                    waiting.append(answer if remembering is None else asyncio.create_task(remembering))
                    size += vector_bytes
                    if size >= MAX_REMEMBERED_BYTES:
                        await self._put(model, waiting, answers)
                        waiting, size = [], 0
                elif waiting:
                    waiting.append(answer)
                else:
                    answers.put(answer)
                if pace.due():
                    await answers.wait_for_client()
                    await pace.pause()
            await self._put(model, waiting, answers)
            model.n_classified += len(group) - n_refused
            await answers.wait_for_client()

    async def _line(
        self, name: str, model: ReplicatedModel, line: NdjsonLine, warnings: LineWarnings
    ) -> tuple[bytes | DeferredLine, Coroutine[Any, Any, bytes] | None, int]:
        """Return the answer to a line, the coroutine that gives its final form, and the bytes of its vector."""
        if line.error is not None:
            raise line.error
        request = await decode_batch(classify_decoder, line.body, max_work=max_work_of(model.live.limits))
        if request.instances is not None:
            raise InvalidInstance("instances: a line has one instance; send each on a line of its own", "instances")
        if request.min_offset is not None:
            await self._wait(name, model, request.min_offset)
        way = await self._choose(model, request)
        config, vector = model.live.config, await vector_of(model.live, request)
        warning = await warnings.of(model.live, request.features)
        answer: bytes | DeferredLine
        if way is None:
            answer, remembering = self._rank(model, vector, request, config, warning)
        else:
            asked = ranking_request(model, way, vector, request)
            answer, remembering = DeferredLine(asked, request, config, warning), None
        warnings.is_given |= warning is not None
        return answer, remembering, len(vector)

    async def _put(
        self, model: ReplicatedModel, waiting: list[bytes | asyncio.Task[bytes] | DeferredLine], answers: AnswerLines
    ) -> None:
        """Put answers in order, after a thread has ranked all deferred lines together."""
        places = [at for at, kept in enumerate(waiting) if isinstance(kept, DeferredLine)]
        later = [kept for kept in waiting if isinstance(kept, DeferredLine)]
        if later:
            ranked = await self._rankers.rank([one.asked for one in later], patient=True)
            for at, one, labels in zip(places, later, ranked, strict=True):
                answer, remembering = self._deferred_answer(model, one, labels)
                waiting[at] = answer if remembering is None else asyncio.create_task(remembering)
        for kept in waiting:
            if not isinstance(kept, DeferredLine):
                answers.put(kept if isinstance(kept, bytes) else await kept)

    def _rank_span(self, n: int) -> AbstractContextManager[object]:
        return nullcontext() if self._tracing is None else self._tracing.span("rank", **{"abound.instances": n})

    async def _choose(self, model: ReplicatedModel, request: ClassifyRequest) -> LoadedVersion | None:
        """Return the version to rank by; None: the index."""
        return await self._rankers.choose(model, request.version, request.explain, request.min_probability)

    async def _wait(self, name: str, model: ReplicatedModel, min_offset: str) -> None:
        try:
            offset = Offset.parse(min_offset)
        except ValueError as error:
            raise InvalidInstance(f"min_offset is {error}", "min_offset") from None
        if offset > model.offset:
            await self._replica.wait_for(name, offset, self._min_offset_seconds)

    async def _batch(self, model: ReplicatedModel, request: ClassifyRequest, instances: list[Instance]) -> bytes:
        check_batch(request, len(instances), self._max_batch)
        pace = TimeSlice()
        room = VectorBudget(self._request_bytes)
        vectors = []
        for at, instance in enumerate(instances):
            config = model.live.config
            try:
                vector = await vector_of(model.live, instance)
            except InvalidInstance as error:
                raise error.inside(f"instances[{at}]") from None
            room.reserve(len(vector))
            vectors.append((vector, config))
            if pace.due():
                await pace.pause()
        while True:
            serving = model.live.serving
            way = await self._choose(model, request)
            results = BatchResults()
            asked = []
            for vector, config in vectors:
                if way is None:
                    results.add(*self._rank(model, vector, request, config))
                else:
                    asked.append(ranking_request(model, way, vector, request))
                if pace.due():
                    await pace.pause()
            if self._rankers.is_current(model, request.version, serving):
                break
            results.abandon()  # another version has become active meanwhile: rank again with that one
        offset = self._answers.offset_text(model.offset)
        if way is not None:
            ranked = await self._rankers.rank(asked)
            for one, labels, (_, config) in zip(asked, ranked, vectors, strict=True):
                results.add(*self._deferred_answer(model, DeferredLine(one, request, config), labels))
                if pace.due():
                    await pace.pause()
        return await results.encode(offset, LIVE if way is None else way.card.id)

    def _rank(
        self,
        model: ReplicatedModel,
        vector: bytes,
        request: ClassifyRequest,
        config: ModelConfig,
        warning: str | None = None,
    ) -> tuple[bytes, Coroutine[Any, Any, bytes] | None]:
        """Return the answer, and the coroutine that stores the instance if requested; ``config`` made the vector.

        Synchronous, so that labels and offset belong to one state.
        """
        live = model.live
        filters = (request.k, request.include, request.exclude, request.threshold)
        if live.calibration.on or request.min_probability is not None:
            ranking = live.rank_estimated(vector, *filters, request.min_probability, request.zero_shot)
        else:
            ranking = live.rank(vector, *filters, request.zero_shot)
        if not request.explain and not request.remember and not request.names and warning is None:
            return self._answers.plain(live, ranking, model.offset), None
        answer = self._answers.explained(live, vector, ranking, model.offset, request.explain)
        answer.warning = warning
        if request.names:
            add_names(live, answer.labels)
        return encoder.encode(answer), self._remember(model, vector, answer, config) if request.remember else None

    def _deferred_answer(
        self, model: ReplicatedModel, later: DeferredLine, labels: Labels
    ) -> tuple[bytes, Coroutine[Any, Any, bytes] | None]:
        asked = later.asked
        scored = [ScoredLabel(label, score) for label, score in labels]
        answer = ClassifyAnswer(scored, str(asked.offset), asked.loaded.card.id, warning=later.warning)
        if later.request.names:
            add_names(model.live, answer.labels)
        remembering = self._remember(model, asked.vector, answer, later.config) if later.request.remember else None
        return encoder.encode(answer), remembering

    async def _remember(
        self, model: ReplicatedModel, vector: bytes, answer: ClassifyAnswer, config: ModelConfig
    ) -> bytes:
        try:
            answer.id = await remember(
                self._replica.store, model.keys, vector, self._remember_params, vector_fingerprint(config)
            )
        except StoreUnavailable:
            answer.remembered = False
        return encoder.encode(answer)


def _with_warning(model: ReplicatedModel, answer: bytes, features: bytes) -> bytes:
    return add_warning(answer, warning_of(features) if model.live.config.negative == "ignore" else None)


def ranking_request(
    model: ReplicatedModel, loaded: LoadedVersion, vector: bytes, request: ClassifyRequest
) -> RankingRequest:
    exclude: Collection[str] | None = request.exclude
    if not request.zero_shot:
        unlearned = model.live.unlearned()
        exclude = unlearned.union(exclude) if exclude else unlearned
    return RankingRequest(loaded, vector, request.k, request.include, exclude, request.threshold, model.offset)


def check_batch(request: Instance, n: int, limit: int) -> None:
    own = {"text": request.text is not None, "vector": request.vector is not None}
    for field, given in (own | {"features": bytes(request.features) not in ABSENT}).items():
        if given:
            raise InvalidInstance(f"{field}: a batch has none; move it into instances", field)
    if n > limit:
        raise InvalidInstance(f"instances: a batch has at most {limit}, not {n}", "instances")
