"""NDJSON requests to ``/learn``: each line is a draft of its own and succeeds or fails independently.

Drafts are appended in groups, in order; several groups of a request can be in progress.
"""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from abound.api.decoding import LineWarnings, decode_batch, max_work_of
from abound.api.learn import (
    LearnService,
    RequestAdditions,
    VectorBudget,
    answer_of,
    draft_of,
)
from abound.api.ndjson import AnswerLines, NdjsonLine, RequestLines
from abound.api.ndjson_rates import admit_lines
from abound.api.problems import problem_of
from abound.api.schemas.learn_classify import Wait, encoder, learn_decoder
from abound.log.append_group import LearnDraft, LearnOutcome
from abound.security.key_ring import Grant
from abound.security.rate_limits import RateLimiter
from abound.state.replicated_model import ReplicatedModel
from abound.tasks import TimeSlice, run_together
from abound_core.config import ModelConfig
from abound_core.errors import AboundError, InvalidInstance

GROUP_LINES = 256  # lines that are appended together
GROUP_BYTES = 2**21  # of records, at which a group is full
GROUPS_AT_ONCE = 4  # groups of one request that may wait for the log


_Line = tuple[int, AboundError | LearnOutcome | None, str | None]


class PendingGroup(NamedTuple):
    """A group of lines being appended; ``learned`` gives the results of lines without an error or earlier result."""

    lines: list[_Line]
    learned: asyncio.Task[list[LearnOutcome]] | None


class LearnStream:
    """Learns the lines of requests and answers them. A line takes at most ``request_bytes`` in the log."""

    def __init__(self, learning: LearnService, rates: RateLimiter, request_bytes: int) -> None:
        self._learning = learning
        self._rates = rates
        self._request_bytes = request_bytes
        self._pending: set[asyncio.Task[list[LearnOutcome]]] = set()

    async def answer(
        self,
        model: ReplicatedModel,
        request_id: str,
        lines: RequestLines,
        answers: AnswerLines,
        grant: Grant | None,
    ) -> None:
        groups: asyncio.Queue[PendingGroup | None] = asyncio.Queue(GROUPS_AT_ONCE)
        with self._learning.track_new_classes(model) as new:
            await run_together(
                self._read_groups(model, lines, groups, grant, new), _answer_groups(groups, answers, request_id)
            )

    async def _read_groups(
        self,
        model: ReplicatedModel,
        lines: RequestLines,
        groups: asyncio.Queue[PendingGroup | None],
        grant: Grant | None,
        new: RequestAdditions,
    ) -> None:
        pace, warnings = TimeSlice(), LineWarnings()
        group = _Group()
        async for some in lines.groups():
            if self._rates.limits(grant):
                await admit_lines(self._rates, grant, some, learns=True)
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
        learned = asyncio.create_task(self._learning.append(model, group.config, group.drafts, group.wait))
        self._pending.add(learned)
        learned.add_done_callback(self._forget)
        return PendingGroup(group.lines, learned)

    def _forget(self, learned: asyncio.Task[list[LearnOutcome]]) -> None:
        """Forget a group; retrieve its error, which no task awaits when the client has disconnected."""
        self._pending.discard(learned)
        if not learned.cancelled():
            learned.exception()

    async def _line(
        self,
        model: ReplicatedModel,
        config: ModelConfig,
        line: NdjsonLine,
        new: RequestAdditions,
        warnings: LineWarnings,
    ) -> tuple[Wait, LearnDraft | LearnOutcome, str | None]:
        """Return what the answer to a line waits for, its draft or its earlier result, and its warning."""
        if line.error is not None:
            raise line.error
        request = await decode_batch(learn_decoder, line.body, max_work=max_work_of(model.live.limits))
        if request.instances is not None:
            raise InvalidInstance("instances: a line has one instance; send each on a line of its own", "instances")
        wait: Wait = "applied" if request.key is not None else request.wait  # the lines of a group wait as one
        learned = await self._learning.earlier_instance_result(model, request, request.source)
        if learned is not None:
            return wait, learned, None
        record = await self._learning.record(model, config, request, new)
        VectorBudget(self._request_bytes).reserve(len(record))
        warning = await warnings.of(model.live, request.features)
        warnings.is_given |= warning is not None
        return wait, await draft_of(request, record, request.source), warning


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
