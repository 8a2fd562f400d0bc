"""The live index beside other libraries: the same instances, vectors and splits, each in a process of its own.

    python -m benchmarks.libraries [--json] [--only SET]... [--rival NAME]... [--on] [--seconds 300] [--plot FILE]
        [--kept DIR]

One pass of the training part in a fixed random order (sets in time: in their order), then the test part is ranked:
R@1, R@5, MRR (of the best 100) and P@5, instances learned and classified a second of one processor, the most memory
that the process grew by, the model on disk. A rival gets ``--seconds`` of a processor for all of it, and is reported as
ended if that was not enough. ``--on`` adds the figures of a test in which each instance is learned once it is ranked:
online rivals are not given labels that the training part lacks, and batch rivals are fitted again every 500 instances.

Fair to the rivals: each is used as its documentation has it (``benchmarks/rivals``), with features as the product's
vectorizer makes them. Vowpal Wabbit and fastText are given lines of text and the live index lines of JSON, whose
parsing counts for them; the live index learns 100 lines at a time and writes its five best labels as JSON.
scikit-learn, river, omikuji and 20-NN get arrays or dicts that are made before the clock runs. Batch rivals get tf-idf
weights.

The rivals live in an environment that is made on first use beside the results (``--kept``), from
``benchmarks/rivals/requirements.txt``. What was measured is kept in ``libraries.json`` there and not measured again.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
import venv
from itertools import product
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from abound_core.config import ModelConfig
from abound_core.instances.record import pack_labels
from abound_core.instances.vectorizer import Vectorizer
from abound_core.limits import DATASET_LIMITS
from abound_core.model.entry_application import Unit
from abound_core.model.live_model import LiveModel
from benchmarks.rivals.instances import measures
from benchmarks.rivals.peak import peak, start_peak
from benchmarks.sets import IN_TIME, NAMES, Rows, Task, data_folder, default_folder, load

HERE = Path(__file__).parent
SETS = ("clinc150", "bibtex", "reuters21578", "newsgroups20", "commits-git", "wordnet-hypernyms")
OWN: dict[str, dict[str, Any]] = {
    "abound sls": {"update": "sls"},
    "abound fsu": {},
    "abound fsu margin .5": {"margin": 0.5},
}
ONE_LABEL = ("vw oaa",)
MANY_LABELS = ("vw multilabel_oaa",)
"""Rivals for sets of one label an instance, and for the others only."""

RIVALS = (
    *("vw oaa", "vw multilabel_oaa", "vw ect", "vw plt", "vw recall_tree", "vw log_multi"),
    *("river MultinomialNB", "sklearn SGD partial_fit", "sklearn LinearSVC", "fastText", "omikuji", "20-NN"),
)
DEPTH = 100
BATCH = 100
MEASURES = ("R@1", "R@5", "MRR", "P@5")


def prepared(task: Task, name: str, kept: Path) -> Path:
    """The file of arrays that rivals read: what is to be learned, in order, and the test part."""
    path = kept / f"{name}.problem.npz"
    if not path.exists():
        arrays = {
            f"{part}_{field}": getattr(rows, field) for part, rows in parts(task, name).items() for field in FIELDS
        }
        np.savez(path, **arrays)
    return path


FIELDS = Rows.__slots__


def parts(task: Task, name: str) -> dict[str, Rows]:
    """The training part in the order in which it is learned, and the test part."""
    places = task.train.labelled
    if name not in IN_TIME:
        places = np.random.default_rng(0).permutation(places)
    return {"train": task.train.taken(places), "test": task.test}


def lines(rows: Rows) -> list[bytes]:
    """The features of each instance as a JSON object."""
    bounds = zip(rows.starts[:-1].tolist(), rows.starts[1:].tolist(), strict=True)
    return [
        b"{%b}"
        % b",".join(b'"%d":%.6g' % pair for pair in zip(rows.ids[a:b].tolist(), rows.values[a:b].tolist(), strict=True))
        for a, b in bounds
    ]


def labels_of(rows: Rows) -> list[list[str]]:
    """The labels of each instance."""
    bounds = zip(rows.label_starts[:-1].tolist(), rows.label_starts[1:].tolist(), strict=True)
    return [[str(label) for label in rows.label_ids[a:b].tolist()] for a, b in bounds]


def own(rows: dict[str, Rows], config: ModelConfig, on: bool) -> dict[str, Any]:
    """The live index: JSON in, answers out as JSON."""
    train, test = lines(rows["train"]), lines(rows["test"])
    train_labels, test_labels = labels_of(rows["train"]), labels_of(rows["test"])
    vectorize, encode = Vectorizer(config, DATASET_LIMITS).vectorize, msgspec.json.Encoder().encode

    def learn(model: LiveModel, instances: list[bytes], labels: list[list[str]]) -> None:
        pairs = zip(instances, labels, strict=True)
        records = b"".join(vectorize(line, None) + pack_labels(own, DATASET_LIMITS) for line, own in pairs)
        model.begin(records, len(instances), [Unit(n=len(instances))]).finish()

    def classify(model: LiveModel, line: bytes, k: int) -> bytes:
        ranking = model.rank(vectorize(line, None), k)
        names = [model.label(class_id) for class_id in ranking.class_ids.tolist()]
        return encode({"labels": names, "scores": ranking.scores.tolist()})

    warm = LiveModel(config, (1, 2), DATASET_LIMITS)
    learn(warm, train[:1], train_labels[:1])
    classify(warm, train[0], 5)
    before = start_peak()
    model = LiveModel(config, (1, 2), DATASET_LIMITS)
    started = time.process_time()
    for at in range(0, len(train), BATCH):
        learn(model, train[at : at + BATCH], train_labels[at : at + BATCH])
    learned = time.process_time()
    for line in test:
        classify(model, line, 5)
    done = time.process_time()
    grown = peak() - before
    answers = []
    for line, labels in zip(test, test_labels, strict=True):
        answers.append(classify(model, line, DEPTH))
        if on and labels:
            learn(model, [line], [labels])
    figures = measures([msgspec.json.decode(answer)["labels"] for answer in answers], test_labels)
    return figures | {
        "learn/s": len(train) / (learned - started),
        "classify/s": len(test) / (done - learned),
        "seconds": done - started,
        "memory": grown,
        "model": sum(array.nbytes for array in model.to_arrays().values()),
    }


def environment(kept: Path) -> Path:
    """The interpreter of the rivals' environment, made on first use."""
    folder = kept / "rivals"
    python = folder / "bin" / "python"
    stamp, wanted = folder / "requirements.txt", (HERE / "rivals" / "requirements.txt").read_text()
    if not stamp.exists() or stamp.read_text() != wanted:
        venv.create(folder, with_pip=True, clear=True)
        command = [python, "-m", "pip", "install", "--quiet", "-r", HERE / "rivals" / "requirements.txt"]
        subprocess.run(command, check=True)
        stamp.write_text(wanted)
    return python


def rival(python: Path, arrays: Path, name: str, seconds: int, on: bool) -> dict[str, Any]:
    """The figures of a rival, or how it ended."""
    with tempfile.TemporaryDirectory() as folder:
        command = [python, "-m", "benchmarks.rivals.run", arrays, name, str(seconds), *(["on"] if on else [])]
        done = subprocess.run(command, cwd=HERE.parent, capture_output=True, text=True, check=False, env=alone(folder))
    if done.returncode == 0:
        figures: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return figures
    if done.returncode in (-24, -9):
        return {"ended": f"not done in {seconds} s of a processor"}
    return {"ended": (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1][:200]}


def alone(folder: str) -> dict[str, str]:
    """Environment variables for one thread, a folder for what is temporary, and what ``benchmarks`` itself imports."""
    one = {f"{name}_NUM_THREADS": "1" for name in ("OMP", "OPENBLAS", "MKL")}
    roots = ":".join(str(HERE.parent / root) for root in ("core", "service"))
    return one | {"PATH": "/usr/bin:/bin", "TMPDIR": folder, "PYTHONPATH": roots}


def measured(name: str, who: str, task: Task, kept: Path, seconds: int, on: bool) -> dict[str, Any]:
    """The figures of one of them on one set."""
    if who in OWN:
        command = [sys.executable, "-m", "benchmarks.libraries", "--own", who, "--only", name, "--kept", str(kept)]
        command += ["--on"] if on else []
        done = subprocess.run(command, cwd=HERE.parent, capture_output=True, text=True, check=True)
        figures: dict[str, Any] = json.loads(done.stdout)
        return figures
    return rival(environment(kept), prepared(task, name, kept), who, seconds, on)


def shown(name: str, who: str, figures: dict[str, Any]) -> str:
    """A line of the table."""
    if "ended" in figures:
        return f"| {name} | {who} | {figures['ended']} |"
    told = [f"{100 * figures[key]:.1f}" if figures[key] is not None else "" for key in MEASURES]
    told += [f"{figures['learn/s']:,.0f}", f"{figures['classify/s']:,.0f}"]
    told += ["" if figures[key] is None else f"{figures[key] / 1e6:.1f}" for key in ("memory", "model")]
    return f"| {name} | {who} | {' | '.join(told)} |"


def plot(done: dict[str, dict[str, Any]], path: Path) -> None:
    """Accuracy against time, a panel a set; needs matplotlib (the extra ``bench``)."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot, ticker

    done = {key: figures for key, figures in done.items() if not key.endswith("|on")}
    names = [name for name in NAMES if any(key.startswith(f"{name}|") for key in done)]
    columns = min(3, len(names))
    rows = -(-len(names) // columns)
    figure, panels = pyplot.subplots(rows, columns, figsize=(5.2 * columns, 4 * rows), squeeze=False)
    for panel, name in zip(panels.flat, names, strict=False):
        for key, figures in done.items():
            if key.startswith(f"{name}|") and "ended" not in figures:
                who = key.split("|")[1]
                panel.scatter(figures["seconds"], 100 * figures["R@1"], c="C3" if who in OWN else "C0", s=22)
                panel.annotate(
                    who,
                    (figures["seconds"], 100 * figures["R@1"]),
                    fontsize=7,
                    xytext=(3, 3),
                    textcoords="offset points",
                )
        panel.set(xscale="log", title=name, xlabel="seconds to learn and classify", ylabel="R@1")
        panel.xaxis.set_minor_formatter(ticker.NullFormatter())
        panel.margins(x=0.25)
    for panel in panels.flat[len(names) :]:
        panel.set_axis_off()
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    """Measure what was asked for and is not there yet."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.libraries", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", action="store_true", help="one JSON object a set and library")
    parser.add_argument("--only", action="append", choices=list(NAMES), help="these sets")
    parser.add_argument("--rival", action="append", choices=[*OWN, *RIVALS], help="these libraries")
    parser.add_argument("--on", action="store_true", help="also with each test instance learned once it is ranked")
    parser.add_argument("--seconds", type=int, default=300, help="of a processor, for each rival and set")
    parser.add_argument("--plot", type=Path, help="draw accuracy against time of all that was measured")
    parser.add_argument("--data", type=Path, help="folder of the data sets")
    parser.add_argument("--kept", type=Path, default=default_folder(), help="folder of arrays, results, environment")
    parser.add_argument("--own", choices=list(OWN), help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.kept.mkdir(parents=True, exist_ok=True)
    if options.own:
        name = options.only[0]
        rows = parts(load(name, Path(), options.kept), name)
        print(json.dumps(own(rows, ModelConfig(calibrate=False, **OWN[options.own]), options.on)))
        return
    path = options.kept / "libraries.json"
    done = json.loads(path.read_text()) if path.exists() else {}
    for name in options.only or SETS:
        task = load(name, data_folder(options.data), options.kept)
        single = bool((np.diff(task.train.label_starts) == 1).all())
        for who, on in product(options.rival or (*OWN, *RIVALS), (False, True) if options.on else (False,)):
            if who in (MANY_LABELS if single else ONE_LABEL):
                continue
            key = f"{name}|{who}" + ("|on" if on else "")
            if key not in done:
                done[key] = measured(name, who, task, options.kept, options.seconds, on)
                path.write_text(json.dumps(done, indent=1))
            told = json.dumps({"set": name, "library": who, "on": on} | done[key])
            print(told if options.json else shown(name, who + (", learning on" if on else ""), done[key]), flush=True)
    if options.plot:
        plot(done, options.plot)


if __name__ == "__main__":
    main()
