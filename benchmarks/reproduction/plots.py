"""The plots: accuracy by parameters, and by time and size."""

from __future__ import annotations

from typing import Any

from benchmarks.reproduction.experiment import Experiment, Plot, PlotLine
from benchmarks.reproduction.indexes import ff
from benchmarks.reproduction.neighbors import ogeec, swnn

NEWS, RCV, WORD = "newsgroups20-random", "rcv1v2", "wordnet-hypernyms"
SHOWN = {NEWS: "newsgroups", RCV: "RCV1-v2", WORD: "WordNet"}

DEGREES = (1, 2, 3, 5, 10, 25, 50, 100)
LEAST = (0.0, 0.001, 0.01, 0.03, 0.1)
GRID = ((0.5, 0), (1, 0), (1, 1), (2, 0), (2, 1))
NEIGHBORS = (5, 10, 25, 50, 75, 100)


def _passes(data: str, name: str, margins: tuple[float, ...], figure: str) -> Plot:
    lines = []
    for margin in margins:
        params = {"margin": margin, "passes": 10}
        experiment = Experiment(data=data, method="ff", params=params, each_pass=True, seconds=90)
        for part in ("test", "train"):
            label = f"margin {margin:g}, {part}"
            lines.append(PlotLine(label=label, points=(("pass", experiment),), curve=part, dashed=part == "train"))
    return Plot(
        name=name,
        title=f"FF on {SHOWN[data]}: passes and margin ({figure} of Madani et al.)",
        x="pass",
        y="R@1",
        lines=tuple(lines),
    )


def _index(field: str, values: tuple[float, ...], data: str) -> PlotLine:
    points = []
    for value in values:
        params: dict[str, Any] = {"margin": 0.0, field: value}
        points.append((max(value, 3e-4), ff(data, {NEWS: 6, RCV: 3, WORD: 20}[data], **params)))
    return PlotLine(label=SHOWN[data], points=tuple(points))


def _parts() -> Plot:
    settings = {NEWS: {"margin": 0.5}, RCV: {"margin": 0.1, "passes": 4}, WORD: {"margin": 0.5}}
    changes: dict[str, dict[str, Any]] = {
        "as it is": {},
        "no leak": {"leak": False},
        "no rating": {"rating": False},
        "Boolean, margin 7": {"boolean": True, "margin": 7.0},
    }
    seconds = {NEWS: 8, RCV: 10, WORD: 40}
    lines = []
    for label, change in changes.items():
        points = []
        for data, params in settings.items():
            seeds = (0, 1, 2, 3, 4) if data == NEWS and not change else (0,)
            if change.get("boolean"):
                params = {}
            given = {"margin": change.get("margin", params.get("margin"))} | {
                name: value for name, value in (params | change).items() if name != "margin"
            }
            points.append((SHOWN[data], ff(data, seconds[data], seeds, **given)))
        lines.append(PlotLine(label=label, points=tuple(points)))
    return Plot(
        name="parts",
        title="Leak, rating, Boolean features (figures 15 to 17)",
        x="",
        y="R@1",
        lines=tuple(lines),
        bars=True,
    )


def _alone(classes: int | str, w_min: float) -> Experiment:
    return Experiment(data="-", method="fsu", params={"classes": classes, "w_min": w_min}, seconds=20)


def _deviations(classes: int | str, name: str, title: str) -> Plot:
    return Plot(
        name=name,
        title=f"FSU alone: {title}",
        x="p*",
        y="deviation of the top class's proportion / p*",
        lines=tuple(
            PlotLine(label=f"w_min {w_min:g}", points=(("p*", _alone(classes, w_min)),), curve="deviation")
            for w_min in (0.0, 0.01, 0.1)
        ),
    )


def _distances() -> Plot:
    return Plot(
        name="fsu-distances",
        title="FSU alone: distance of estimated and true proportions (figure 22)",
        x="",
        y="distance",
        lines=tuple(
            PlotLine(label=f"w_min {w_min:g}", points=tuple((name, _alone("drawn", w_min)) for name in ("l1", "max")))
            for w_min in (0.0, 0.01, 0.1)
        ),
        bars=True,
    )


def _embedding_size() -> Plot:
    lines = []
    for embedding in ("rembrandt", "pca"):
        points = []
        for k in (5, 20, 50, 100):
            params: dict[str, Any] = {"k": k} | ({} if embedding == "rembrandt" else {"embedding": embedding})
            points.append((k, Experiment(data="aloi", method="rembrandt", params=params, seconds=22)))
        lines.append(PlotLine(label=embedding, points=tuple(points)))
    return Plot(name="rembrandt-k", title="Rembrandt on ALOI (figure 1 of 2015)", x="k", y="error", lines=tuple(lines))


def _projections(field: str, values: tuple[int, ...], name: str, title: str) -> Plot:
    lines = []
    for data, seconds in (("bibtex", 1.0), ("delicious", 3.0)):
        points = []
        for value in values:
            params: dict[str, Any] = {"neighbors": 10} | {"learners": 1} | {field: value}
            if (field, value) == ("learners", 5):
                del params["learners"]
            if (field, value) == ("dim", 200):
                del params["dim"]
            points.append((value, ogeec(data, seconds * (value if field == "learners" else 3), **params)))
        lines.append(PlotLine(label=data, points=tuple(points)))
    return Plot(name=name, title=title, x=field, y="P@1", lines=tuple(lines))


def _votes(data: str) -> Plot:
    lines = []
    for alpha, beta in GRID:
        points = [(s, swnn(data, 1.0, 5, S=s, alpha=alpha, beta=beta)) for s in NEIGHBORS]
        lines.append(PlotLine(label=f"alpha {alpha:g}, beta {beta:g}", points=tuple(points)))
    return Plot(name=f"swnn-{data}", title=f"SWNN on {data}", x="S", y="P@1", lines=tuple(lines))


MANY: tuple[tuple[str, str, dict[str, Any], dict[str, float]], ...] = (
    ("frequency", "frequency", {}, {"bibtex": 1, "delicious": 1}),
    ("ff, margin 0", "ff", {"margin": 0.0}, {"bibtex": 2, "delicious": 5}),
    ("ff, margin 0.5", "ff", {"margin": 0.5}, {"bibtex": 2, "delicious": 5}),
    ("ind", "ind", {}, {"bibtex": 2, "delicious": 5}),
    ("unweighted", "unweighted", {}, {"bibtex": 5, "delicious": 60}),
    ("swnn", "swnn", {}, {"bibtex": 1, "delicious": 1}),
    ("ogeec", "ogeec", {"neighbors": 10}, {"bibtex": 3, "delicious": 6}),
    ("rembrandt", "rembrandt", {}, {"bibtex": 2, "delicious": 3}),
    ("exmlds1", "exmlds1", {}, {"bibtex": 4, "delicious": 15}),
    ("exmlds2", "exmlds2", {}, {"bibtex": 8, "delicious": 40}),
    ("exmlds3", "exmlds3", {}, {"bibtex": 8, "delicious": 80}),
    ("exmlds_joint", "exmlds_joint", {}, {"bibtex": 10, "delicious": 40}),
    ("one_vs_rest, SVM", "one_vs_rest", {}, {"bibtex": 30, "delicious": 400}),
    ("top_down, SVM", "top_down", {}, {"bibtex": 30, "delicious": 300}),
)
"""All methods, and their approximate seconds."""


def _all(data: str, cost: str, title: str) -> Plot:
    lines = []
    for label, method, params, seconds in MANY:
        experiment = Experiment(data=data, method=method, params=params, seconds=seconds[data])
        lines.append(PlotLine(label=label, points=((f"cost {cost}", experiment),)))
    units = {"fit": "seconds to fit", "rank": "milliseconds to rank one", "megabytes": "MB of the model"}
    return Plot(name=f"{data}-{cost}", title=title, x=units[cost], y="P@1", lines=tuple(lines), log=True)


PLOTS = (
    _passes(NEWS, "passes-newsgroups", (0.0, 0.1, 0.5, 1.0), "figure 19"),
    _passes(RCV, "passes-rcv1v2", (0.0, 0.1, 0.2, 0.5), "figure 14"),
    Plot(
        name="degree",
        title="FF after one pass, by d_max (figure 12)",
        x="d_max",
        y="R@1",
        lines=tuple(_index("d_max", DEGREES, data) for data in (NEWS, RCV, WORD)),
        log=True,
    ),
    Plot(
        name="least-weight",
        title="FF after one pass, by w_min (figure 13; 0 at the left)",
        x="w_min",
        y="R@1",
        lines=tuple(_index("w_min", LEAST, data) for data in (NEWS, RCV, WORD)),
        log=True,
    ),
    _parts(),
    _deviations(100, "fsu-100", "100 classes (figure 21 a)"),
    _deviations("few", "fsu-few", "1 / p* classes (figure 21 b)"),
    _distances(),
    _embedding_size(),
    _projections("dim", (50, 100, 150, 200, 300, 400), "ogeec-dim", "OGEEC, one learner, by dimensions"),
    _projections("learners", (1, 2, 3, 5, 7, 10), "ogeec-learners", "OGEEC, by learners"),
    _votes("bibtex"),
    _votes("delicious"),
    *(
        _all(data, cost, f"All methods on {data}, by {what}")
        for data in ("bibtex", "delicious")
        for cost, what in (("fit", "time to fit"), ("rank", "time to rank"), ("megabytes", "size"))
    ),
)
