"""Speed and size of the index on synthetic streams, on one core, beside the floor of the memory that it must touch.

    python -m benchmarks.kernel [--json] [--quick] [--stream ads]... [--turns 5] [--against COMMIT]

Beside the synthetic streams there are ``wide``, in which ``fsu`` has a finite ``memory`` and nearly all of its votes
come from wide blocks, and ``newsgroups20``, the training part of that data set, if ``ABOUND_DATA`` names the folder of
the data sets.

In one run for each stream:

- ``learn``: one pass from an empty index, with room made before. Its floor is the gather floor
  (``benchmarks.gather_floor``) of the same postings: gone through for the same instances at the state that the index
  has when it learns them.
- ``again``: the same pass over the index that has learned the stream, as in a second pass.
- ``grow``: the pass from an empty index whose arrays grow on the way.
- ``names`` and ``names again``: the first and a second pass through a model, from records with string keys.
- ``classify``: the ten best classes by the index that has learned the stream. ``again`` and ``classify`` have the floor
  of that index.
- Bytes a connection: headers and blocks up to the arena's front, with what is free in between.

The same for the update rule ``sls``, with its times as multiples of those of ``fsu``; they take turns too.

A stream is cut into slices, floors and kernels take turns, and the best time of each slice counts. Times are those that
the thread had a processor, so that other programs on the machine disturb less; run it on an idle one all the same.

``--against COMMIT`` runs this program and that of another commit at the same time, each with its own code. The two
processes take turns slice by slice, so that both meet the same moods of the machine. It prints the time of this one
as a multiple of the other's, and whether both end with the same digests. Below 1 is faster; differences below 2 to 3 %
mean nothing. A commit whose code is not the one that Python imports from its checkout is refused.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numba import njit

from abound_core.config import ModelConfig
from abound_core.index import learning_kernels as learning
from abound_core.index.index import ALL_CLASSES, Index
from abound_core.index.layout_kernels import Feedback
from abound_core.index.params import IndexParams
from abound_core.index.rank_kernels import rank_classes
from abound_core.model.live_model import LiveModel
from benchmarks import sets
from benchmarks.gather_floor import gather
from benchmarks.streams import SHAPES, Stream, draw, records

ROOT = Path(__file__).parents[1]
CONFIGS = {"fsu": ModelConfig(w_min=0.01, d_max=25, margin=0.5), "sls": ModelConfig(update="sls")}
STREAMS = SHAPES | {"wide": replace(SHAPES["ads"], n_instances=100_000)}
MEMORY = {"wide": 2.0}
"""Streams with a finite ``memory`` for ``fsu``."""

DATA_SET = "newsgroups20"
K = 10
MOST_ACTIVE, MOST_LABELS = 65_536, 64
SLICES = 40
FLOORS = {"learn": "floor_learn", "grow": "floor_learn", "again": "floor", "classify": "floor"}


@njit(nogil=True)
def given(params, values, scratch):
    """The values for a kernel that may write into them, as ``sls`` does: a copy, as applying makes one."""
    if not params.squares:
        return values
    scratch[: len(values)] = values
    return scratch[: len(values)]


@njit(nogil=True)
def learn_slice(arrays, params, starts, ids, values, label_starts, class_ids, first, last):
    """Learn instances ``first`` to ``last``; where the index must grow first, or ``last``."""
    ranks, scratch = np.empty(MOST_LABELS, np.int32), np.empty(MOST_ACTIVE, np.float32)
    for i in range(first, last):
        own, true = slice(starts[i], starts[i + 1]), slice(label_starts[i], label_starts[i + 1])
        if not learning.has_room(arrays, params, ids[own], class_ids[true]):
            return i
        own_values = given(params, values[own], scratch)
        feedback = Feedback(true.stop - true.start, 0, 1.0, False)
        learning.learn_feedback(arrays, params, ids[own], own_values, class_ids[true], feedback, True, ranks)
    return last


@njit(nogil=True)
def rank_slice(arrays, params, starts, ids, values, mask, class_ids_out, scores_out, first, last):
    """Rank the classes for instances ``first`` to ``last``; the sum of the best scores."""
    total, scratch = 0.0, np.empty(MOST_ACTIVE, np.float32)
    for i in range(first, last):
        own = slice(starts[i], starts[i + 1])
        own_values = given(params, values[own], scratch)
        rank_classes(arrays, params, ids[own], own_values, mask, class_ids_out, scores_out)
        total += scores_out[0]
    return total


def take_turns() -> None:
    """Let the other process work, and wait until it has done its slice."""
    print(flush=True)
    if not sys.stdin.readline():
        raise SystemExit("the process that compares has ended")


class Bench:
    """Measures one stream; ``best`` has the best seconds of each slice for each kind of work.

    ``pace`` is called before each slice.
    """

    def __init__(self, stream: Stream, config: ModelConfig, pace: Callable[[], None] = lambda: None) -> None:
        self.stream, self.config, self.pace = stream, config, pace
        self.params = IndexParams.of(config)
        self.cuts = np.linspace(0, stream.n_instances, SLICES + 1).astype(int).tolist()
        self.best: dict[str, np.ndarray] = defaultdict(lambda: np.full(SLICES, np.inf))
        self.learned = Index(self.params)
        self.class_ids, self.scores = np.empty(K, np.int32), np.empty(K)
        for first, last in ((0, 0), *zip(self.cuts[:-1], self.cuts[1:], strict=True)):
            self.learn(self.learned, first, last)
        for work in (self.classify, self.floor):
            work(self.learned, 0, 1)
        self.buffer, self.at = records(stream, stream.n_instances), 0
        self.learn_names(LiveModel(config, (1, 2)), 0, 1)

    def learn(self, index: Index, first: int, last: int) -> None:
        """Learn a slice of the stream; the index grows where it must."""
        s = self.stream
        while True:
            done = learn_slice(index.arrays, index.kernel_params, *s, first, last)
            if done == last:
                return
            own, true = slice(s.starts[done], s.starts[done + 1]), slice(s.label_starts[done], s.label_starts[done + 1])
            index.make_room_for(s.ids[own], s.class_ids[true])
            first = done

    def classify(self, index: Index, first: int, last: int) -> None:
        """Rank the classes for a slice of the stream."""
        s = self.stream
        out = (self.class_ids, self.scores)
        rank_slice(index.arrays, index.kernel_params, s.starts, s.ids, s.values, ALL_CLASSES, *out, first, last)

    def floor(self, index: Index, first: int, last: int) -> None:
        """Touch what a slice of the stream must touch."""
        gather(index.arrays, self.stream.starts, self.stream.ids, index.kernel_params.d_max, first, last)

    def roomy(self) -> Index:
        """An empty index with room for the whole stream."""
        index = Index(self.params)
        index.make_room(self.stream.n_features, self.stream.n_classes, 1, len(self.learned.arrays.arena) * 5 // 4)
        return index

    def timed(
        self, name: str, work: Callable[..., None], index: Index | LiveModel, then: Callable[..., None] | None = None
    ) -> None:
        """Do the work slice by slice, and after each slice, not timed, ``then``."""
        for i in range(SLICES):
            own = (index, self.cuts[i], self.cuts[i + 1])
            self.pace()
            start = time.thread_time()
            work(*own)
            self.best[name][i] = min(self.best[name][i], time.thread_time() - start)
            if then:
                then(*own)

    def turn(self) -> None:
        """Every kind of work once."""
        self.timed("floor", self.floor, self.learned)
        self.timed("classify", self.classify, self.learned)
        self.timed("floor_learn", self.floor, self.roomy(), self.learn)
        self.timed("learn", self.learn, self.roomy())
        self.timed("grow", self.learn, Index(self.params))
        copy = Index.from_arrays(self.params, self.learned.to_arrays())
        copy.make_room(self.stream.n_features, self.stream.n_classes, 1, 1_000_000)
        self.timed("again", self.learn, copy)
        self.model = LiveModel(self.config, (1, 2))
        for name in ("names", "names_again"):
            self.at = 0
            self.timed(name, self.learn_names, self.model)

    def learn_names(self, model: LiveModel, first: int, last: int) -> None:
        """Learn the next slice of the stream from records with string keys; the model grows where it must."""
        n, done = last - first, 0
        ranks, updated = np.zeros(n, np.int32), np.zeros(n, np.bool_)
        while done < n:
            self.at, now = model.apply(self.buffer, self.at, ranks[done : done + 32], updated[done : done + 32])
            done += now

    def figures(self) -> dict[str, Any]:
        """Speeds, sizes and ratios."""
        n, connections = self.stream.n_instances, self.learned.n_connections
        lengths = self.learned.to_arrays()["lengths"]
        result: dict[str, Any] = {
            "instances": n,
            "active": len(self.stream.ids) / n,
            "features": self.learned.n_features,
            "classes": self.stream.n_classes,
            "connections": connections,
            "votes_per_feature": float(
                np.minimum(lengths[self.stream.ids], int(self.learned.kernel_params.d_max)).mean()
            ),
            "bytes_per_connection": self.learned.n_bytes_used / connections,
            "bytes_per_connection_with_room": self.learned.n_bytes / connections,
            "digest": self.learned.digest().hex(),
            "names_digest": self.model.index.digest().hex(),
        }
        for name in ("names", "names_again"):
            result[f"{name}_per_s"] = n / float(self.best[name].sum())
        for name, floor in FLOORS.items():
            best = float(self.best[name].sum())
            result |= {
                f"{name}_per_s": n / best,
                f"{name}_over_floor": best / float(self.best[floor].sum()),
            }
        for name in ("floor", "floor_learn"):
            result[f"{name}_us"] = 1e6 * float(self.best[name].sum()) / n
        return result


def measured(
    stream: Stream, turns: int, memory: float | None, pace: Callable[[], None] = lambda: None
) -> dict[str, Any]:
    """The figures of ``fsu``, and of ``sls`` under its name."""
    configs = CONFIGS | {"fsu": replace(CONFIGS["fsu"], memory=memory)}
    benches = {update: Bench(stream, config, pace) for update, config in configs.items()}
    for _ in range(turns):
        for bench in benches.values():
            bench.turn()
    figures: dict[str, Any] = {update: bench.figures() for update, bench in benches.items()}
    for kind in FLOORS:
        figures["sls"][f"{kind}_over_fsu"] = figures["fsu"][f"{kind}_per_s"] / figures["sls"][f"{kind}_per_s"]
    return figures["fsu"] | {"sls": figures["sls"]}


def shown(name: str, result: dict[str, Any]) -> str:
    """The figures of a stream for people."""
    lines = [
        f"{name}: {result['instances']:,} instances x {result['active']:.1f} features, {result['classes']:,} classes"
    ]
    for update, own in (("fsu", result), ("sls", result["sls"])):
        size, roomy = own["bytes_per_connection"], own["bytes_per_connection_with_room"]
        lines += [
            f"  {update}: {own['connections']:,} connections, {size:.1f} bytes each, {roomy:.1f} with room to grow; "
            f"{own['votes_per_feature']:.1f} votes a feature; floor {own['floor_us']:.2f} us an instance",
            *[
                f"  {kind:9} {own[f'{kind}_per_s']:10,.0f} /s  {own[f'{kind}_over_floor']:5.2f} x its floor"
                + (f"  {own[f'{kind}_over_fsu']:5.2f} x fsu" if update == "sls" else "")
                for kind in FLOORS
            ],
            f"  names     {own['names_per_s']:10,.0f} /s, again {own['names_again_per_s']:,.0f} /s",
        ]
    return "\n".join(lines)


def arrays_of_data_set() -> Path:
    """The file with the arrays of the data set, made on first use."""
    sets.load(DATA_SET, sets.data_folder(None), sets.default_folder())
    return sets.default_folder() / f"{DATA_SET}.words.npz"


def stream_of(name: str, n: int | None, file: Path | None) -> Stream:
    """A stream, or its first ``n`` instances; ``file`` has the arrays of the data set."""
    if name != DATA_SET:
        shape = STREAMS[name]
        return draw(replace(shape, n_instances=min(n or shape.n_instances, shape.n_instances)), seed=1)
    assert file is not None
    with np.load(file, allow_pickle=False) as arrays:
        starts, ids, values, label_starts, class_ids = (
            arrays[f"train_{field}"] for field in ("starts", "ids", "values", "label_starts", "label_ids")
        )
    n = min(n or len(starts) - 1, len(starts) - 1)
    features, labels = slice(starts[n]), slice(label_starts[n])
    return Stream(starts[: n + 1], ids[features], values[features], label_starts[: n + 1], class_ids[labels])


@contextmanager
def checkout_of(commit: str) -> Iterator[Path]:
    """A checkout of a commit, as long as it is needed."""
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder, "tree")
        subprocess.run(["git", "worktree", "add", "--quiet", "--detach", tree, commit], check=True, cwd=ROOT)
        try:
            yield tree
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", tree], check=True, cwd=ROOT)


def environment_of(tree: Path) -> dict[str, str]:
    """The environment in which Python imports the code of a checkout and no other."""
    roots = [tree / "core", tree / "service"] if (tree / "core" / "abound_core").is_dir() else []
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, (*roots, tree)))}
    program = "import sys, benchmarks.kernel as own; print(sys.modules[own.Index.__module__].__file__)"
    run = [sys.executable, "-P", "-c", program]
    done = subprocess.run(run, env=environment, cwd=tree, capture_output=True, text=True)
    if done.returncode or not Path(done.stdout.strip()).resolve().is_relative_to(tree.resolve()):
        raise SystemExit(f"cannot compare: the index of {tree} is not imported from there\n{done.stdout}{done.stderr}")
    return environment


def in_turns(arguments: list[str], code: dict[str, Path]) -> dict[str, dict[str, dict[str, Any]]]:
    """Run this program with each code, slice by slice in turns; for each the figures by "stream update"."""
    run = [sys.executable, "-P", "-m", "benchmarks.kernel", "--json", "--paced", *arguments]
    processes, figures = {}, {}
    with tempfile.TemporaryDirectory() as caches, ExitStack() as running:
        for name, tree in code.items():
            environment = environment_of(tree) | {"NUMBA_CACHE_DIR": f"{caches}/{name}"}
            pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
            process = subprocess.Popen(run, env=environment, cwd=tree, **pipes)
            processes[name] = running.enter_context(process)
        for process in processes.values():
            answer_of(process)
        for name in itertools.cycle((*code, *reversed(code))):
            if not processes:
                break
            if name in processes:
                print(file=processes[name].stdin, flush=True)
                answer = answer_of(processes[name])
                if answer != "\n":
                    figures[name] = json.loads(answer)
                    del processes[name]
    return {name: by_update(own) for name, own in figures.items()}


def answer_of(process: subprocess.Popen[str]) -> str:
    """Wait until a process has done its slice; return an empty line, or all of its figures."""
    assert process.stdout is not None
    answer = process.stdout.readline()
    if not answer:
        raise subprocess.CalledProcessError(process.wait(), process.args)
    return answer


def by_update(streams: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """The figures of each "stream update"."""
    return {
        f"{stream} {update}": own
        for stream, figures in streams.items()
        for update, own in (("fsu", figures), ("sls", figures["sls"]))
    }


def compared(this: dict[str, dict[str, Any]], other: dict[str, dict[str, Any]]) -> str:
    """The times of this code as multiples of those of the other, a line for each stream and update rule."""
    kinds = [key for key in next(iter(this.values())) if key.endswith("_per_s")]
    lines = [" " * 14 + "".join(f"{kind.removesuffix('_per_s').replace('_', ' '):>13}" for kind in kinds)]
    for name, own in this.items():
        same = all(own[key] == other[name][key] for key in ("digest", "names_digest"))
        ratios = "".join(f"{other[name][kind] / own[kind]:13.3f}" for kind in kinds)
        lines.append(f"{name:14}{ratios}  {'same digests' if same else 'OTHER DIGESTS'}")
    return "\n".join(lines)


def main() -> None:
    """Measure the streams that were asked for."""
    parser = argparse.ArgumentParser(description="Speed and size of the index beside its gather floor.")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--quick", action="store_true", help="a tenth of each synthetic stream, two turns")
    parser.add_argument("--instances", type=int, help="at most so many of each stream")
    parser.add_argument(
        "--stream", action="append", choices=[*STREAMS, DATA_SET], help="only this one; may be repeated"
    )
    parser.add_argument("--turns", type=int, help="how often floors and kernels take turns")
    parser.add_argument("--against", metavar="COMMIT", help="compare this checkout with a commit")
    parser.add_argument("--paced", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--arrays", type=Path, help=f"the file with the arrays of {DATA_SET}; made if not given")
    options = parser.parse_args()
    streams = options.stream or [*STREAMS, *[DATA_SET] * ("ABOUND_DATA" in os.environ)]
    if DATA_SET in streams and options.arrays is None:
        options.arrays = arrays_of_data_set()
    if options.against:
        chosen = [part for stream in streams for part in ("--stream", stream)] + ["--quick"] * options.quick
        for name in ("turns", "instances", "arrays"):
            given = getattr(options, name)
            chosen += [f"--{name}", str(given)] if given is not None else []
        with checkout_of(options.against) as other:
            figures = in_turns(chosen, {"this": ROOT, "other": other})
        print(compared(figures["this"], figures["other"]))
        return
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    results = {}
    for name in streams:
        n = options.instances
        if options.quick and n is None and name in STREAMS:
            n = STREAMS[name].n_instances // 10
        turns = options.turns or (2 if options.quick or name == "sparse" else 5)
        pace = [take_turns] * options.paced
        results[name] = measured(stream_of(name, n, options.arrays), turns, MEMORY.get(name), *pace)
        if not options.json:
            print(shown(name, results[name]), flush=True)
    if options.json:
        print(json.dumps(results))


if __name__ == "__main__":
    main()
