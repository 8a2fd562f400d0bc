"""Running an experiment: its measures, its cost, and the environment."""

from __future__ import annotations

import platform
import resource
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from abound.evaluation.batch import BatchEvaluation, evaluate_matrices
from abound.processes.memory import limit_memory
from abound_core.config import ModelConfig
from abound_core.errors import InvalidInstance
from abound_core.evaluation.evaluate import fit, measure, rank
from abound_core.measures import Propensity
from abound_core.methods.training.progress import Progress, no_progress, subrange
from benchmarks.reproduction import proportions
from benchmarks.reproduction.data_sets import LoadedDataSet
from benchmarks.reproduction.experiment import Experiment

FSU = "fsu"

LIBRARIES = ("numpy", "scipy", "numba", "usearch")

TRIALS = 200
"""Number of streams that appendix B averages over."""

SHARES = (0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9)
"""Tested values of p*."""

WARM = 200
"""Instances of a first, unmeasured run, so that the compilation of kernels is not measured."""

_RESET, _STATUS = Path("/proc/self/clear_refs"), Path("/proc/self/status")

Figures = dict[str, Any]


def run(
    experiment: Experiment, held: LoadedDataSet | None, memory: int | None, progress: Progress = no_progress
) -> Figures:
    """Run an experiment and return its figures, as plain values.

    Parameters
    ----------
    experiment : Experiment
    held : LoadedDataSet or None
        Its data; None for ``fsu``.
    memory : int or None
        Bytes that it may allocate.
    progress : callable

    Returns
    -------
    dict
        ``measures`` (P, R, nDCG, PSP, PSnDCG and ``error``, 100 - R@1, in per cent; the mean over the seeds),
        ``spread`` (minimum and maximum of each measure, if there are several seeds), ``cost``, ``sizes``,
        ``params``, ``curve`` (lists of figures by name, all of one length); or ``refused``, a message. Always
        ``id``, ``on`` (the date), ``with`` (versions) and ``seconds``.
    """
    begun = time.perf_counter()
    figures: Figures = {"id": experiment.id, "on": datetime.now(UTC).date().isoformat(), "with": versions()}
    _forget_peak()
    limit_memory(memory)
    try:
        figures |= _proportions(experiment) if held is None else _seeds(experiment, held, progress)
    except (InvalidInstance, MemoryError) as error:
        figures |= {"refused": str(error) or "out of memory", "memory": memory}
    finally:
        limit_memory(None)
    if "measures" in figures:
        figures["measures"]["peak GB"] = _peak()
    return figures | {"seconds": round(time.perf_counter() - begun, 2)}


def warm(experiment: Experiment, held: LoadedDataSet | None) -> None:
    """Compile the kernels of the method by a run on a few instances."""
    if held is None:
        return
    train, test = held.split(experiment.seeds[0])
    few = LoadedDataSet(
        train=train.select(train.learnable[:WARM].tolist()),
        test=test.select(range(min(WARM, len(test)))),
        test_share=0.0,
        text=held.text,
        pairs=(),
    )
    try:
        _one(experiment, few, experiment.seeds[0], no_progress)
    except InvalidInstance:
        return  # too few instances for these parameters: the measured run compiles


def versions() -> str:
    """Return the versions of Python, the program and its libraries."""
    found = [f"Python {platform.python_version()}"]
    for library in ("abound", *LIBRARIES):
        try:
            found.append(f"{library} {version(library)}")
        except PackageNotFoundError:
            continue
    return ", ".join(found)


def _seeds(experiment: Experiment, held: LoadedDataSet, progress: Progress) -> Figures:
    outcomes = []
    share = len(experiment.seeds)
    for number, seed in enumerate(experiment.seeds):
        told = subrange(progress, number / share, (number + 1) / share)
        outcomes.append(_one(experiment, held, seed, told))
    figures = dict(outcomes[0])
    for name in ("measures", "cost"):
        figures[name] = _means([outcome[name] for outcome in outcomes])
    if share > 1:
        figures["spread"] = _spread([outcome["measures"] for outcome in outcomes])
    return figures


def _one(experiment: Experiment, held: LoadedDataSet, seed: int, progress: Progress) -> Figures:
    if experiment.is_live:
        return _live(experiment, held, seed, progress)
    train, test = held.matrices(seed)
    others: dict[str, Any] = {"seed": seed, "hidden": experiment.hidden, "hierarchy": held.pairs}
    others["depth"] = experiment.depth
    trial = BatchEvaluation.from_fields(experiment.method, dict(experiment.params), **others)
    result = evaluate_matrices(train, test, trial, progress=progress)
    siblings = result.get("nearest_labels_that_are_siblings")
    recall = result.get("recall_of_neighbors")
    more = {"siblings": siblings, "recall": recall}
    return {
        "measures": _shown(result["metrics"], test.label_sets.sizes)
        | {name: 100 * value for name, value in more.items() if value is not None},
        "cost": {
            "fit": result["cpu_seconds"]["fit"],
            "rank": 1000 * result["cpu_seconds"]["rank"] / max(result["instances"]["test"], 1),
            "megabytes": result["bytes"] / 1e6,
        },
        "sizes": {**result["instances"], "features": result["features"], "classes": result["classes"]},
        "params": result["params"],
    }


def _live(experiment: Experiment, held: LoadedDataSet, seed: int, progress: Progress) -> Figures:
    changes = dict(experiment.params)
    passes = int(changes.pop("passes", 1))
    train, test = held.split(seed)
    config = ModelConfig.from_dict(changes)
    total, done = passes * len(train.learnable), 0
    curve: dict[str, list[float]] = {"pass": [], "test": [], "train": []}
    learnable = train.select(train.learnable.tolist()) if experiment.each_pass else train

    def told(n: int) -> None:
        nonlocal done
        done += n
        progress("learning", min(1.0, done / max(total, 1)))

    def after(live: Any) -> None:
        if experiment.each_pass:
            curve["pass"].append(len(curve["pass"]) + 1)
            for name, part in (("test", test), ("train", learnable)):
                curve[name].append(100 * float(measure(live, train, part, rank(live, part), Propensity())["R@1"] or 0))

    begun = time.process_time()
    live = fit(train, config, (seed, 1), passes=passes, progress=told, after_pass=after)
    fitted = time.process_time()
    ranked = rank(live, test)
    end = time.process_time()
    figures: Figures = {
        "measures": _shown(measure(live, train, test, ranked, Propensity()), test.labels.sizes)
        | {"edges": float(live.index.n_connections), "work": ranked.work_per_feature},
        "cost": {
            "fit": fitted - begun,
            "rank": 1000 * (end - fitted) / max(len(test), 1),
            "megabytes": sum(live.sizes()["memory"].values()) / 1e6,
        },
        "sizes": {
            "train": len(train),
            "test": len(test),
            "features": len(live.features),
            "classes": len(live.labels),
        },
        "params": {"passes": passes, "margin": config.margin},
    }
    return figures | ({"curve": curve} if experiment.each_pass else {})


def _proportions(experiment: Experiment) -> Figures:
    """Run FSU alone. The parameter ``classes`` is a number, ``few`` (1 / p*, rounded up) or ``drawn`` (figure 22)."""
    w_min, classes = float(experiment.params["w_min"]), experiment.params["classes"]
    trials = int(experiment.params.get("trials", TRIALS))
    rng = np.random.default_rng(experiment.seeds[0])
    if classes == "drawn":
        pairs = [proportions.distances(w_min, rng) for _ in range(trials)]
        return {
            "measures": {
                name: float(np.mean(found)) for name, found in zip(("l1", "max"), zip(*pairs, strict=True), strict=True)
            }
        }
    deviations = []
    for p in SHARES:
        n = int(np.ceil(1 / p)) if classes == "few" else int(classes)
        deviations.append(proportions.mean(lambda rng, p=p, n=n: proportions.deviation(p, n, w_min, rng), trials, rng))  # type: ignore[misc]
    return {"measures": {}, "curve": {"p*": list(SHARES), "deviation": deviations}}


def _shown(metrics: dict[str, float | None], label_counts: npt.NDArray[np.int64]) -> dict[str, float]:
    """Return measures in per cent, except HR and MRR; also P over only the instances that have labels."""
    whole = {name: value for name, value in metrics.items() if value is not None}
    shares = {name: value if name in ("HR", "MRR") else 100 * value for name, value in whole.items()}
    labelled = np.count_nonzero(label_counts) / max(len(label_counts), 1)
    of_labelled = {f"{name} labelled": shares[name] / labelled for name in ("P@1", "P@3", "P@5") if labelled}
    return shares | of_labelled | {"error": 100 - shares["P@1"]}


def _means(found: Sequence[dict[str, float]]) -> dict[str, float]:
    return {name: float(np.mean([part[name] for part in found if name in part])) for name in found[0]}


def _spread(found: Sequence[dict[str, float]]) -> dict[str, list[float]]:
    return {name: [min(part[name] for part in found), max(part[name] for part in found)] for name in found[0]}


def _forget_peak() -> None:
    try:
        _RESET.write_text("5")
    except OSError:
        return


def _peak() -> float:
    """Return the peak memory of this process since ``_forget_peak``, in GB."""
    if _STATUS.exists():
        for line in _STATUS.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return round(int(line.split()[1]) * 1024 / 1e9, 2)
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9, 2)
