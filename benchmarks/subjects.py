"""Subject indexing of a technical library, with the measures of ``annif eval``, on the set ``llms4subjects-tib``.

    python -m benchmarks.subjects [--data DIR] [--passes 3] [--validate 5000] [--names] [--set FIELD=VALUE]...
        [--json]

A model with ``update: sls`` and an encoder learns the training part in its order, and ranks the development part.
``--passes`` above 1 learns it again as the job ``refit`` does. ``--validate N`` chooses settings: it learns all but the
last N records of the training part and ranks these. ``--names`` first learns the name of each label that is learned, as
a title. Each language is reported apart, too.
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import re
import time
from collections.abc import Collection, Iterable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from abound.cli.options import changes_of
from abound.processes.encoder_files import use_encoders
from abound_core.config import ModelConfig
from abound_core.evaluation.evaluate import fit
from abound_core.instances.data_formats import DatasetInstance, vectorize_all
from abound_core.instances.vectorizer import Vectorizer
from abound_core.limits import DATASET_LIMITS
from abound_core.model.live_model import LiveModel, warmup
from benchmarks.rivals.peak import peak, start_peak
from benchmarks.sets import data_folder, read_file

NAME = "llms4subjects-tib"
CONFIG: dict[str, Any] = {"update": "sls", "analyzer": {"embed": "wordllama"}}
K_F1, K_NDCG = 5, 10

GERMAN = re.compile(r"\b(der|die|das|und|von|des|im|für|mit|auf|den|ein|eine|zur|zum|einer|bei|über|als|ist|wird)\b")
ENGLISH = re.compile(r"\b(the|of|and|in|to|for|a|on|with|by|an|is|from|at|as|this|are|that)\b")


def language_of(instance: DatasetInstance) -> str:
    """Return ``de`` if a record has more German function words than English ones, else ``en``."""
    text = instance.text or ""
    fields = [text] if isinstance(text, str) else [field or "" for field in text.values()]
    words = " ".join(fields).lower()
    return "de" if len(GERMAN.findall(words)) > len(ENGLISH.findall(words)) else "en"


def f1(suggested: Sequence[str], true: Collection[str]) -> float:
    """Return F1 of the first ``K_F1`` suggestions: 2 hits / (true labels + suggestions)."""
    best = suggested[:K_F1]
    return 2 * len(set(best) & set(true)) / (len(true) + len(best))


def ndcg(suggested: Sequence[str], true: Collection[str]) -> float:
    """Return the discounted gain of the first ``K_NDCG`` suggestions; the ideal has every true label, also beyond."""
    gain = sum(1 / math.log2(place + 2) for place, label in enumerate(suggested[:K_NDCG]) if label in true)
    return gain / sum(1 / math.log2(place + 2) for place in range(len(true)))


def in_languages(rows: Iterable[tuple[str, float, float]]) -> dict[str, dict[str, float]]:
    """Return the means of all records and of those in each language."""
    listed = list(rows)
    found = {}
    for name in ("all", "en", "de"):
        own = [(one, two) for language, one, two in listed if name in ("all", language)]
        if own:
            means = np.mean(own, axis=0).tolist()
            found[name] = {"records": len(own), f"F1@{K_F1}": means[0], "NDCG": means[1]}
    return found


def rank_all(live: LiveModel, rows: list[DatasetInstance]) -> tuple[dict[str, dict[str, float]], list[float]]:
    """Return the measures, and the milliseconds that each record took from its text to its labels."""
    vectorizer = Vectorizer(live.config, DATASET_LIMITS)
    figures, times = [], []
    for row in rows:
        began = time.perf_counter()
        ranking = live.rank(vectorizer.vectorize(row.features, row.text), K_NDCG)
        best = [live.label(class_id) for class_id in ranking.class_ids.tolist()]
        times.append(1000 * (time.perf_counter() - began))
        figures.append((language_of(row), f1(best, row.labels), ndcg(best, row.labels)))
    return in_languages(figures), times


def parts(data: Path, validate: int, names: bool) -> tuple[list[DatasetInstance], list[DatasetInstance]]:
    """Return the records to learn and those to rank, of which each has a true label.

    With ``names``, the names of the labels of the records to learn come before these.
    """
    train = list(read_file(str(data / NAME / "train.jsonl.gz")))
    if validate:
        train, test = train[:-validate], train[-validate:]
    else:
        test = list(read_file(str(data / NAME / "dev.jsonl.gz")))
    if names:
        known = {label for row in train for label in row.labels}
        with gzip.open(data / NAME / "labels.jsonl.gz") as lines:
            named = [(one["label"], one["name"]) for one in map(json.loads, lines)]
        train = [DatasetInstance(text={"title": name}, labels=(one,)) for one, name in named if one in known] + train
    return train, [row for row in test if row.labels]


def result(data: Path, config: ModelConfig, passes: int, validate: int, names: bool) -> dict[str, Any]:
    train, test = parts(data, validate, names)
    warm = vectorize_all(islice(train, 100), Vectorizer(config, DATASET_LIMITS), DATASET_LIMITS)
    fit(warm, config, (1, 2), passes=passes)
    before = start_peak()
    began = time.process_time()
    dataset = vectorize_all(train, Vectorizer(config, DATASET_LIMITS), DATASET_LIMITS)
    vectorized = time.process_time()
    live = fit(dataset, config, (1, 2), passes=passes)
    learned = time.process_time()
    memory = peak() - before
    figures, times = rank_all(live, test)
    return {
        "part": "last of training" if validate else "development",
        "passes": passes,
        "learned": len(dataset.learnable),
        "labels": len(live.labels),
        "figures": figures,
        "seconds": {"vectors": vectorized - began, "learning": learned - vectorized},
        "MB": {"model": live.n_bytes / 1e6, "grown": memory / 1e6},
        "ms": {"median": float(np.median(times)), "p99": float(np.quantile(times, 0.99))},
    }


def show(one: dict[str, Any]) -> None:
    print(f"{one['part']} part, {one['learned']:,} records learned, passes: {one['passes']}, labels {one['labels']:,}")
    for name, row in one["figures"].items():
        print(f"  {name:<4}{row['records']:>6,} records  F1@5 {row['F1@5']:.4f}  NDCG {row['NDCG']:.4f}")
    for name in ("seconds", "MB", "ms"):
        print(f"  {name}: {', '.join(f'{what} {value:.2f}' for what, value in one[name].items())}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="the folder of the data sets; ABOUND_DATA without it")
    parser.add_argument("--passes", type=int, default=1)
    parser.add_argument("--validate", type=int, default=0, metavar="N")
    parser.add_argument("--names", action="store_true")
    parser.add_argument("--set", action="append", default=[], metavar="FIELD=VALUE", help="of the model")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    data = data_folder(given.data)
    use_encoders(None)
    warmup("learning", "answering", "sls", "reranked")
    changes = changes_of(given.set)
    analyzer = CONFIG["analyzer"] | changes.get("analyzer", {})
    config = ModelConfig.from_dict(CONFIG | changes | {"analyzer": analyzer})
    one = result(data, config, given.passes, given.validate, given.names)
    print(json.dumps(one)) if given.json else show(one)


if __name__ == "__main__":
    main()
