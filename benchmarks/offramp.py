"""Draw what `decide` saves of a teacher's calls, as docs/offramp.svg, and print the table.

    python -m benchmarks.offramp [--data DIR] [--to docs/offramp.svg]

The stream is the training part of clinc150 (15,000 utterances, 150 intents) in its order, which mixes the intents, from
an empty model with an encoder. The true labels stand in for the teacher. An utterance is **saved** if the model answers
it and does not audit it; **agreement** is the share of the answers that equal the teacher's label.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from abound.processes.encoder_files import use_encoders
from benchmarks.decide import BLOCK, TARGETS, Loop, loop, vectorize
from benchmarks.sets import data_folder, read_file

COLOURS = ("#4c9be8", "#e08a3c", "#3fae7f")
GREY = "#8a8f98"  # reads on white and on dark pages


def draw(found: dict[float, Loop], path: Path) -> None:
    """Draw saved calls against agreement, and the calls along the stream; needs matplotlib (the extra ``bench``)."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams |= {"svg.hashsalt": "abound", "svg.fonttype": "none", "font.size": 9}
    matplotlib.rcParams |= dict.fromkeys(
        ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color", "axes.titlecolor"), GREY
    )
    from matplotlib import pyplot

    figure, (curve, stream) = pyplot.subplots(1, 2, figsize=(8, 3.2), layout="constrained")
    points = [(100 * one.agreement(), 100 * (1 - one.asked.mean())) for one in found.values()]
    curve.plot(*zip(*points, strict=True), color=GREY, linewidth=1, zorder=1)
    for (target, one), (x, y), colour in zip(found.items(), points, COLOURS, strict=True):
        curve.scatter(x, y, color=colour, zorder=2)
        curve.annotate(f"target {target:.0%}", (x, y), (0, -14), textcoords="offset points", ha="center", color=colour)
        calls = [100 * one.asked[at : at + BLOCK].mean() for at in range(0, len(one.asked), BLOCK)]
        stream.plot(BLOCK * (1 + np.arange(len(calls))), calls, color=colour, label=f"target {target:.0%}")
    curve.set(xlabel="agreement of the answers, %", ylabel="calls saved, %", title="Calls saved against agreement")
    curve.set(xlim=(min(x for x, _ in points) - 2, 100), ylim=(0, 100))
    stream.set(xlabel="utterances", ylabel="calls of the newest 1,000, %", title="Calls along the stream")
    stream.set(xticks=range(0, 20_000, 5000), ylim=(0, 105))
    stream.legend(frameon=False)
    for axes in (curve, stream):
        axes.set_facecolor("none")
        axes.grid(color=GREY, alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, transparent=True, metadata={"Date": None, "Creator": None})
    path.write_text("".join(f"{line.rstrip()}\n" for line in path.read_text().splitlines()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=None)
    parser.add_argument("--to", type=Path, default=Path("docs/offramp.svg"))
    args = parser.parse_args()
    use_encoders(None)
    utterances = vectorize(list(read_file(str(data_folder(args.data) / "clinc150/train.jsonl.gz"))))
    found = {}
    print("| target | calls | saved | agreement | worst 1,000 answers | calls of the last 1,000 |")
    print("|---|---|---|---|---|---|")
    for target in TARGETS:
        found[target] = one = loop(utterances, target)
        worst = min(one.blocks(), default=float("nan"))
        print(
            f"| {target:.0%} | {one.asked.sum():,} of {len(one.asked):,} | {1 - one.asked.mean():.1%} | "
            f"{one.agreement():.1%} | {worst:.1%} | {one.asked[-BLOCK:].mean():.1%} |",
            flush=True,
        )
    draw(found, args.to)


if __name__ == "__main__":
    main()
