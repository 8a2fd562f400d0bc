"""``POST /classify``: rank the classes for an instance, a batch or a stream of instances.

The live model is read between two turns of the event loop, so an answer and the offset that it names belong
together. Answers come from memory. Three things wait: ``remember``, a ``min_offset`` that is not applied yet, and
a version that is not loaded. Versions rank in threads (``replica/ranking_pool.py``). A request that names no
version gets the one that is active at the answer's offset.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import nullcontext
from typing import Any, NamedTuple

from abound.api.answer_json import AnswerEncoder, add_names, add_paths, decision_of, surest_ancestor
from abound.api.decoding import (
    LONG_TEXT,
    ByteBudget,
    Warnings,
    add_warning,
    check_batch,
    decode,
    decode_batch,
    encode_lines,
    is_long,
    max_work_of,
    sole_features,
    vector_immediately,
    vector_of,
    warning_about,
)
from abound.api.label_search import nearest_hint
from abound.api.ndjson import AnswerLines, NdjsonLine, RequestLines
from abound.api.ndjson_rates import admit_lines
from abound.api.problems import problem_of
from abound.api.request_body import Headers
from abound.api.schemas.learn_classify import (
    ClassifyAnswer,
    ClassifyRequest,
    DecideOptions,
    Instance,
    ScoredLabel,
    classify_decoder,
    encoder,
    instance_decoder,
)
from abound.api.times import MIN_OFFSET_SECONDS
from abound.processes.remote_encoder import RemoteEncoder
from abound.processes.tracing import Tracing
from abound.replica.predictions import RememberParams, remember, vector_fingerprint
from abound.replica.rankers import Rankers
from abound.replica.replica import Replica
from abound.security.key_ring import Grant
from abound.security.rate_limits import RateLimiter
from abound.settings import Settings
from abound.state.replicated_model import ReplicatedModel
from abound.tasks import TimeSlice
from abound.versions.ranking import RankingRequest, named_at
from abound.versions.versions import LoadedVersion
from abound_core.config import ModelConfig
from abound_core.errors import AboundError, InvalidInstance, StoreUnavailable
from abound_core.instances.json_fallback import LONG_JSON
from abound_core.model.active_version import LIVE
from abound_core.model.live_model import LiveModel, filtered
from abound_core.types import Offset

MAX_PENDING_BYTES = 2**21  # approximate, of vectors that one NDJSON request collects before it completes their answers
MAX_ANSWER_BYTES = 64 * 2**20  # of a batch answer: many labels of many instances are refused before memory runs out
LARGE_ANSWER = "the answer would be too large; request fewer labels (k), or send NDJSON"

SUMMED = 100  # best labels whose probabilities count for an ancestor
RARE = 50  # best labels, or k if that is more, that `rare` orders

DEFAULT_OPTIONS = ClassifyRequest()  # the options of a request that has only an instance


class PendingAnswer(NamedTuple):
    """An answer that has to wait: for a thread that ranks, or to be stored. ``config`` made the vector."""

    request: ClassifyRequest
    instance: Instance
    vector: bytes
    config: ModelConfig
    warning: str | None
    ranked: ClassifyAnswer | RankingRequest  # by the index, or to be ranked by a version


class Classify:
    def __init__(
        self,
        replica: Replica,
        settings: Settings,
        remember_params: RememberParams,
        rates: RateLimiter,
        rankers: Rankers,
        remote: RemoteEncoder,
        tracing: Tracing | None = None,
    ) -> None:
        self._replica = replica
        self._rankers = rankers
        self._remote = remote
        self._rates = rates
        self._remember_params = remember_params
        self._request_bytes = replica.params.log.request_bytes
        self._max_batch = settings.max_batch
        self._answers = AnswerEncoder()
        self._tracing = tracing

    def answer(
        self, model: ReplicatedModel, body: bytes, headers: Headers, grant: Grant | None
    ) -> bytes | Coroutine[Any, Any, tuple[int, bytes]]:
        if len(body) > LONG_JSON or self._tracing is not None or self._rates.limits(grant):
            return self._decode_and_answer(model, body, grant)
        live = model.live
        features = sole_features(body)
        vector = live.vectorizer.vectorize_usual(features) if features is not None and live.serving.is_live else None
        if features is not None and vector is not None:
            request = DEFAULT_OPTIONS
            warning = warning_about(live, features) if b"-" in features else None
        else:
            request = decode(classify_decoder, body)
            version = live.serving.version if request.version is None else request.version
            usual = (
                version == LIVE and request.min_offset is None and request.instances is None and request.known is None
            )
            usual = usual and not (request.decide or request.rare or live.vectorizer.by_url)
            is_slow = request.remember or (2 * len(body) > LONG_TEXT and is_long(live, request))
            if not usual or is_slow or unknown_in(live, request):
                return self._answer_request(model, request)
            warnings = Warnings()
            vector = vector_immediately(live, request, warnings)
            warning = warnings.first
        answer = self._rank(model, None, request, vector, request, live.config, warning)
        assert isinstance(answer, bytes)  # by the index, and not remembered
        model.n_classified += 1
        return answer

    async def answer_lines(
        self,
        model: ReplicatedModel,
        headers: Headers,
        request_id: str,
        lines: RequestLines,
        answers: AnswerLines,
        grant: Grant | None,
    ) -> None:
        pace, warnings = TimeSlice(), Warnings()
        async for group in lines.groups():
            if self._rates.limits(grant):
                await admit_lines(self._rates, grant, group, learns=False)
            await encode_lines(self._remote, model.live, group, classify_decoder)
            waiting: list[bytes | PendingAnswer] = []  # answers from the first one on that has to wait
            size = n_refused = 0
            for line in group:
                answer: bytes | PendingAnswer
                try:
                    answer = await self._line(model, line, warnings)
                except AboundError as error:
                    answer = encoder.encode(problem_of(error, request_id, line.number))
                    n_refused += 1
                if isinstance(answer, PendingAnswer):
                    waiting.append(answer)
                    size += len(answer.vector)
                    if size >= MAX_PENDING_BYTES:
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

    async def _put(self, model: ReplicatedModel, waiting: list[bytes | PendingAnswer], answers: AnswerLines) -> None:
        for answer in await self._complete(model, waiting, patient=True):
            answers.put(answer)

    async def _decode_and_answer(self, model: ReplicatedModel, body: bytes, grant: Grant | None) -> tuple[int, bytes]:
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
        return await self._answer_request(model, request)

    async def _answer_request(self, model: ReplicatedModel, request: ClassifyRequest) -> tuple[int, bytes]:
        await self._wait(model, request)
        instances = request.instances
        n = 1 if instances is None else len(instances)
        with nullcontext() if self._tracing is None else self._tracing.span("rank", **{"abound.instances": n}):
            if instances is not None:
                answer = await self._batch(model, request, instances)
            else:
                await self._remote.encode(model.live.config.analyzer, [request])
                [answer] = await self._complete(model, [await self._rank_one(model, request, Warnings())])
        model.n_classified += n
        return 200, answer

    async def _warning(self, model: ReplicatedModel, request: ClassifyRequest) -> str | None:
        """Return a warning about named labels that neither model nor version knows."""
        unknown = unknown_in(model.live, request)
        if unknown and (way := await self._choose(model, request)) is not None:
            known = set(way.fitted.labels)
            unknown = [(field, label) for field, label in unknown if label not in known]
        if not unknown:
            return None
        field, label = unknown[0]
        is_new = model.live.find(label) < 0
        near = await nearest_hint(model.live, label) if is_new else ""
        more = f", and {len(unknown) - 1} others" if len(unknown) > 1 else ""
        return f"{field}: the label {label[:100]!r} is {'not known' if is_new else 'retired'}{more}{near}"

    async def _line(self, model: ReplicatedModel, line: NdjsonLine, warnings: Warnings) -> bytes | PendingAnswer:
        if line.error is not None:
            raise line.error
        request = line.request
        if request is None:
            request = await decode_batch(classify_decoder, line.body, max_work=max_work_of(model.live.limits))
        if request.instances is not None:
            raise InvalidInstance("instances: a line has one instance; send each on a line of its own", "instances")
        await self._wait(model, request)
        return await self._rank_one(model, request, warnings)

    async def _batch(self, model: ReplicatedModel, request: ClassifyRequest, instances: list[Instance]) -> bytes:
        check_batch(request, len(instances), self._max_batch)
        await self._remote.encode(model.live.config.analyzer, instances)
        pace, room, warnings = TimeSlice(), ByteBudget(self._request_bytes), Warnings()
        warnings.first = await self._warning(model, request)
        vectors = []
        for at, instance in enumerate(instances):
            config = model.live.config
            try:
                vector = await vector_of(model.live, instance, warnings)
            except InvalidInstance as error:
                raise error.inside(f"instances[{at}]") from None
            room.reserve(len(vector))
            vectors.append((instance, vector, config))
            if pace.due():
                await pace.pause()
        while True:
            serving = model.live.serving
            way = await self._choose(model, request)
            answers, room = [], ByteBudget(MAX_ANSWER_BYTES, LARGE_ANSWER)
            for instance, vector, config in vectors:
                answers.append(self._rank(model, way, instance, vector, request, config))
                if isinstance(answers[-1], bytes):
                    room.reserve(len(answers[-1]))
                if pace.due():
                    await pace.pause()
            if self._rankers.is_current(model, request.version, serving):
                break  # else another version has become active meanwhile: rank again with that one
        offset = self._answers.offset_text(model.offset)
        results = await self._complete(model, answers, room=room)
        answer = b'{"results":[%b],"offset":"%b","version":"%b"}' % (
            b",".join(results),
            offset.encode(),
            (LIVE if way is None else way.card.id).encode(),
        )
        return add_warning(answer, warnings.first)

    async def _rank_one(
        self, model: ReplicatedModel, request: ClassifyRequest, warnings: Warnings
    ) -> bytes | PendingAnswer:
        config, before = model.live.config, warnings.first
        warnings.first = before or await self._warning(model, request)
        vector = await vector_of(model.live, request, warnings)
        warning = None if before else warnings.first
        try:
            return self._rank(model, await self._choose(model, request), request, vector, request, config, warning)
        except AboundError:
            warnings.first = before  # its answer has no warning: the next one has
            raise

    async def _choose(self, model: ReplicatedModel, request: ClassifyRequest) -> LoadedVersion | None:
        """Return the version to rank by; None: the index."""
        way = await self._rankers.choose(model, request.version, request.explain, request.min_probability)
        if request.decide:
            check_decide(model.live, request.decide, way is None)
        if request.known is not None:
            check_known(model.live, request, way is None)
        if request.rare:
            check_rare(model.live, request, way is None)
        return way

    async def _wait(self, model: ReplicatedModel, request: ClassifyRequest) -> None:
        if request.min_offset is None:
            return
        try:
            offset = Offset.parse(request.min_offset)
        except ValueError as error:
            raise InvalidInstance(f"min_offset is {error}", "min_offset") from None
        if offset > model.offset:
            await self._replica.wait_for(model.name, offset, MIN_OFFSET_SECONDS)

    def _rank(
        self,
        model: ReplicatedModel,
        way: LoadedVersion | None,
        instance: Instance,
        vector: bytes,
        request: ClassifyRequest,
        config: ModelConfig,
        warning: str | None = None,
    ) -> bytes | PendingAnswer:
        """Rank by a version, or by the index if ``way`` is None. Return the answer, or one that has to wait.

        Synchronous, so that labels and offset belong to one state.
        """
        if way is not None:
            return PendingAnswer(
                request, instance, vector, config, warning, ranking_request(model, way, vector, request)
            )
        live = model.live
        k, least, ancestor, decided = request.k, request.min_probability, None, None
        most = max(k, SUMMED if request.levels else k, RARE if request.rare else k)
        chosen = (most, request.include, request.exclude)
        if request.known is not None:
            own = (*chosen, request.threshold, request.zero_shot)
            ranking = live.rank_known(vector, request.known, *own)
        elif live.decisions.on and request.decide is not False:
            agreement = request.decide.agreement if isinstance(request.decide, DecideOptions) else None
            decided = live.decide(vector, *chosen, zero_shot=request.zero_shot, agreement=agreement)
            ranking = decided.ranking
        elif live.calibration.on or least is not None:
            ranking = live.rank_estimated(
                vector, *chosen, request.threshold, None if request.levels else least, request.zero_shot
            )
        else:
            ranking = live.rank(vector, *chosen, request.threshold, request.zero_shot)
        if request.rare:
            ranking = live.rarer_first(ranking)
        if request.levels or request.rare or decided is not None:
            every, ranking = ranking, filtered(ranking.first(k), request.threshold, least)
            if request.levels and least is not None and not len(ranking.class_ids):
                ancestor = surest_ancestor(live, every, least)
        if decided is not None and decided.decision == "answer":
            ranking = decided.applied
        if not (request.explain or request.remember or request.names or request.levels):
            plain = self._answers.plain(live, ranking, model.offset)
            if decided is not None:
                plain = b"%b,%b" % (plain[:-1], encoder.encode(decision_of(live, decided))[1:])
            return plain if warning is None else add_warning(plain, warning)
        answer = self._answers.explained(live, vector, ranking, model.offset, request)
        answer.ancestor = ancestor
        for field, value in (decision_of(live, decided) if decided is not None else {}).items():
            setattr(answer, field, value)
        _add_facts(live, request, answer.labels)
        if request.remember:
            return PendingAnswer(request, instance, vector, config, warning, answer)
        answer.warning = warning
        return encoder.encode(answer)

    async def _complete(
        self,
        model: ReplicatedModel,
        answers: list[bytes | PendingAnswer],
        patient: bool = False,
        room: ByteBudget | None = None,
    ) -> list[bytes]:
        """Return the answers in order, after a thread has ranked all that wait for one together."""
        pending = [(at, answer) for at, answer in enumerate(answers) if isinstance(answer, PendingAnswer)]
        asked = [one.ranked for _, one in pending if isinstance(one.ranked, RankingRequest)]
        ranked = iter(await self._rankers.rank(asked, patient) if asked else ())
        complete = [answer if isinstance(answer, bytes) else b"" for answer in answers]
        to_remember: list[tuple[int, PendingAnswer, ClassifyAnswer]] = []
        pace = TimeSlice()
        for at, one in pending:
            answer = one.ranked
            if isinstance(answer, RankingRequest):
                scored = [ScoredLabel(label, score) for label, score in next(ranked)]
                _add_facts(model.live, one.request, scored)
                answer = ClassifyAnswer(scored, str(answer.offset), answer.loaded.card.id)
            answer.warning = one.warning
            complete[at] = encoder.encode(answer)
            if room is not None:
                room.reserve(len(complete[at]))
            if one.request.remember:
                to_remember.append((at, one, answer))
            if pace.due():
                await pace.pause()
        remembered = await asyncio.gather(*[self._remember(model, one, answer) for _, one, answer in to_remember])
        for (at, _, _), stored in zip(to_remember, remembered, strict=True):
            complete[at] = stored
        return complete

    async def _remember(self, model: ReplicatedModel, one: PendingAnswer, answer: ClassifyAnswer) -> bytes:
        reading = vector_fingerprint(one.config)
        text = b"" if one.instance.text is None else encoder.encode(one.instance.text)
        try:
            answer.id = await remember(
                self._replica.store, model.keys, one.vector, self._remember_params, reading, text
            )
        except StoreUnavailable:
            answer.remembered = False
        return encoder.encode(answer)


def check_decide(live: LiveModel, options: DecideOptions | bool, by_index: bool) -> None:
    """Raise InvalidInstance if a request asks for a decision that the model does not make."""
    if live.config.decide is None or not by_index:
        way = "configure it with decide" if by_index else "ask for the version live"
        raise InvalidInstance(f"decide needs the index of a model that decides; {way}", "decide")
    least = live.config.decide.agreement
    if isinstance(options, DecideOptions) and options.agreement is not None and options.agreement < least:
        raise InvalidInstance(
            f"decide.agreement must be at least the model's, {least:g}; configure the model with less",
            "decide.agreement",
        )


def check_known(live: LiveModel, request: ClassifyRequest, by_index: bool) -> None:
    """Raise InvalidInstance if a request gives known labels that have no effect, or fields that ``known`` excludes."""
    if not (live.config.known and by_index):
        way = "create a model with update: sls" if by_index else "ask for the version live"
        raise InvalidInstance(f"known needs the index of a model that learns which labels go together; {way}", "known")
    for field, given in (("decide", request.decide), ("min_probability", request.min_probability is not None)):
        if given:
            raise InvalidInstance(f"{field} cannot be used with known: such an answer has no probabilities", field)


def check_rare(live: LiveModel, request: ClassifyRequest, by_index: bool) -> None:
    """Raise InvalidInstance if a request wants rare labels first where another order is given."""
    if not by_index:
        raise InvalidInstance("rare needs the index; ask for the version live", "rare")
    if live.decisions.on and request.decide is not False:
        raise InvalidInstance(
            "rare cannot be used with a decision, which is about the best label; add decide: false", "rare"
        )


def unknown_in(live: LiveModel, request: ClassifyRequest) -> list[tuple[str, str]]:
    """Return the labels of ``known``, ``include`` and ``exclude`` that are not known or retired, with the field."""
    if request.include is None and request.exclude is None and request.known is None:
        return []
    chosen = ("known", request.known), ("include", request.include), ("exclude", request.exclude)
    return [
        (field, label)
        for field, labels in chosen
        for label in live.vectorizer.labels(labels)
        if live.find(label) < 0 or live.present(label) is None
    ]


def _add_facts(live: LiveModel, request: ClassifyRequest, labels: list[ScoredLabel]) -> None:
    if request.names:
        add_names(live, labels)
    if request.levels:
        add_paths(live, labels)


def ranking_request(
    model: ReplicatedModel, loaded: LoadedVersion, vector: bytes, request: ClassifyRequest
) -> RankingRequest:
    # Labels of a version that was fitted for a model are in the same form as the model's.
    labels, below = model.live.vectorizer.labels, model.live.with_those_below
    include = None if request.include is None else below(labels(request.include))
    exclude = below(labels(request.exclude))
    if not request.zero_shot:
        unlearned = model.live.unlearned()
        exclude = unlearned.union(exclude) if exclude else unlearned
    renamed = model.live.renamed(named_at(loaded))
    return RankingRequest(loaded, vector, request.k, include, exclude, request.threshold, model.offset, renamed)
