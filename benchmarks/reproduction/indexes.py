"""Madani, Connor and Greiner, "Learning When Concepts Abound" (JMLR 2009): indexes and linear classifiers."""

from __future__ import annotations

from typing import Any

from benchmarks.reproduction.experiment import Bound, Experiment, ResultTable, Row

FIVE = (0, 1, 2, 3, 4)

BETTER = "A figure above the expected range counts as reached: test instances are only ranked, after all fitting."


def ff(data: str, seconds: float, seeds: tuple[int, ...] = (0,), **params: Any) -> Experiment:
    """Return an experiment with the live index."""
    return Experiment(data=data, method="ff", params=params, seeds=seeds, seconds=seconds)


def near(value: float) -> tuple[Bound, ...]:
    """Return the bound: R@1 within one point of this value, or better."""
    return (Bound(measure="R@1", least=value - 1, most=value + 1, above=True),)


def linear(
    data: str, kind: str, seconds: float, seeds: tuple[int, ...] = (0,), method: str = "one_vs_rest"
) -> Experiment:
    """Return an experiment with linear classifiers, on vectors without idf, as the index uses them."""
    params = {"kind": kind, "idf": False} if kind != "svm" else {"idf": False}
    return Experiment(data=data, method=method, params=params, seeds=seeds, seconds=seconds)


NEWS_0, NEWS_5 = ff("newsgroups20-random", 25, FIVE, margin=0.0), ff("newsgroups20-random", 30, FIVE, margin=0.5)
NEWS_SVM, NEWS_COMMITTEE, NEWS_PERCEPTRON = (
    linear("newsgroups20-random", "svm", 30, FIVE),
    linear("newsgroups20-random", "committee", 30),
    linear("newsgroups20-random", "perceptron", 20, FIVE),
)
RCV_REST, RCV_DOWN = linear("rcv1v2", "svm", 30), linear("rcv1v2", "svm", 30, method="top_down")
NEWS_UNWEIGHTED, NEWS_TANDEM = (
    Experiment(data="newsgroups20-random", method="unweighted", params=params, seconds=30)
    for params in ({}, {"classifiers": 10})
)
NEWS_IND = Experiment(data="newsgroups20-random", method="ind", seeds=FIVE, seconds=25)
REUTERS = "reuters10-words"
REUTERS_5 = ff(REUTERS, 8, FIVE, margin=0.5)
REUTERS_SVM = linear(REUTERS, "svm", 5, FIVE)

INDEX = ResultTable(
    name="index",
    title="The live index: FF with FSU",
    note="Figures 9 and 10. The paper's versions of these sets differ: newsgroups without headers, RCV1 with 414 "
    "classes (here about half of its documents, topics alone), Reuters with one class each. Here and in the "
    "next two tables, Reuters has words of at least two characters, which is scikit-learn's default. " + BETTER + " "
    "The SVM of this product is more accurate than FF on Reuters and on RCV1-v2, where all topics of an instance are "
    "true labels. By the paper's protocol only the lowest classes of RCV1 count, with ancestors inferred from "
    "the data. R@1 is then 71.9 for FF, 78.3 for the perceptron, 82.6 for the top-down SVM, 83.9 for the SVM, "
    "and 84.2 for `update: sls` in one pass. The paper has 78.7 for FF and 78.3 for the top-down SVM, so its "
    "order is not reproduced there.",
    measures=("R@1", "R@5", "HR", "edges", "work"),
    rows=(
        Row(
            label="newsgroups, random 80/20, margin 0",
            experiment=NEWS_0,
            paper="79.8 / 97.8 / 1.137 / 113k / 10",
            rival="SVM 85.2, committee 83.0, perceptron 72.8",
            before="87.0",
            bounds=near(87.0),
        ),
        Row(
            label="the same, margin 0.5",
            experiment=NEWS_5,
            paper="86.5 / 98.7 / 1.085 / 171k / 10",
            before="92.2",
            bounds=near(92.2),
        ),
        Row(label="the same, one_vs_rest, SVM", experiment=NEWS_SVM, paper="85.2"),
        Row(
            label="newsgroups by date, margin 0",
            experiment=ff("newsgroups20", 4, margin=0.0),
            before="76.6",
            bounds=near(76.6),
        ),
        Row(
            label="the same, margin 0.5",
            experiment=ff("newsgroups20", 4, margin=0.5),
            before="84.4",
            bounds=near(84.4),
        ),
        Row(label="the same, one_vs_rest, SVM", experiment=linear("newsgroups20", "svm", 5)),
        Row(
            label="Reuters top 10, random 90/10, margin 0",
            experiment=ff(REUTERS, 8, FIVE, margin=0.0),
            paper="86.0 / 99.8 / 1.082 / 55k / 4.9",
            rival="SVM 90.6, committee 89.1, perceptron 87.1",
            before="93.1",
            bounds=near(93.1),
        ),
        Row(
            label="the same, margin 0.5",
            experiment=REUTERS_5,
            paper="88.4 / 99.7 / 1.066 / 73k / 5",
            before="95.0",
            bounds=near(95.0),
        ),
        Row(label="the same, one_vs_rest, SVM", experiment=REUTERS_SVM, paper="90.6"),
        Row(
            label="RCV1-v2 topics, margin 0",
            experiment=ff("rcv1v2", 3, margin=0.0),
            paper="76.3 / 95.5 / 1.181 / 181k / 15.1",
            rival="SVM top-down 78.3",
        ),
        Row(
            label="the same, margin 0.1, 4 passes",
            experiment=ff("rcv1v2", 10, margin=0.1, passes=4),
            paper="78.7 / 95.2 / 1.164 / 223k / 12.9",
        ),
        Row(label="the same, one_vs_rest, SVM", experiment=RCV_REST, paper="78.3 (top-down)"),
        Row(
            label="Jane Austen, a random tenth, margin 0",
            experiment=ff("austen-random", 60, margin=0.0),
            paper="27.2 / 48.0 / 2.71 / 1.5M / 8.7",
            bounds=(Bound(measure="R@1", least=27.0),),
        ),
        Row(
            label="the same, margin 0.1, 4 passes",
            experiment=ff("austen-random", 200, margin=0.1, passes=4),
            paper="27.9 / 46.2 / 2.73 / 1.6M / 9.1",
        ),
    ),
)

OLDER = ResultTable(
    name="older-indexes",
    title="IND, the unweighted index, the frequency of classes",
    note="Sections 4.2 and 6.4.1, figures 9, 17 and 18. p_ind is chosen on held-out instances.",
    measures=("R@1", "R@5", "HR"),
    rows=(
        Row(
            label="IND, newsgroups, random 80/20",
            experiment=NEWS_IND,
            paper="84.6",
            rival="best FF 86.5",
            before="89.9",
            bounds=near(89.9),
        ),
        Row(
            label="IND, newsgroups by date",
            experiment=Experiment(data="newsgroups20", method="ind", seconds=4),
            before="81.6",
            bounds=near(81.6),
        ),
        Row(
            label="IND, Reuters top 10, random 90/10",
            experiment=Experiment(data=REUTERS, method="ind", seeds=FIVE, seconds=8),
            before="90.6",
            bounds=near(90.6),
        ),
        Row(
            label="IND, the same, words of one character, too",
            experiment=Experiment(data="reuters10-random", method="ind", seeds=FIVE, seconds=8),
        ),
        Row(
            label="IND, RCV1-v2 topics",
            experiment=Experiment(data="rcv1v2", method="ind", seconds=3),
            paper="68.6",
            rival="best FF 78.9",
        ),
        Row(
            label="IND, Boolean queries, newsgroups, random 80/20",
            experiment=Experiment(data="newsgroups20-random", method="ind", params={"boolean": True}, seconds=8),
            paper="84.6",
        ),
        Row(
            label="IND, Boolean queries, Reuters top 10",
            experiment=Experiment(data=REUTERS, method="ind", params={"boolean": True}, seeds=FIVE, seconds=8),
        ),
        Row(
            label="IND, Boolean queries, RCV1-v2 topics",
            experiment=Experiment(data="rcv1v2", method="ind", params={"boolean": True}, seconds=3),
            paper="68.6",
        ),
        Row(
            label="unweighted, newsgroups, random 80/20",
            experiment=NEWS_UNWEIGHTED,
            paper="68.1",
            rival="FF 86",
            bounds=(Bound(measure="R@1", most=0.0, than=ff("newsgroups20-random", 30, FIVE, margin=0.5), named="FF"),),
        ),
        Row(
            label="unweighted, newsgroups by date",
            experiment=Experiment(data="newsgroups20", method="unweighted", seconds=12),
        ),
        Row(
            label="unweighted with classifiers, newsgroups, random 80/20",
            experiment=NEWS_TANDEM,
            paper="76.8",
            rival="FF 86, committee 83.0",
            bounds=(
                Bound(measure="R@1", least=0.0, than=NEWS_UNWEIGHTED, named="unweighted"),
                Bound(measure="R@1", most=0.0, than=NEWS_5, named="FF"),
            ),
        ),
        Row(
            label="frequency, newsgroups, random 80/20",
            experiment=Experiment(data="newsgroups20-random", method="frequency", seconds=2),
            paper="5 / 25",
        ),
        Row(
            label="frequency, Reuters top 10",
            experiment=Experiment(data=REUTERS, method="frequency", seconds=1),
            paper="42 / 86",
        ),
        Row(
            label="FF, passes and margin searched, newsgroups by date",
            experiment=Experiment(data="newsgroups20", method="ff", params={"params": "auto"}, seconds=60),
        ),
    ),
)

LINEAR = ResultTable(
    name="linear",
    title="Linear classifiers, one against the rest",
    note="Section 5 and figure 9. Vectors have no idf, as in the index. " + BETTER + " The "
    "Perceptron of scikit-learn on the same vectors has 79.3 to 79.6 by date (two seeds). With a bias, which "
    "perceptrons here do not have, it has 79.1, and the committee on Reuters (with words of one character) 97.5.",
    measures=("R@1", "R@5", "HR"),
    rows=(
        Row(
            label="SVM, newsgroups, random 80/20",
            experiment=NEWS_SVM,
            paper="85.2",
            before="92.0",
            bounds=(*near(92.0), Bound(measure="R@1", most=0.5, than=NEWS_5, named="FF")),
        ),
        Row(
            label="committee, newsgroups, random 80/20",
            experiment=NEWS_COMMITTEE,
            paper="83.0",
            before="91.0",
            bounds=(*near(91.0), Bound(measure="R@1", most=0.0, than=NEWS_SVM, named="SVM")),
        ),
        Row(
            label="perceptron, newsgroups, random 80/20",
            experiment=NEWS_PERCEPTRON,
            paper="72.8",
            before="88.9",
            bounds=(*near(88.9), Bound(measure="R@1", most=0.5, than=NEWS_IND, named="IND")),
        ),
        Row(
            label="SVM, newsgroups by date",
            experiment=linear("newsgroups20", "svm", 5),
            before="83.7",
            bounds=near(83.7),
        ),
        Row(
            label="committee, newsgroups by date",
            experiment=linear("newsgroups20", "committee", 20),
            before="81.7",
            bounds=near(81.7),
        ),
        Row(
            label="perceptron, newsgroups by date",
            experiment=linear("newsgroups20", "perceptron", 12, FIVE),
            before="77.0",
            bounds=near(77.0),
        ),
        Row(
            label="SVM, Reuters top 10, random 90/10",
            experiment=REUTERS_SVM,
            paper="90.6",
            before="96.9",
            bounds=(*near(96.9), Bound(measure="R@1", least=0.0, than=REUTERS_5, named="FF")),
        ),
        Row(
            label="committee, Reuters top 10",
            experiment=linear(REUTERS, "committee", 15, FIVE),
            paper="89.1",
            before="95.9",
            bounds=near(95.9),
        ),
        Row(
            label="perceptron, Reuters top 10",
            experiment=linear(REUTERS, "perceptron", 4, FIVE),
            paper="87.1",
            before="96.8",
            bounds=near(96.8),
        ),
    ),
)

WORD_REST = linear("wordnet-hypernyms", "perceptron", 900)
WORD_DOWN = linear("wordnet-hypernyms", "perceptron", 40, method="top_down")

TOP_DOWN = ResultTable(
    name="top-down",
    title="Down a hierarchy, against one against the rest",
    note="Section 5 and figure 10; the same classifiers in both. For data without a hierarchy, "
    "one is built by grouping similar labels.",
    measures=("R@1", "P@1", "P@3", "P@5"),
    rows=(
        Row(label="one_vs_rest, SVM, RCV1-v2", experiment=RCV_REST),
        Row(
            label="top_down, SVM, RCV1-v2, 1 trial",
            experiment=RCV_DOWN,
            paper="77.9 (1 trial, 414 classes)",
            bounds=(Bound(measure="fit", most=1.0, than=RCV_REST, named="one_vs_rest", ratio=True),),
        ),
        Row(
            label="top_down, SVM, RCV1-v2, no trials",
            experiment=Experiment(data="rcv1v2", method="top_down", params={"idf": False, "trials": 0}, seconds=20),
            paper="72",
        ),
        Row(label="one_vs_rest, perceptron, WordNet, 19,387 classes", experiment=WORD_REST),
        Row(
            label="top_down, perceptron, WordNet, made hierarchy",
            experiment=WORD_DOWN,
            bounds=(Bound(measure="fit", most=0.1, than=WORD_REST, named="one_vs_rest", ratio=True),),
        ),
        Row(
            label="the same, no trials, p_min 0.01",
            experiment=Experiment(
                data="wordnet-hypernyms",
                method="top_down",
                params={"kind": "perceptron", "idf": False, "trials": 0, "p_min": 0.01},
                seconds=40,
            ),
        ),
        Row(
            label="top_down, perceptron, WordNet, its own hierarchy",
            experiment=linear("wordnet-tree", "perceptron", 60, method="top_down"),
        ),
    ),
)

NEWS, RCV, WORD = "newsgroups20-random", "rcv1v2", "wordnet-hypernyms"


def _free(data: str, seconds: float, **params: Any) -> Experiment:
    return ff(data, seconds, margin=0.0, w_min=0.0, d_max=1000, **params)


ABLATIONS = ResultTable(
    name="ablations",
    title="The parts of the index",
    note="Figures 11, 13, 15, 16 and 17; RCV1-v2 with margin 0.1 and 4 passes, newsgroups with margin 0.5. The "
    "values of the paper are for its versions of the sets. `vote_min` is the threshold of section 6.3.2, for which the "
    "paper has no figures.",
    measures=("R@1", "R@5", "edges", "work"),
    rows=(
        Row(label="RCV1-v2, as it is", experiment=ff(RCV, 10, margin=0.1, passes=4), paper="78.7"),
        Row(label="RCV1-v2, no leak", experiment=ff(RCV, 10, margin=0.1, passes=4, leak=False), paper="78.0"),
        Row(label="RCV1-v2, no rating", experiment=ff(RCV, 10, margin=0.1, passes=4, rating=False), paper="75.8"),
        Row(label="RCV1-v2, w_min 0.001", experiment=ff(RCV, 15, margin=0.1, passes=4, w_min=0.001), paper="78.6"),
        Row(label="RCV1-v2, w_min 0.1", experiment=ff(RCV, 8, margin=0.1, passes=4, w_min=0.1), paper="76.1"),
        Row(label="RCV1-v2, vote_min 0.1 for d_max", experiment=ff(RCV, 10, margin=0.1, passes=4, vote_min=0.1)),
        Row(label="RCV1-v2, Boolean, margin 7", experiment=ff(RCV, 8, margin=7.0, boolean=True)),
        Row(label="RCV1-v2, Boolean, margin 0.5", experiment=ff(RCV, 8, margin=0.5, boolean=True), paper="78.0 (best)"),
        Row(label="RCV1-v2, w_min 0, d_max 1000, margin 0", experiment=_free(RCV, 10)),
        Row(label="newsgroups, as it is", experiment=NEWS_5, paper="86.5"),
        Row(label="newsgroups, no leak", experiment=ff(NEWS, 8, margin=0.5, leak=False), paper="86.6"),
        Row(label="newsgroups, no rating", experiment=ff(NEWS, 8, margin=0.5, rating=False), paper="86.0"),
        Row(label="newsgroups, vote_min 0.05 for d_max", experiment=ff(NEWS, 8, margin=0.5, vote_min=0.05)),
        Row(label="newsgroups, vote_min 0.1 for d_max", experiment=ff(NEWS, 8, margin=0.5, vote_min=0.1)),
        Row(label="newsgroups, Boolean, margin 7", experiment=ff(NEWS, 8, margin=7.0, boolean=True), paper="86.0"),
        Row(
            label="newsgroups, Boolean, margin 1", experiment=ff(NEWS, 8, margin=1.0, boolean=True), paper="82 or below"
        ),
        Row(label="WordNet, margin 0.5", experiment=ff(WORD, 40, margin=0.5)),
        Row(label="WordNet, no leak", experiment=ff(WORD, 40, margin=0.5, leak=False)),
        Row(label="WordNet, no rating", experiment=ff(WORD, 40, margin=0.5, rating=False)),
        Row(label="WordNet, w_min 0, d_max 1000, margin 0", experiment=_free(WORD, 120)),
    ),
)

TABLES = (INDEX, OLDER, LINEAR, TOP_DOWN, ABLATIONS)
