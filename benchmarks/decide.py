"""Decisions: what `decide` saves of a teacher's calls, and whether the answers agree as often as promised.

    python -m benchmarks.decide [PART]... [--data DIR] [--only SET]... [--shuffles 1000] [--first-shuffle 0]

In a **loop** an application classifies each instance. It applies the labels of an ``answer``; it asks the teacher, and
sends the true labels to be learned, if the model defers, says none, or audits. **Calls** are these questions,
**agreement** is the share of the applied labels that are true. Each loop begins with an empty model (``update: sls``,
an encoder for texts). Parts:

- ``streams``: loops of three sets for three targets, beside a fixed rule (answer if the probability is at least .9, 5 %
  audited) and beside the best fixed threshold in hindsight: the one of ``FIXED`` with the fewest calls that meets the
  target;
- ``shuffles``: how often the final agreement of clinc150 misses the target of .95, in random orders;
- ``permuted``: the same set, with labels that are exchanged half-way;
- ``strangers``: clinc150's utterances of no class, without and with examples of none;
- ``few``: probabilities of strangers after five examples of each of a few intents;
- ``several``: sets with several labels: precision and recall of the applied labels;
- ``suspicious``: labels exchanged at random: how well they are found;
- ``cost``: microseconds of a processor to learn and to rank, with and without.

The program ends with exit code 1 if a line of the proof does not hold.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from abound.processes.encoder_files import use_encoders
from abound_core.config import ModelConfig
from abound_core.instances.data_formats import Dataset, DatasetInstance, vectorize_all
from abound_core.instances.record import pack_labels
from abound_core.instances.vectorizer import Vectorizer
from abound_core.limits import DATASET_LIMITS
from abound_core.model.entry_application import Unit
from abound_core.model.live_model import LiveModel
from abound_core.numba.top_k import N_BEST
from abound_core.types import Offset
from benchmarks.sets import NAMES, data_folder, read_file

TARGETS = (0.9, 0.95, 0.98)
FIXED = (0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9, 0.94, 0.97)
BLOCK = 1000
TEXTS = ("clinc150", "newsgroups20", "commits-git")
SEVERAL = ("reuters21578", "rcv1v2", "bibtex")
IN_TIME = "commits-git"
MOST = 25_000  # instances of a set
AUDIT = 0.05


def config(target: float | None = 0.95, encoder: bool = True, **settings: Any) -> ModelConfig:
    decide = target and {"agreement": target, "audit": AUDIT} | settings
    plain = {"update": "sls", "calibrate": True, "decide": decide}
    return ModelConfig.from_dict(plain | {"analyzer": {"embed": "wordllama" if encoder else None}})


class Stream(NamedTuple):
    """Instances in order: their vectors, and their labels as a part of a record and as strings."""

    vectors: Sequence[bytes]
    labels: list[tuple[str, ...]]

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, order: Iterable[int]) -> Stream:
        order = list(order)
        return Stream([self.vectors[i] for i in order], [self.labels[i] for i in order])


def vectorize(rows: list[DatasetInstance], encoder: bool = True) -> Stream:
    parts: Dataset = vectorize_all(rows, Vectorizer(config(encoder=encoder), DATASET_LIMITS), DATASET_LIMITS)
    return Stream([parts.vectors[i] for i in range(len(rows))], [row.labels for row in rows])


def read(data: Path, name: str) -> Stream:
    """Return a set in order of time, or else all of its parts in one random order."""
    rows: list[DatasetInstance] = []
    for part in ("train", "valid", "test"):
        path = data / name / f"{part}.{NAMES[name]}.gz"
        rows += [row for row in read_file(str(path)) if row.labels] if path.exists() else []
    if name != IN_TIME:
        rows = [rows[i] for i in np.random.default_rng(0).permutation(len(rows))]
    return vectorize(rows[:MOST], encoder=name in TEXTS or name == "reuters21578")


@dataclass(frozen=True, slots=True)
class Loop:
    """What happened to each instance of a loop; ``applied`` and ``right`` are numbers of labels."""

    asked: npt.NDArray[np.bool_]
    applied: npt.NDArray[np.int64]
    right: npt.NDArray[np.int64]
    true: npt.NDArray[np.int64]
    none: npt.NDArray[np.bool_]

    def agreement(self, part: slice | npt.NDArray[np.bool_] = slice(None)) -> float:
        n = self.applied[part].sum()
        return float(self.right[part].sum() / n) if n else float("nan")

    @property
    def answered(self) -> npt.NDArray[np.bool_]:
        return self.applied > 0

    def blocks(self, first: int = 0) -> list[float]:
        """Return the agreement of each full block of answered instances from ``first`` on."""
        right, n = self.right[first:][self.answered[first:]], self.applied[first:][self.answered[first:]]
        return [
            float(right[at : at + BLOCK].sum() / n[at : at + BLOCK].sum()) for at in range(0, len(n) - BLOCK + 1, BLOCK)
        ]

    def row(self) -> str:
        share = [f"{self.answered[at : at + BLOCK].mean():.2f}" for at in range(0, len(self.asked), 5 * BLOCK)]
        return (
            f"calls {self.asked.sum():6,} of {len(self.asked):,}  agreement {self.agreement():.4f}  "
            f"answered {self.answered.mean():.3f} (in blocks: {' '.join(share)})  none {self.none.mean():.3f}  "
            f"worst block {min(self.blocks(), default=float('nan')):.3f}"
        )


def learn(live: LiveModel, vector: bytes, labels: Sequence[str], none: bool = False) -> None:
    live.begin(vector + pack_labels(labels, DATASET_LIMITS, none=none), 1, [Unit(1)]).finish()


def loop(stream: Stream, target: float = 0.95, fixed: float | None = None) -> Loop:
    """Run a loop by decisions, or by a fixed probability of the first label and audits drawn at random."""
    live, n, rng = LiveModel(config(target), (1, 2)), len(stream), np.random.default_rng(0)
    asked, none = np.ones(n, np.bool_), np.zeros(n, np.bool_)
    applied, right = np.zeros(n, np.int64), np.zeros(n, np.int64)
    for at, (vector, labels) in enumerate(zip(stream.vectors, stream.labels, strict=True)):
        given = live.decide(vector, 1)
        answers, none[at] = given.decision == "answer", given.decision == "none"
        asked[at] = not answers or given.audit
        if fixed is not None:
            answers = len(given.ranking.scores) > 0 and given.ranking.probabilities[0] >= fixed  # type: ignore[index]
            asked[at] = not answers or rng.random() < AUDIT
        if answers:
            chosen = given.applied if fixed is None else given.ranking.first(1)
            names = [live.label(class_id) for class_id in chosen.class_ids.tolist()]
            applied[at], right[at] = len(names), len(set(names) & set(labels))
        if asked[at]:
            learn(live, vector, labels)
    return Loop(asked, applied, right, np.array([len(labels) for labels in stream.labels]), none)


def streams(args: argparse.Namespace) -> bool:
    holds = True
    for name in args.only or TEXTS:
        stream = read(args.data, name)
        fixed = {threshold: loop(stream, fixed=threshold) for threshold in FIXED}
        print(f"{name}\n  fixed .9             {fixed[0.9].row()}", flush=True)
        for target in TARGETS:
            one = loop(stream, target)
            print(f"  target {target:.2f}          {one.row()}", flush=True)
            holds &= not one.answered.any() or one.agreement() >= target
            good = [(f.asked.sum(), threshold) for threshold, f in fixed.items() if f.agreement() >= target]
            if good:
                print(f"    in hindsight p>={min(good)[1]:.2f} {fixed[min(good)[1]].row()}", flush=True)
    return holds


def shuffles(args: argparse.Namespace) -> bool:
    stream, found = read(args.data, "clinc150"), []
    for seed in range(args.first_shuffle, args.first_shuffle + args.shuffles):
        one = loop(stream.take(np.random.default_rng(seed).permutation(len(stream)).tolist()))
        found.append((one.agreement(), int(one.asked.sum())))
        if len(found) % 10 == 0:
            missed = sum(agreement < 0.95 for agreement, _ in found)
            least, mean = min(found)[0], np.mean([agreement for agreement, _ in found])
            calls = np.mean([calls for _, calls in found])
            print(
                f"{len(found)} orders: {missed} miss; mean {mean:.4f}, least {least:.4f}, {calls:.0f} calls", flush=True
            )
    return sum(agreement < 0.95 for agreement, _ in found) <= 0.05 * len(found)


def permuted(args: argparse.Namespace) -> bool:
    stream, good = read(args.data, "clinc150"), True
    names = sorted({label for labels in stream.labels for label in labels})
    for seed in range(3):
        other = dict(zip(names, np.random.default_rng(seed).permutation(names).tolist(), strict=True))
        half = len(stream) // 2
        labels = [one if at < half else tuple(other[x] for x in one) for at, one in enumerate(stream.labels)]
        after = loop(Stream(stream.vectors, labels)).blocks(half)
        print(f"permutation {seed}: blocks of answered instances", " ".join(f"{one:.3f}" for one in after), flush=True)
        good &= all(one >= 0.90 for one in after[1:])
    return good


def strangers(args: argparse.Namespace) -> bool:
    folder = args.data / "clinc150"
    parts = [vectorize(list(read_file(str(folder / f"{part}.jsonl.gz")))) for part in ("train", "test")]
    rows = list(read_file(str(folder / "out_of_scope.jsonl.gz")))
    return show_strangers(*parts, vectorize(rows).vectors)


def auroc(high: npt.NDArray[np.float64], low: npt.NDArray[np.float64]) -> float:
    order = np.argsort(np.concatenate([low, high]), kind="stable")
    ranks = np.empty(len(order))
    ranks[order] = np.arange(1, len(order) + 1)
    return float((ranks[len(low) :].sum() - len(high) * (len(high) + 1) / 2) / len(high) / len(low))


def show_strangers(train: Stream, test: Stream, unknown: Sequence[bytes]) -> bool:
    examples, unknown, good = unknown[:200], unknown[200:], True
    for with_examples, least in ((False, 0.70), (True, 0.85)):
        live, rng = LiveModel(config(), (1, 2)), np.random.default_rng(0)
        for at in rng.permutation(len(train) + (len(examples) if with_examples else 0)).tolist():
            if at < len(train):
                learn(live, train.vectors[at], train.labels[at])
            else:
                learn(live, examples[at - len(train)], (), none=True)
        found = []
        for vectors in (test.vectors, unknown):
            rows = []
            for vector in vectors:
                decision = live.decide(vector, 1).decision
                rows.append((decision == "none", live.decisions.arrays.plain[0]))
            found.append(np.array(rows, np.float64))
        known, others = found
        area, false, caught = auroc(known[:, 1], others[:, 1]), known[:, 0].mean(), others[:, 0].mean()
        at_five = (others[:, 1] < np.quantile(known[:, 1], 0.05)).mean()
        print(
            f"{'with' if with_examples else 'without'} examples: AUROC {area:.4f}; "
            f"none for {caught:.3f} of the strangers and {false:.3f} of the known; "
            f"at exactly .05 of the known {at_five:.3f}",
            flush=True,
        )
        good &= area >= 0.955 and caught >= least
    return good


def few(args: argparse.Namespace) -> bool:
    folder, good = args.data / "clinc150", True
    rows = list(read_file(str(folder / "train.jsonl.gz")))
    others = list(read_file(str(folder / "out_of_scope.jsonl.gz")))
    for encoder in (True, False):
        known, strangers = vectorize(rows, encoder), vectorize(others, encoder).vectors
        names = sorted({labels[0] for labels in known.labels})
        for n_intents in (4, 8, 20):
            high, hits = [], []
            for seed in range(10):
                rng = np.random.default_rng(seed)
                live, chosen = LiveModel(config(None, encoder), (1, 2)), rng.choice(names, n_intents, replace=False)
                own = [np.flatnonzero([one[0] == name for one in known.labels]) for name in chosen]
                picked = [rng.permutation(places) for places in own]
                for at in rng.permutation(np.concatenate([places[:5] for places in picked])).tolist():
                    learn(live, known.vectors[at], known.labels[at])
                for vectors, shares in (
                    (strangers, high),
                    ([known.vectors[at] for places in picked for at in places[5:25]], hits),
                ):
                    ranked = [live.rank_estimated(vector, 1).probabilities for vector in vectors]
                    shares.append(np.mean([len(one) > 0 and one[0] > 0.5 for one in ranked]))  # type: ignore[arg-type,index]
            print(
                f"{'encoder' if encoder else 'words'}, {n_intents} intents: p > .5 for {np.mean(high):.3f} of the "
                f"strangers, {np.mean(hits):.3f} of the known",
                flush=True,
            )
            good &= bool(np.mean(high) <= 0.15)
    return good


def several(args: argparse.Namespace) -> bool:
    good = True
    for name in args.only or SEVERAL:
        stream = read(args.data, name)
        for target in (0.9, 0.95):
            one = loop(stream, target)
            recall = one.right.sum() / one.true[one.answered].sum() if one.answered.any() else float("nan")
            print(f"{name} target {target:.2f}  recall in answers {recall:.3f}  {one.row()}", flush=True)
            good &= not one.answered.any() or one.agreement() >= target
    return good


def cost(args: argparse.Namespace) -> bool:
    """Print times of clinc150's first 5,000 instances, the best of three."""
    for encoder in (False, True):
        stream = read(args.data, "clinc150").take(range(5000)) if encoder else words(args.data)
        for name, settings in (("plain", {"calibrate": False}), ("calibrate", {}), ("decide", {"decide": {}})):
            chosen = ModelConfig.from_dict({"update": args.update} | settings)
            records = [v + pack_labels(y, DATASET_LIMITS) for v, y in zip(stream.vectors, stream.labels, strict=True)]
            times = []
            for _ in range(4):
                live, began = LiveModel(chosen, (1, 2)), time.process_time()
                live.begin(b"".join(records), len(records), [Unit(len(records))]).finish()
                learned = time.process_time()
                for vector in stream.vectors:
                    if name == "decide":
                        live.decide(vector, 10)
                    elif name == "plain":
                        live.rank(vector, 10)
                    else:
                        live.rank_estimated(vector, 10)
                times.append((learned - began, time.process_time() - learned))
            us_learn, us_rank = (1e6 * min(column) / len(records) for column in zip(*times[1:], strict=True))
            print(
                f"{'encoder' if encoder else 'words'}, {name}: learn {us_learn:.1f} us, rank {us_rank:.1f} us",
                flush=True,
            )
    return True


def suspicious(args: argparse.Namespace) -> bool:
    """Exchange 5 % of the labels of two sets. Order all events by p(given), and by p(first) - p(given); read the list.

    Of the n most suspicious ones, n being the number of exchanged ones, and of the list most are exchanged ones.
    """
    holds = True
    for name in args.only or TEXTS[:2]:
        stream, rng = read(args.data, name), np.random.default_rng(1)
        classes, n = sorted({labels[0] for labels in stream.labels}), len(stream)
        wrong, live, scores = rng.random(n) < 0.05, LiveModel(config(None), (1, 2)), np.zeros((2, n))
        for at, (vector, labels) in enumerate(zip(stream.vectors, stream.labels, strict=True)):
            other = classes[(classes.index(labels[0]) + int(rng.integers(1, len(classes)))) % len(classes)]
            label = other if wrong[at] else labels[0]
            ids, _, chances = live.rank_estimated(vector, N_BEST)
            given = chances[ids == live.find(label)].sum() if chances is not None else 0.0
            scores[:, at] = -given, max(chances, default=0.0) - given
            record = vector + pack_labels([label], DATASET_LIMITS)
            live.begin(record, 1, [Unit(1)], Offset(at, 0, 0)).finish()
        for measure, score in zip(("p(given)", "p(first) - p(given)"), scores, strict=True):
            order = np.argsort(-score, kind="stable")
            above = np.cumsum(wrong[order])[~wrong[order]].mean() / wrong.sum()
            found = wrong[order[: wrong.sum()]].mean()
            print(f"{name}, {measure}: AUROC {above:.4f}, of the first {wrong.sum()} {found:.3f} are wrong", flush=True)
        listed = wrong[[one.offset.milliseconds for one in live.suspects()]]
        shares = ", ".join(f"{listed[:k].mean():.3f} of the first {k}" for k in (50, 100, 300, 1000))
        print(f"{name}, list of {len(listed)}: wrong are {shares}", flush=True)
        holds &= bool(above > 0.98 and listed[:100].mean() > 0.9)
    return holds


def words(data: Path) -> Stream:
    return vectorize(list(read_file(str(data / "clinc150/train.jsonl.gz")))[:5000], encoder=False)


PARTS: dict[str, Callable[[argparse.Namespace], bool]] = {
    one.__name__: one for one in (streams, shuffles, permuted, strangers, few, several, suspicious, cost)
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"{', '.join(PARTS)}; default: all")
    parser.add_argument("--data", type=Path, default=None)
    parser.add_argument("--only", action="append")
    parser.add_argument("--shuffles", type=int, default=1000)
    parser.add_argument("--first-shuffle", type=int, default=0)
    parser.add_argument("--update", default="sls")
    args = parser.parse_args()
    args.data = data_folder(args.data)
    use_encoders(None)
    failed = []
    for part in args.parts or PARTS:
        print(f"--- {part}", flush=True)
        failed += [] if PARTS[part](args) else [part]
    print(f"do not hold: {', '.join(failed)}" if failed else "all hold")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
