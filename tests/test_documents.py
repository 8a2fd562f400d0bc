"""What the documents name is there: tests, files and settings."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from abound.settings import Settings

ROOT = Path(__file__).parent.parent
FILES = {str(path.relative_to(ROOT)): path for path in (ROOT / "tests").rglob("test_*.py")}
SECURITY = (ROOT / "docs" / "security.md").read_text()


@pytest.mark.parametrize("named", sorted(set(re.findall(r"`(tests/[\w/]+\.py(?:::test_\w+)?)`", SECURITY))))
def test_a_test_that_is_named_exists(named: str) -> None:
    file, _, name = named.partition("::")
    assert file in FILES
    if name:
        assert re.search(rf"^(async )?def {name}\(", FILES[file].read_text(), re.MULTILINE)


def test_settings_of_the_table_of_limits_exist() -> None:
    table = SECURITY.partition("## Limits\n")[2].partition("\nSettings are")[0]
    named = {name for row in table.splitlines()[3:] for name in re.findall(r"`(\w+)`", row.split("|")[3])}
    described = {line.name for line in Settings.load().describe()}
    of_a_model = {"max_classes", "max_features", "max_memory"}
    assert len(named) > 15
    assert named - described <= of_a_model


METHODS = (ROOT / "docs" / "methods.md").read_text()
KEPT = {one["id"]: one for one in json.loads((ROOT / "docs" / "reproduction" / "figures.json").read_text())}


@pytest.mark.parametrize(
    ("says", "experiments"),
    [
        (
            "| newsgroups20, random 80/20 | {} | {} |",
            [f"newsgroups20-random ff margin={margin} seeds=0,1,2,3,4" for margin in (0, 0.5)],
        ),
        ("| newsgroups20, by date | {} | {} |", [f"newsgroups20 ff margin={margin}" for margin in (0, 0.5)]),
        (
            "| reuters21578, ten topics | {} | {} |",
            [f"reuters10-words ff margin={margin} seeds=0,1,2,3,4" for margin in (0, 0.5)],
        ),
        (
            "| newsgroups20 {}; wordnet-hypernyms P@1 {} |",
            ["newsgroups20-random ff margin=0.5 seeds=0,1,2,3,4", "wordnet-hypernyms ff margin=0.5"],
        ),
        (
            "reuters {} against {} | newsgroups20 {};",
            [
                "reuters10-words ind seeds=0,1,2,3,4",
                "reuters10-words ff margin=0.5 seeds=0,1,2,3,4",
                "newsgroups20-random ind seeds=0,1,2,3,4",
            ],
        ),
        ("rcv1v2 {}; bibtex {} |", ["rcv1v2 swnn S=75 alpha=2 beta=1 depth=5", "bibtex swnn"]),
        ("delicious {} |", ["delicious ogeec neighbors=10 seeds=0,1,2,3,4"]),
        ("labels that stand alone: wordnet-hypernyms {} |", ["wordnet-hypernyms rembrandt decoder=squared"]),
        ("| bibtex {}, delicious {}, in", ["bibtex exmlds1", "delicious exmlds1"]),
        ("| time counts | bibtex {} |", ["bibtex exmlds2"]),
        (
            "| memory | bibtex {}, with `neighbors` 20 {} |",
            ["bibtex exmlds_joint", "bibtex exmlds_joint neighbors=20"],
        ),
        (
            "| bibtex {}, rcv1v2-subset1 {} |",
            [f"{data} exmlds3 hidden=0.8 seeds=0,1,2,3,4" for data in ("bibtex", "rcv1v2-subset1")],
        ),
        (
            "| newsgroups20 {} (svm), reuters21578 {} |",
            [f"{data} one_vs_rest idf=false seeds=0,1,2,3,4" for data in ("newsgroups20-random", "reuters10-words")],
        ),
        ("| without one | wordnet-hypernyms {} |", ["wordnet-hypernyms top_down kind=perceptron idf=false"]),
        ("| otherwise | newsgroups20 {} |", ["newsgroups20-random unweighted"]),
        ("| | newsgroups20 {};", ["newsgroups20-random frequency"]),
    ],
)
def test_figures_of_the_methods_are_those_of_the_reproduction(says: str, experiments: list[str]) -> None:
    figures = [KEPT[one]["measures"]["P@1"] for one in experiments]
    assert says.format(*(f"{figure:.1f}" for figure in figures)) in METHODS
