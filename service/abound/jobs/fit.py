"""The job that fits a batch method: from history or a data set to a version with a card.

The version is equal to the result of fitting in process with the same instances, parameters and seed.
"""

from __future__ import annotations

import asyncio
import inspect
import math
import time
from collections.abc import Iterator
from dataclasses import MISSING, dataclass, field, fields, make_dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, NamedTuple, get_type_hints

import numpy as np
from pydantic import Field

from abound.datasets.files import local_file, read_file
from abound.datasets.repository import DatasetCard, DatasetRepository
from abound.history import full_log
from abound.jobs.training_data import MAX_DENSE_BYTES, matrices_of_history
from abound.processes.parallel import parallel
from abound.processes.remote_encoder import encoded
from abound.settings import field_descriptions
from abound.state.replicated_model import new_secret
from abound.versions import activation
from abound.versions import retention as version_retention
from abound.versions import versions as versions
from abound.versions.card import Card, new_id, reading_settings
from abound_core.config import ModelConfig
from abound_core.errors import Conflict, InvalidInstance, Malformed, UnknownVersion
from abound_core.evaluation.evaluate import fit as learn
from abound_core.evaluation.evaluate import measure, rank
from abound_core.instances.data_formats import DatasetInstance
from abound_core.instances.vectorizer import Vectorizer
from abound_core.limits import DATASET_LIMITS
from abound_core.measures import Propensity, evaluate
from abound_core.methods import fitted as fitting
from abound_core.methods import registry
from abound_core.methods.fitted import FittedMethod
from abound_core.methods.training import gather, param_checks
from abound_core.methods.training.matrices import Matrices
from abound_core.methods.training.progress import Progress, monotonic, subrange
from abound_core.methods.training.rankings import joined
from abound_core.types import Offset

if TYPE_CHECKING:
    from abound.jobs.context import JobContext

MOST_SEED = 2**63 - 1

HISTORY = "history"
DEPTH = 100  # labels that are ranked to evaluate a version

BASELINE = ("R@1", "R@5", "MRR")  # measures of the live index that a card has as the baseline

MAX_BASELINE_VALUES = 20_000_000  # active features of all instances beyond which the baseline would take minutes

READ_AT_ONCE = 256

RANKED_AT_ONCE = 2048  # instances that are ranked between two progress reports


@dataclass(frozen=True, kw_only=True)
class FitParams:
    """Parameters of every fit.

    Attributes
    ----------
    seed : int
        Seed of all random numbers of the method.
    idf : bool or None
        Weigh features by their inverse frequency, in the training data; null: the model's ``idf`` setting, if the
        method supports it.
    auto : bool
        Search for the method's parameters on a held-out part, if the method supports it.
    held_out : float
        Fraction of the instances, the newest, that the version is evaluated on; 0: no evaluation.
    most_held_out : int
        Most instances to hold out.
    refit : bool
        Fit again on all instances after the evaluation.
    reason : str
        Reason of the job, stored with it.
    """

    METHOD: ClassVar[str] = ""

    seed: int = 0
    idf: bool | None = None
    auto: bool = False
    held_out: float = 0.1
    most_held_out: int = 5000
    refit: bool = True
    reason: str = ""

    def __post_init__(self) -> None:
        method = registry.METHODS[self.METHOD]
        param_checks.whole("seed", self.seed, 0, MOST_SEED)
        param_checks.number("held_out", self.held_out, 0.0, 0.5)
        param_checks.whole("most_held_out", self.most_held_out, 1, 1_000_000)
        if len(self.reason) > 1000:
            raise ValueError("reason must have at most 1000 characters")
        if self.idf and not method.idf:
            raise ValueError(f"idf is not supported by {self.METHOD}; leave it out or set it to false")
        if self.auto and method.search is None:
            raise ValueError(f"auto: {self.METHOD} has no parameters that can be searched for")
        if self.auto and self.method_params != method.params():
            raise ValueError("auto searches for the method's parameters; give either auto or the parameters")

    @property
    def method_params(self) -> Any:
        """Raises ValueError with a field's name if one is out of range."""
        method = registry.METHODS[self.METHOD]
        return method.params(**{one.name: getattr(self, one.name) for one in fields(method.params)})

    def uses_idf(self, default: bool) -> bool:
        return registry.METHODS[self.METHOD].idf and (default if self.idf is None else self.idf)


@cache
def fit_params(method: str) -> type[FitParams]:
    """Return the parameter class of a fit by this method: a frozen, self-validating dataclass."""
    own = registry.METHODS[method].params
    hints = get_type_hints(own)
    about = field_descriptions(own)
    parts: list[tuple[str, Any, Any]] = []
    for one in fields(own):
        if hasattr(FitParams, one.name):
            raise AssertionError(f"{one.name} of {method} is also a parameter of every fit")
        default = field(default_factory=one.default_factory) if one.default is MISSING else field(default=one.default)
        parts.append((one.name, Annotated[hints[one.name], Field(description=about.get(one.name))], default))

    def check(self: FitParams) -> None:
        _ = self.method_params
        FitParams.__post_init__(self)

    made = make_dataclass(
        f"Fit_{method}",
        [*_annotated(FitParams), *parts],
        bases=(FitParams,),
        namespace={"METHOD": method, "__post_init__": check, "__doc__": inspect.getdoc(own)},
        frozen=True,
        kw_only=True,
    )
    made.__module__ = __name__
    return made


def _annotated(kind: type[Any]) -> list[tuple[str, Any, Any]]:
    """Return the fields of a dataclass, annotated with their descriptions from its docstring."""
    about, hints = field_descriptions(kind), get_type_hints(kind)
    return [
        (one.name, Annotated[hints[one.name], Field(description=about.get(one.name))], field(default=one.default))
        for one in fields(kind)
    ]


class TrainingData(NamedTuple):
    """``range`` has the form that a card has; it is None for a data set."""

    data: Matrices
    range: dict[str, str | None] | None
    until: Offset


async def fit(context: JobContext, params: FitParams, progress: Progress) -> dict[str, Any]:
    """Fit and evaluate a batch method, fit it on all instances, and write the version."""
    keys, job = context.living.keys, context.job
    # An earlier attempt died after its commit: only the card is missing.
    if job.committed:
        name = job.kept[0].rpartition("/")[2]
        card = await _publish(context, name)
        return _outcome(card, {}) | await _enter_and_retain(context, card)
    progress = monotonic(progress)
    config = ModelConfig.from_stored(job.config)
    clock = Stopwatch()
    # In the order in which they arrived.
    read = await _read(context, config, subrange(progress, 0.0, 0.2))
    clock.lap("read")
    rows = read.data.learnable
    if not len(rows):
        raise InvalidInstance("no instance has a label and an active feature", "data")
    data = read.data if len(rows) == read.data.X.shape[0] else read.data.rows(rows)
    idf = params.uses_idf(config.idf)
    fit_progress = subrange(progress, 0.2, 0.9)

    def work() -> tuple[FittedMethod, dict[str, Any]]:
        with parallel(context.settings.cluster, context.threads):
            return evaluate_and_fit(params, data, idf, config, fit_progress, clock)

    fitted, metrics = await asyncio.to_thread(work)
    prefix = versions.folder(keys, new_id())
    name = prefix.rpartition("/")[2]
    await context.will_write(prefix)
    progress("writing the version", 0.9)
    async with versions.writing(context.store, keys, name):
        # Write the version without its card, commit, then write the card, which makes the version visible.
        card = await versions.write(
            context.artifacts,
            keys,
            fitted,
            seed=params.seed,
            data=job.data,
            upload=job.upload,
            reads=reading_settings(config),
            data_range=read.range,
            offset=str(read.until),
            created=await context.store.now(),
            metrics=metrics,
            sizes={
                "instances": data.X.shape[0],
                "features": data.X.shape[1],
                "classes": int(np.count_nonzero(data.label_counts)),
                "nnz": data.X.nnz,
                "assertions": data.Y.nnz,
            },
            job=job.id,
            name=name,
            check=context.check,
            whole=False,
        )
        clock.lap("write")
        progress("done", 0.99)
        await context.commit(prefix)
        await _publish(context, name)
    return _outcome(card, clock.seconds) | await _enter_and_retain(context, card)


async def _publish(context: JobContext, name: str) -> Card:
    """Publish a version, also for the incarnation that has replaced that of the job meanwhile."""
    keys, artifacts = context.living.keys, context.artifacts
    card = await activation.publish(context.store, artifacts, keys, name)
    serving = await context.serving_keys()
    if serving != keys:
        await versions.copy(artifacts, keys, serving, card)
        context.living = context.living._replace(keys=serving)
    return card


async def _enter_and_retain(context: JobContext, card: Card) -> dict[str, Any]:
    """Enter the new version as a challenger if the job asks for it, then delete old versions."""
    store, keys = context.store, context.living.keys
    entered: bool | str = False
    if context.job.activate == "if_better":
        try:
            await version_retention.enter_challenger(store, context.artifacts, keys, card.id, f"job {context.job.id}")
            entered = True
        except (
            Conflict,
            UnknownVersion,
        ) as error:  # no free slot, or it was deleted; the job succeeded anyway
            entered = str(error)
    keep = context.settings.group(version_retention.VersionParams).keep
    gone = await version_retention.retain(store, context.artifacts, keys, keep)
    return {"challenger": entered, "deleted": gone}


async def _read(context: JobContext, config: ModelConfig, progress: Progress) -> TrainingData:
    if context.job.data == HISTORY:
        found = await matrices_of_history(context, progress)
        if not found.data.X.shape[0]:
            why = (
                ""
                if found.is_all
                else " that history still contains as events: it was imported, or history was cut off"
            )
            raise InvalidInstance(f"the model {context.living.keys.name} has learned nothing{why}", "data")
        return TrainingData(found.data, found.range, found.until)
    card = await DatasetRepository(context.store).get(context.job.data)
    if context.job.upload not in (None, card.upload):
        raise Conflict(f"the data set {card.name} was replaced after the job was submitted; submit the job again")
    async with local_file(context.artifacts, card.file) as path:
        data = await asyncio.to_thread(_of_file, path, config, card, progress)
    return TrainingData(data, None, await full_log.newest_offset(context.store, context.living.keys))


def _of_file(path: Path, config: ModelConfig, card: DatasetCard, progress: Progress) -> Matrices:
    def instances() -> Iterator[DatasetInstance]:
        for at, instance in enumerate(read_file(str(path), options=card.options)):
            if at % READ_AT_ONCE == 0:
                progress("reading the data set", min(1.0, at / max(1, card.instances)))
            yield instance

    try:
        vectorizer = Vectorizer(config, DATASET_LIMITS)
        coming = encoded(instances(), config.analyzer)
        return gather.gather(coming, vectorizer, DATASET_LIMITS, new_secret(), dense_bytes=MAX_DENSE_BYTES)
    except Malformed as error:
        raise Malformed(str(error).removeprefix(f"{path}: ")) from error


def evaluate_and_fit(
    params: FitParams, data: Matrices, idf: bool, config: ModelConfig, progress: Progress, clock: Stopwatch
) -> tuple[FittedMethod, dict[str, Any]]:
    """Fit the method on all data; return it with its metrics. Names of labels are never held out."""
    n = data.X.shape[0] if data.names is None else int(np.count_nonzero(~data.names))
    n_held = min(math.floor(n * params.held_out), params.most_held_out)
    metrics: dict[str, Any] = {"held_out": n_held}
    own: Any = "auto" if params.auto else params.method_params
    older, newest = data.hold_out(n_held)

    def on(rows: Matrices, given: Any, report: Progress) -> FittedMethod:
        rng = np.random.default_rng(params.seed)
        return fitting.fit(params.METHOD, rows, given, rng, report, use_idf=idf)

    again = params.refit or not n_held
    judged_by = 0.5 if again else 0.9
    fitted = None
    # Fit on all but the newest instances, and evaluate on the newest; the live index is the baseline.
    if n_held:
        if data.X.nnz <= MAX_BASELINE_VALUES and data.dense is not None:
            metrics |= baseline_metrics(config, older, newest, subrange(progress, 0.0, 0.05))
            clock.lap("baseline")
        fitted = on(older, own, _named("evaluating: ", subrange(progress, 0.05, judged_by - 0.1)))
        clock.lap("fit")
        ranking = subrange(progress, judged_by - 0.1, judged_by)
        metrics |= held_out_metrics(fitted, older, newest, ranking)
        clock.lap("rank")
        own = fitted.params
    del older, newest
    # Fit on all instances, with the same parameters and the same seed.
    if again:
        fitted = None  # memory suffices for one fitted method
        fitted = on(data, own, _named("", subrange(progress, judged_by if n_held else 0.0, 1.0)))
        clock.lap("refit" if n_held else "fit")
    assert fitted is not None
    return fitted, metrics


def held_out_metrics(
    fitted: FittedMethod, train: Matrices, test: Matrices, progress: Progress
) -> dict[str, float | None]:
    """Return every measure (``abound_core/measures.py``) of a fitted method on instances with the same columns."""
    n, blocks = test.X.shape[0], []
    for first in range(0, n, RANKED_AT_ONCE):
        progress("evaluating: ranking the newest instances", first / n)
        blocks.append(fitted.rank(test.X[first : first + RANKED_AT_ONCE], DEPTH))
    weights = Propensity().weights(train.label_counts, train.X.shape[0])
    return evaluate(joined(blocks), test.label_sets, weights)


def baseline_metrics(
    config: ModelConfig, train: Matrices, test: Matrices, progress: Progress
) -> dict[str, float | None]:
    """Return the ``BASELINE`` measures, named "live ...", of an index that learned ``train`` once, in order."""
    learned = 0

    def on_learned(n: int) -> None:
        nonlocal learned
        learned += n
        progress("evaluating: the live index as baseline", learned / train.X.shape[0])

    known, asked = (gather.to_dataset(data, config.boolean) for data in (train, test))
    live = learn(known, config, new_secret(), progress=on_learned)
    measured = measure(live, known, asked, rank(live, asked, depth=DEPTH), Propensity())
    return {f"live {name}": measured[name] for name in BASELINE}


class Stopwatch:
    """Seconds of wall time by step."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._since = time.monotonic()

    def lap(self, name: str) -> None:
        now = time.monotonic()
        self.seconds[name] = round(now - self._since, 3)
        self._since = now


def _named(prefix: str, progress: Progress) -> Progress:
    return lambda stage, fraction: progress(f"{prefix}{stage}", fraction)


def _outcome(card: Card, seconds: dict[str, float]) -> dict[str, Any]:
    return {
        "version": card.id,
        "metrics": card.metrics,
        "digest": card.digest,
        "params": card.params,
        "sizes": card.sizes,
        "bytes": card.n_bytes,
        "seconds": seconds,
    }
