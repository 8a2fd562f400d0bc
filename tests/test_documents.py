"""What the documents name is there: tests, files and settings."""

import json
import re
from dataclasses import fields
from pathlib import Path

import pytest

from abound.settings import Settings
from abound_core.config import ModelConfig

ROOT = Path(__file__).parent.parent
FILES = {str(path.relative_to(ROOT)): path for path in (ROOT / "tests").rglob("test_*.py")}
SECURITY = (ROOT / "docs" / "security.md").read_text()
AUDIT = (ROOT / "docs" / "security-audit.md").read_text()


@pytest.mark.parametrize("named", sorted(set(re.findall(r"`(tests/[\w/]+\.py(?:::test_\w+)?)`", AUDIT))))
def test_a_test_that_is_named_exists(named: str) -> None:
    file, _, name = named.partition("::")
    assert file in FILES
    if name:
        assert re.search(rf"^(async )?def {name}\(", FILES[file].read_text(), re.MULTILINE)


def test_settings_of_the_tables_of_limits_exist() -> None:
    tables = SECURITY.partition("## Limits\n")[2].partition("\n## ")[0]
    named = {name.lower() for name in re.findall(r"`ABOUND_(\w+)`", tables)}
    assert len(named) > 15
    assert named <= {line.name for line in Settings.load().describe()}
    of_a_model = set(re.findall(r"field `(\w+)` of the model", tables))
    assert len(of_a_model) == 3
    assert of_a_model <= {field.name for field in fields(ModelConfig)}


METHODS = (ROOT / "benchmarks" / "notes" / "methods.md").read_text()
KEPT = {
    one["id"]: one for one in json.loads((ROOT / "benchmarks" / "notes" / "reproduction" / "figures.json").read_text())
}


FIVE = " seeds=0,1,2,3,4"
NEWS, TEN = "newsgroups20-random", "reuters10-words"


@pytest.mark.parametrize(
    ("says", "experiments"),
    [
        ("| newsgroups20, random 80/20 | {} | {} |", [f"{NEWS} ff margin={margin}{FIVE}" for margin in (0, 0.5)]),
        ("| newsgroups20, by date | {} | {} |", [f"newsgroups20 ff margin={margin}" for margin in (0, 0.5)]),
        ("| reuters21578, ten topics | {} | {} |", [f"{TEN} ff margin={margin}{FIVE}" for margin in (0, 0.5)]),
        ("newsgroups20 {}; wordnet", [f"{NEWS} ff margin=0.5{FIVE}"]),
        ("; wordnet-hypernyms P@1 {} |", ["wordnet-hypernyms ff margin=0.5"]),
        ("ten topics {}, `ff` {} |", [f"{TEN} ind{FIVE}", f"{TEN} ff margin=0.5{FIVE}"]),
        ("| `ind` | newsgroups20 {};", [f"{NEWS} ind{FIVE}"]),
        ("rcv1v2 {}; bibtex {} |", ["rcv1v2 swnn S=75 alpha=2 beta=1 depth=5", "bibtex swnn"]),
        ("delicious {}; 2.4", [f"delicious ogeec neighbors=10{FIVE}"]),
        ("bibtex 64.2; wordnet-hypernyms {} |", ["wordnet-hypernyms rembrandt decoder=squared"]),
        ("| bibtex {}, delicious {}, in", ["bibtex exmlds1", "delicious exmlds1"]),
        ("| `exmlds2` | bibtex {} |", ["bibtex exmlds2"]),
        ("| bibtex {}, with `neighbors` 20 {} |", ["bibtex exmlds_joint", "bibtex exmlds_joint neighbors=20"]),
        ("| bibtex {}, rcv1v2-", [f"bibtex exmlds3 hidden=0.8{FIVE}"]),
        ("rcv1v2-subset1 {} |", [f"rcv1v2-subset1 exmlds3 hidden=0.8{FIVE}"]),
        ("| newsgroups20 {} (svm)", [f"{NEWS} one_vs_rest idf=false{FIVE}"]),
        (" (svm), reuters21578 {};", [f"{TEN} one_vs_rest idf=false{FIVE}"]),
        ("| `top_down` | wordnet-hypernyms {} |", ["wordnet-hypernyms top_down kind=perceptron idf=false"]),
        ("| `unweighted` | newsgroups20 {} |", [f"{NEWS} unweighted"]),
        ("| `frequency` | newsgroups20 {};", [f"{NEWS} frequency"]),
    ],
)
def test_figures_of_the_methods_are_those_of_the_reproduction(says: str, experiments: list[str]) -> None:
    figures = [KEPT[one]["measures"]["P@1"] for one in experiments]
    assert says.format(*(f"{figure:.1f}" for figure in figures)) in METHODS
