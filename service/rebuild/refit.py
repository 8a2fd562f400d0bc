"""Refitting: the index anew from the past, in several passes and with searched settings.

1. what counts of the past is found (``service/history/lineage.py``)
2. for each setting that is to be tried: passes over all but the newest part, and after each the newest part is ranked;
   setting and number of passes are those with the best mean reciprocal rank, of equals the first
3. with these, all of it is learned
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from abound.core.config import ModelConfig
from abound.core.errors import Conflict, InvalidInstance
from abound.core.limits import Limits
from abound.core.model.live_model import LiveModel
from abound.core.model.refit import Fitting, reciprocal_rank
from abound.service.artifacts.artifact_store import Artifacts
from abound.service.history.lineage import Read, Start, Stretches, events
from abound.service.log.events import Learn
from abound.service.model.replicated_model import new_secret
from abound.service.snapshots import state_files
from abound.service.store.keys import ModelKeys

MOST_TRIES = 100

MARGINS = (0.0, 0.1, 0.5)
"""Tried where nothing is said of what to try."""

CANNOT_CHANGE = {
    "boolean": "history holds vectors that are normalised already, without the values that they had",
    "analyzer": "history holds vectors, not the texts that they were made of",
    "negative": "history holds vectors, without the numbers below 0 that were left out or renamed",
}
"""Fields that no refit can change, and why."""

Tell = Callable[[str, float], None]


@dataclass(frozen=True, kw_only=True)
class RefitParams:
    """How the index is fitted anew.

    Attributes
    ----------
    passes : int
        Most passes over the past; fewer when the held-out part says so.
    settings : dict
        Fields of the model's configuration with the values that they get, such as {"d_max": 50}.
    search : dict or None
        Fields with the values that are tried, each with each, such as {"margin": [0, 0.3]}. None: for an
        index that has a margin, 0, 0.1, 0.5 and the one that it has, unless ``settings`` names it.
    held_out : float
        Part of the instances, the newest, that the choice is made on; 0: no choice, ``passes`` passes are made.
    most_held_out : int
        Instances of it at most.
    reason : str
        Kept with the job.
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
                raise ValueError(f"{name} cannot be changed: {CANNOT_CHANGE[name]}; a new model can be taught instead")
            if name in self.settings and name in search:
                raise ValueError(f"{name} has a value in settings and others in search: give one or the other")
        if any(not values for values in search.values()):
            raise ValueError("search must have at least one value for each of its fields")
        if math.prod(len(values) for values in search.values()) > MOST_TRIES:  # before they are made
            raise ValueError(f"search must lead to at most {MOST_TRIES} settings")
        try:
            tried = self.tried(ModelConfig())
            for setting in tried:
                ModelConfig().asked(setting)
        except InvalidInstance as error:
            raise ValueError(str(error)) from None
        if len(tried) > 1 and self.held_out == 0:
            raise ValueError(
                "held_out must be more than 0 for a search to choose by; search {} tries nothing but the settings"
            )

    def tried(self, config: ModelConfig) -> list[dict[str, Any]]:
        """All settings that are tried, for a model that is configured so."""
        search = self.search
        if search is None:
            has_margin = config.asked(self.settings).update == "fsu" and "margin" not in self.settings
            search = {"margin": sorted({*MARGINS, config.margin})} if has_margin else {}
        return [
            self.settings | dict(zip(search, values, strict=True)) for values in itertools.product(*search.values())
        ]


class Chosen(NamedTuple):
    """What the held-out part chose; ``score`` is its mean reciprocal rank, ``before`` that of the index as it was."""

    setting: dict[str, Any]
    passes: int
    score: float | None
    n_held_out: int


class Refitting:
    """One refit.

    Parameters
    ----------
    read : callable
        Gives the past.
    config : ModelConfig
        Of the model as it is.
    n_learned : int
        Instances that it has learned.
    """

    def __init__(
        self,
        read: Read,
        artifacts: Artifacts,
        keys: ModelKeys,
        config: ModelConfig,
        past: Stretches,
        n_learned: int,
        tell: Tell,
    ) -> None:
        self._read = read
        self._artifacts = artifacts
        self._keys = keys
        self._config = config
        self._past = past
        self._n_learned = n_learned
        self._tell = tell
        self._work = 0
        self._of = 1

    def refuse(self, params: RefitParams) -> None:
        """Conflict when the past cannot be learned with these settings."""
        if self._past.start is None:
            return
        for setting in params.tried(self._config):
            fixed = self._config.refused_once_learned(self._config.asked(setting))
            if fixed:
                raise Conflict(
                    f"{', '.join(fixed)} cannot be changed: what came before {self._past.stretches[0].after} is only "
                    "there as the index that was learned with the present value"
                )

    async def choose(self, params: RefitParams) -> Chosen:
        """Try the settings; the best one."""
        n_held = min(int(self._n_learned * params.held_out), params.most_held_out)
        tried = params.tried(self._config)
        self._of = params.passes * (len(tried) + 1)
        if n_held == 0 or (len(tried) == 1 and params.passes == 1):
            return Chosen(tried[0], params.passes, None, 0)
        best: Chosen | None = None
        for number, setting in enumerate(tried, start=1):
            fitting = Fitting(await self._beginning(setting), self._n_learned - n_held)
            for n_passes in range(1, params.passes + 1):
                stage = f"trying setting {number} of {len(tried)}, pass {n_passes}"
                score, n = await self._score(fitting.live, await self._pass(fitting, stage), stage)
                if best is None or score > (best.score or 0.0):
                    best = Chosen(setting, n_passes, score, n)
                fitting.next_pass()
        if best is None:
            raise AssertionError("something is tried")
        return best

    async def fit(self, setting: dict[str, Any], passes: int) -> LiveModel:
        """Learn all that counts."""
        fitting = Fitting(await self._beginning(setting))
        self._of = max(self._of, self._work + passes)
        for n_passes in range(1, passes + 1):
            await self._pass(fitting, f"fitting, pass {n_passes} of {passes}")
            fitting.next_pass()
        return fitting.live

    async def _beginning(self, setting: dict[str, Any]) -> LiveModel:
        config = self._config.asked(setting)
        start = self._past.start
        if start is None:
            return LiveModel(config, new_secret(), Limits())
        live = await state_files.load(self._artifacts, self._keys, start.name, start.digest, Limits())
        live.configure(config.to_dict())
        return live

    async def _pass(self, fitting: Fitting, stage: str) -> list[bytes]:
        """One pass; what is held out of it."""
        held: list[bytes] = []
        for stretch in self._past.stretches:
            async with contextlib.aclosing(events(self._read, stretch)) as reading:
                async for group in reading:
                    for at, event in group:
                        if type(event) is Learn:
                            held += fitting.learn(event.records, event.units, at)
                            await asyncio.sleep(0)
                    done = min(1.0, fitting.n_learned / max(1, self._n_learned))
                    self._tell(stage, (self._work + done) / self._of)
        self._work += 1
        return held

    async def _score(self, live: LiveModel, held: list[bytes], stage: str) -> tuple[float, int]:
        total = 0.0
        for i, record in enumerate(held):
            total += reciprocal_rank(live, record)
            if i % 256 == 0:
                self._tell(stage, self._work / self._of)
                await asyncio.sleep(0)
        return total / max(1, len(held)), len(held)


def start_of(base: Start | None, past: Stretches) -> Stretches:
    """The same, on top of history's base where nothing else is imported."""
    return past if past.start is not None or base is None else past._replace(start=base)
