"""Refit: learn all events of history again, in several passes and with searched settings."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import math
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from abound.history import full_log
from abound.log.events import LearnEvent
from abound.log.stream import Element
from abound.state.replicated_model import new_secret
from abound_core.config import ModelConfig
from abound_core.errors import Conflict, InvalidInstance
from abound_core.limits import Limits
from abound_core.model.live_model import LiveModel
from abound_core.model.refit import Refitter, reciprocal_rank
from abound_core.types import Offset

MOST_TRIES = 100

NOTHING_HELD_OUT = (
    "no instance with a label was held out, so nothing was compared: fields to search keep their present values, and "
    "all passes were made"
)

MARGINS = (0.0, 0.1, 0.5)  # tried if ``search`` is not given

CANNOT_CHANGE = {
    "boolean": "history stores normalised vectors, without the original values",
    "analyzer": "history stores vectors, not the original texts",
    "negative": "history stores vectors, in which numbers below 0 are left out or renamed",
    "numbers": "history stores vectors, without the original numbers",
}
"""Fields that no refit can change, with the reason."""

ReportProgress = Callable[[str, float], None]
Read = Callable[[], AsyncGenerator[list[Element]]]


@dataclass(frozen=True, kw_only=True)
class RefitParams:
    """Parameters of a refit.

    Attributes
    ----------
    passes : int
        Most passes over the events; fewer if the held-out part prefers fewer.
    settings : dict
        Fields of the model's configuration and their new values, such as {"d_max": 50}.
    search : dict or None
        Fields and the values to try, in all combinations, such as {"margin": [0, 0.3]}. None: if the index uses
        a margin and ``settings`` does not name it, try 0, 0.1, 0.5 and the present one.
    held_out : float
        Share of the instances, the newest ones, on which settings and passes are compared. 0: compare nothing, make
        ``passes`` passes.
    most_held_out : int
        Most instances to hold out.
    reason : str
        Reason of the job, stored with it.
    """

    passes: int = 3
    settings: dict[str, Any] = field(default_factory=dict)
    search: dict[str, list[Any]] | None = None
    held_out: float = 0.1
    most_held_out: int = 5_000
    reason: str = ""

    def __post_init__(self) -> None:
        if not 1 <= self.passes <= 100:
            raise ValueError("passes must be from 1 to 100")
        if not 0 <= self.held_out <= 0.5:
            raise ValueError("held_out must be from 0 to 0.5")
        if not 1 <= self.most_held_out <= 100_000:
            raise ValueError("most_held_out must be from 1 to 100000")
        if len(self.reason) > 1000:
            raise ValueError("reason must have at most 1000 characters")
        search = self.search or {}
        for name in [*self.settings, *search]:
            if name in CANNOT_CHANGE:
                raise ValueError(f"{name} cannot be changed: {CANNOT_CHANGE[name]}; create a new model instead")
            if name in self.settings and name in search:
                raise ValueError(f"{name} has a value in settings and others in search: give one or the other")
        if any(not values for values in search.values()):
            raise ValueError("search must have at least one value for each of its fields")
        if math.prod(len(values) for values in search.values()) > MOST_TRIES:  # checked before they are built
            raise ValueError(f"search must lead to at most {MOST_TRIES} settings")

    def check_config(self, config: ModelConfig) -> None:
        """Raise InvalidInstance if a model with this configuration cannot be refitted with these parameters."""
        try:
            tried = self.tried(config)
            for setting in tried:
                config.with_user_changes(setting)
        except InvalidInstance as error:
            raise InvalidInstance(f"params: {error}", "params") from None
        if len(tried) > 1 and self.held_out == 0:
            raise InvalidInstance(
                "params.held_out must be more than 0 if several settings are tried; search {} tries only settings",
                "params.held_out",
            )

    @property
    def uncompared(self) -> dict[str, Any]:
        """The setting if nothing can be compared: fields with several values keep their present one."""
        alone = {name: values[0] for name, values in (self.search or {}).items() if len(values) == 1}
        return self.settings | alone

    def tried(self, config: ModelConfig) -> list[dict[str, Any]]:
        search = self.search
        if search is None:
            has_margin = config.with_user_changes(self.settings).update == "fsu" and "margin" not in self.settings
            search = {"margin": sorted({*MARGINS, config.margin})} if has_margin else {}
        return [
            self.settings | dict(zip(search, values, strict=True)) for values in itertools.product(*search.values())
        ]


class RefitChoice(NamedTuple):
    """Best setting and number of passes."""

    setting: dict[str, Any]
    passes: int
    score: float | None  # mean reciprocal rank on the held-out part
    n_held_out: int
    note: str | None = None  # why nothing was held out, if something had to be compared


class Refit:
    def __init__(
        self,
        read: Read,
        base: LiveModel | None,
        after: Offset,
        config: ModelConfig,
        n_learned: int,
        tell: ReportProgress,
        named: LiveModel | None = None,
    ) -> None:
        """Refit the events that ``read`` yields, on top of the state ``base``, which has learned those up to ``after``.

        ``n_learned``: the instances that the model has learned. ``named``: as of ``Refitter``.
        """
        self._read = read
        self._base = None if base is None else (base.meta(), base.to_arrays())
        self._n_base = 0 if base is None else base.n_learned
        self._after = after
        self._named = named
        self._config = config
        self._n_learned = n_learned
        self._n_events = n_learned  # instances in the events, without those in the state at the beginning
        self._report_progress = tell
        self._work = 0
        self._of = 1

    def refuse_unchangeable(self, params: RefitParams) -> None:
        """Raise Conflict if the events cannot be learned with these settings."""
        if self._base is None:
            return
        for setting in params.tried(self._config):
            fixed = self._config.refused_once_learned(self._config.with_user_changes(setting))
            if fixed:
                raise Conflict(
                    f"{', '.join(fixed)} cannot be changed: events before {self._after} exist only "
                    "as a state that was learned with the present value"
                )

    async def choose(self, params: RefitParams) -> RefitChoice:
        """Return the setting and number of passes with the best mean reciprocal rank on the newest events."""
        tried = params.tried(self._config)
        self._of = params.passes * (len(tried) + 1)
        uncompared = RefitChoice(params.uncompared, params.passes, None, 0)
        if params.held_out == 0 or (len(tried) == 1 and params.passes == 1):
            return uncompared
        best: RefitChoice | None = None
        for number, setting in enumerate(tried, start=1):
            live = self._beginning(setting)
            n_held = min(int(self._n_events * params.held_out), params.most_held_out)
            fitting = Refitter(live, self._n_events - n_held, self._named)
            for n_passes in range(1, params.passes + 1):
                stage = f"trying setting {number} of {len(tried)}, pass {n_passes}"
                held = await self._pass(fitting, stage)
                if not held:
                    return uncompared._replace(note=NOTHING_HELD_OUT)
                score = await self._score(fitting.live, held, stage)
                if best is None or score > (best.score or 0.0):  # the first of equals wins
                    best = RefitChoice(setting, n_passes, score, len(held))
                fitting.next_pass()
        if best is None:
            raise AssertionError("at least one setting is tried")
        return best

    async def fit(self, setting: dict[str, Any], passes: int) -> LiveModel:
        fitting = Refitter(self._beginning(setting), named=self._named)
        self._of = max(self._of, self._work + passes)
        for n_passes in range(1, passes + 1):
            await self._pass(fitting, f"fitting, pass {n_passes} of {passes}")
            fitting.next_pass()
        if self._named is not None and self._named.changes:
            fitting.live.adopt_changes(self._named)
        return fitting.live

    def _beginning(self, setting: dict[str, Any]) -> LiveModel:
        config = self._config.with_user_changes(setting)
        if self._base is None:
            return LiveModel(config, new_secret(), Limits())
        live = LiveModel.from_arrays(*self._base, new_secret(), Limits())
        live.configure(config.to_dict())
        self._n_events = self._n_learned - self._n_base
        return live

    async def _pass(self, fitting: Refitter, stage: str) -> list[bytes]:
        held: list[bytes] = []
        async with contextlib.aclosing(self._read()) as reading:
            async for elements in reading:
                for element in elements:
                    event = full_log.decode_element(element).event
                    if type(event) is LearnEvent:
                        held += fitting.learn(event.records, event.units, Offset.of_entry(element[0]))
                        await asyncio.sleep(0)
                done = min(1.0, fitting.n_read / max(1, self._n_events))
                self._report_progress(stage, (self._work + done) / self._of)
        self._work += 1
        return held

    async def _score(self, live: LiveModel, held: list[bytes], stage: str) -> float:
        total = 0.0
        for i, record in enumerate(held):
            total += reciprocal_rank(live, record)
            if i % 256 == 0:
                self._report_progress(stage, self._work / self._of)
                await asyncio.sleep(0)
        return total / len(held)
