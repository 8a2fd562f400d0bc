"""``abound register`` and ``abound labels``: names of labels on the command line, from tables and SKOS vocabularies."""

import csv
import gzip
import json
from pathlib import Path

import pytest

from abound.cli.skos import MAX_DESCRIPTION, read_concepts
from abound.client import Client
from abound_core.errors import Malformed
from tests.support.command_line import Run
from tests.support.served import Served

LINES = (
    '{"label": "c7", "name": "Wheat", "metadata": {"colour": "red"}}\n\n{"label": "c8", "description": "crude oil"}\n'
)
TABLE = "label,name,description,parent,colour\nc7,Wheat,,c0,red\nc8,,crude oil,,\n"


@pytest.fixture
def url(service: Served) -> str:
    return service.url


@pytest.mark.parametrize(
    ("name", "content"),
    [("some.jsonl", LINES), ("some.csv", TABLE), ("some.tsv", TABLE.replace(",", "\t")), ("some.jsonl.gz", LINES)],
    ids=["jsonl", "csv", "tsv", "gz"],
)
def test_a_file_of_labels_is_registered(run: Run, url: str, tmp_path: Path, name: str, content: str) -> None:
    model = name.replace(".", "-")
    run("models", "create", model, "--url", url)
    path = tmp_path / name
    path.write_bytes(gzip.compress(content.encode()) if name.endswith(".gz") else content.encode())
    said = run("register", path, "--url", url, "-m", model, "--source", "catalogue", "--json")
    counts = {"registered": 2, "names": 1, "descriptions": 1, "parents": int(".csv" in name or ".tsv" in name)}
    counts["aliases"] = 0
    assert said.json == counts | {"offset": said.json["offset"]}
    listed = run("labels", "--url", url, "-m", model, "--json").json
    assert set(listed["learned"]) == {0}
    assert listed["details"]["c7"]["metadata"] == {"colour": "red"}
    assert listed["details"]["c8"]["description"] == "crude oil"
    assert "Wheat" in run("labels", "--url", url, "-m", model, "--contains", "whea").out
    with Client(url) as client:
        [found] = client.model(model).classify("wheat", names=True).labels
        assert (found.label, found.name, found.zero_shot) == ("c7", "Wheat", True)


def test_lists_are_searched_and_sorted_and_answers_stay_below_a_label(run: Run, url: str, tmp_path: Path) -> None:
    at = ("--url", url, "-m", "tree")
    labels, texts = tmp_path / "labels.csv", tmp_path / "texts.jsonl"
    labels.write_text("label,name,parent\nc1,Café,c0\nc2,Tea,c0\nc3,Mugs,\n")
    texts.write_text("".join(json.dumps({"text": "red", "labels": [one]}) + "\n" for one in ("c1", "c2", "c3", "c3")))
    run("models", "create", "tree", "--url", url, "--set", "update=sls")
    assert "3 labels registered: 3 names, 0 descriptions, 2 parents" in run("register", labels, *at, "--no-learn").out
    run("learn", texts, *at)
    assert run("labels", *at, "--contains", "CAFE", "--json").json["labels"] == ["c1"]
    assert run("labels", *at, "--sort", "count", "--json").json["labels"] == ["c3", "c1", "c2", "c0"]
    assert "c1     1        0.00  Café" in run("labels", *at, "--sort", "R@1").out

    def answered(*options: str) -> set[str]:
        lines = run("classify", texts, *at, "--limit", "1", *options).out.splitlines()
        return {one["label"] for one in json.loads(lines[0])["labels"]}

    assert answered("--include", "c0") == {"c1", "c2"}
    assert answered("--include", "c1", "--include", "c3", "--exclude", "c1") == {"c3"}
    assert answered("--exclude", "c0", "--exclude", "c3") == set()
    assert answered("--known", "c1", "--known", "c3") == {"c2"}
    [levels] = run("classify", texts, *at, "--limit", "1", "--levels", "--include", "c1").out.splitlines()
    assert json.loads(levels)["labels"][0]["path"] == ["c0", "c1"]
    assert "did you mean 'c1'" in run("classify", texts, *at, "--include", "cafes").err


def test_answers_have_the_names_that_are_asked_for(run: Run, url: str, tmp_path: Path) -> None:
    labels, texts, output = tmp_path / "labels.jsonl", tmp_path / "texts.jsonl", tmp_path / "answers.csv"
    labels.write_text('{"label": "c7", "name": "Wheat"}\n')
    texts.write_text('{"text": "wheat prices", "labels": ["c9"]}\n')
    run("models", "create", "asked", "--url", url)
    run("register", labels, "--url", url, "-m", "asked")
    run("learn", texts, "--url", url, "-m", "asked")
    asked = ("classify", texts, "--url", url, "-m", "asked")
    with_names = json.loads(run(*asked, "--names").out)["labels"]
    assert {(one["label"], one.get("name")) for one in with_names} == {("c7", "Wheat"), ("c9", None)}
    assert all("name" not in one for one in json.loads(run(*asked).out)["labels"])
    assert [one["label"] for one in json.loads(run(*asked, "--no-zero-shot").out)["labels"]] == ["c9"]
    assert run(*asked, "--names", "-o", output).code == 0
    rows = csv.DictReader(output.read_text().splitlines())
    assert {(one["label"], one["name"]) for one in rows} == {("c7", "Wheat"), ("c9", "")}
    assert run(*asked, "--output-format", "csv").out.splitlines()[0] == "line,rank,label,score,probability,error"


def test_a_vocabulary_may_have_no_header(run: Run, url: str, tmp_path: Path) -> None:
    vocabulary = tmp_path / "vocabulary.tsv"
    vocabulary.write_text('<http://a.org/1>\tWheat, "durum"\n<http://a.org/2>\tMaize\n')
    run("models", "create", "vocabulary", "--url", url)
    assert run("register", vocabulary, "--no-header", "--url", url, "-m", "vocabulary").code == 0
    details = run("labels", "--url", url, "-m", "vocabulary", "--json").json["details"]
    names = {"http://a.org/1": 'Wheat, "durum"', "http://a.org/2": "Maize"}
    assert {label: one["name"] for label, one in details.items()} == names


@pytest.mark.parametrize(
    ("name", "content", "why"),
    [
        ("a.jsonl", "{", "line 1: not an object in JSON"),
        ("a.jsonl", '{"label": "a"}\n["b"]\n', "line 2: not an object in JSON: Expected `object`, got `array`"),
        ("a.csv", "name\nWheat\n", "no column label"),
        ("a.csv", "label,name\n,Wheat\n", "line 2: the label is empty"),
        ("a.csv", "label\n" + "a" * 200_000, "length <= 512"),
        ("a.jsonl", '{"label": "' + "\xc3\xa9" * 9 + '"}\n{"label": "\xff"}', "line 2: not an object in JSON"),
        ("a.xlsx", "{}", "cannot tell the format"),
        ("missing.jsonl", None, "no such file"),
    ],
    ids=["json", "list", "column", "empty", "long", "bytes", "suffix", "missing"],
)
def test_a_wrong_file_is_refused(run: Run, url: str, tmp_path: Path, name: str, content: str | None, why: str) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content.encode("latin-1"))
    said = run("register", path, "--url", url)
    assert said.code == 1
    assert why in said.err


def test_labels_are_changed_one_by_one_and_by_a_file(run: Run, url: str, tmp_path: Path) -> None:
    rows, changes = tmp_path / "rows.jsonl", tmp_path / "changes.csv"
    rows.write_text("".join(json.dumps({"text": f"word{i}", "labels": [f"l{i}"]}) + "\n" for i in range(9)))
    at = ("--url", url, "-m", "changed")
    run("models", "create", "changed", "--url", url)
    run("learn", rows, *at)
    assert "would be changed" in run("labels", "merge", "l0", "l1", "--into", "l2", "--dry-run", *at).out
    assert run("labels", "merge", "l0", "l1", "--into", "l2", *at).out.endswith("2 labels changed\n")
    for command in (["rename", "l3", "drei"], ["retire", "l4"], ["revive", "l4"]):
        assert run("labels", *command, *at).out.endswith("1 label changed\n")
    changes.write_text("from,to,kind\nl5,sechs,rename\nl6,a,split\nl6,b,split\nl7,,retire\nl8,l2,merge\n")
    for dry_run in (["--dry-run"], []):
        made = run("labels", "apply", changes, "--json", *dry_run, *at).out.splitlines()[-1]
        assert json.loads(made) == {"changes": 4, "changed": 4}
    assert run("labels", "apply", changes, *at).out.endswith("0 changes made, 4 were made before\n")
    with Client(url) as client:
        found = client.labels("changed")
        assert set(found["labels"]) == {"l2", "drei", "l4", "sechs", "l6", "a", "b", "l7"}
        assert found["retired"] == ["l6", "l7"]
    listed = run("labels", "changes", *at).out
    assert "rename 'sechs' to 'l5'" in listed
    assert len(listed.splitlines()) == 1 + 9
    assert "l2" in run("labels", *at).out
    shown = run("labels", "show", "l0", *at, "--json").json
    assert (shown["label"], set(shown["aliases"])) == ("l2", {"l0", "l1", "l8"})
    run("labels", "retire", "l2", *at)
    assert "retired" in run("labels", *at).out
    changes.write_text("from,to,kind\nl2,zwei,alias\nnobody,,retire\n")
    refused = run("labels", "apply", changes, *at)
    assert refused.code == 1
    assert "after 0 changes: changes[1].from: the model does not know the label 'nobody'" in refused.err
    changes.write_text("to,kind\na,retire\n")
    assert "no column from" in run("labels", "apply", changes, *at).err


def test_a_tree_is_reorganised_in_several_requests(run, url, tmp_path, monkeypatch):
    monkeypatch.setattr("abound.cli.labels.BATCH", 2)
    at = ("--url", url, "-m", "reorganised")
    run("models", "create", "reorganised", "--url", url)
    for labels in ("abcdef", "fedcba"):
        rows = [f"{label},{above}" for above, label in zip(["", *labels], labels, strict=False)]
        path = tmp_path / "tree.csv"
        path.write_text("\n".join(["label,parent", *sorted(rows)]))
        assert "5 parents" in run("register", path, *at).out
    details = run("labels", *at, "--json").json["details"]
    assert {label: one["parent"] for label, one in details.items()} == dict(zip("edcba", "fedcb", strict=True))


def test_labels_that_look_alike_are_listed(run: Run, service: Served, url: str) -> None:
    labels = ["Café", "tea", "CAFE", "ca fe", "milk", "Tea", "teas"]
    service.http.put("/models/alike", json={}).raise_for_status()
    service.http.post("/models/alike/learn", json={"features": {"a": 1}, "labels": labels}).raise_for_status()
    found = json.loads(run("labels", "--model", "alike", "--similar", "--json", "--url", url).out)
    assert found == {"similar": [["Café", "CAFE"], ["Café", "ca fe"], ["tea", "Tea"]]}
    assert "ca fe" in run("labels", "--model", "alike", "--similar", "--url", url).out


TURTLE = """
@prefix skos: <http://www.w3.org/2004/02/skos/core#> .
@prefix owl: <http://www.w3.org/2002/07/owl#> .
@prefix t: <http://example.org/t/> .
t:cereals a skos:Concept ; skos:prefLabel "Cereals"@en, "Viljat"@fi ; skos:notation "633" .
t:wheat a skos:Concept ; skos:prefLabel "Wheat"@en, "Vehnä"@fi ; skos:altLabel "spelt"@en, "durum"@en ;
  skos:definition "A grass grown for its grain."@en ; skos:broader t:cereals, t:elsewhere ; skos:notation "633.11" .
t:plain a skos:Concept ; skos:prefLabel "Plain" ; skos:notation "0" .
t:gone a skos:Concept ; skos:prefLabel "Gone"@en ; owl:deprecated true .
t:group a skos:Collection ; skos:prefLabel "Group"@en .
"""
BASE = "http://example.org/t/"


@pytest.fixture
def turtle(tmp_path: Path) -> str:
    path = tmp_path / "subjects.ttl"
    path.write_text(TURTLE)
    return str(path)


def test_concepts_are_labels(turtle: str) -> None:
    cereals, plain, wheat = read_concepts(turtle, "en", "uri")
    assert cereals == {"label": f"{BASE}cereals", "name": "Cereals"}
    assert plain == {"label": f"{BASE}plain", "name": "Plain"}
    assert wheat == {
        "label": f"{BASE}wheat",
        "name": "Wheat",
        "aliases": ["durum", "spelt"],
        "description": "A grass grown for its grain.",
        "parent": f"{BASE}cereals",
    }


def test_another_language_and_label(turtle: str) -> None:
    cereals, plain, wheat = read_concepts(turtle, "fi", "notation")
    assert cereals == {"label": "633", "name": "Viljat", "metadata": {"uri": f"{BASE}cereals"}}
    assert plain["name"] == "Plain"
    assert wheat == {"label": "633.11", "name": "Vehnä", "parent": "633", "metadata": {"uri": f"{BASE}wheat"}}
    assert [one["label"] for one in read_concepts(turtle, "en", "name")] == ["Cereals", "Plain", "Wheat"]
    with pytest.raises(Malformed, match=r"language sv; names are in en \(2\), fi \(2\), no language \(1\)"):
        list(read_concepts(turtle, "sv", "name"))


def test_regions_of_a_language_and_parents_that_close_a_cycle(tmp_path: Path) -> None:
    path = tmp_path / "regions.ttl"
    path.write_text(
        TURTLE.partition("t:cereals")[0]
        + """
t:a a skos:Concept ; skos:prefLabel "Grey"@en-GB, "Gray"@en-US ; skos:broader t:b .
t:b a skos:Concept ; skos:prefLabel "Blue"@en, "Azure"@en-GB ; skos:broader t:c .
t:c a skos:Concept ; skos:prefLabel "Cyan"@en-GB ; skos:broader t:a, t:d .
t:d a skos:Concept ; skos:prefLabel "Dim" ; skos:altLabel "Dark"@en-GB ; skos:broader t:d .
"""
    )
    said: list[str] = []
    found = {one["name"]: one.get("parent") for one in read_concepts(str(path), "en", "name", said.append)}
    assert found == {"Grey": "Blue", "Blue": "Cyan", "Cyan": "Dim", "Dim": None}
    assert [line.rpartition(": ")[2] for line in said] == [
        f"{BASE}{one} skos:broader {BASE}{other}" for one, other in ("ca", "dd")
    ]
    american = [one.get("name") for one in read_concepts(str(path), "en-US", "uri")]
    assert american == ["Gray", None, None, "Dim"]


@pytest.mark.parametrize(("suffix", "form"), [("rdf", "xml"), ("nt", "nt"), ("jsonld", "json-ld")])
def test_other_formats(turtle: str, tmp_path: Path, suffix: str, form: str) -> None:
    from rdflib import Graph

    path = tmp_path / f"subjects.{suffix}.gz"
    path.write_bytes(gzip.compress(Graph().parse(turtle).serialize(format=form, encoding="utf-8")))
    assert list(read_concepts(str(path), "en", "uri")) == list(read_concepts(turtle, "en", "uri"))


def test_an_alias_names_one_concept_and_texts_have_limits(turtle: str, tmp_path: Path) -> None:
    path = tmp_path / "many.ttl"
    path.write_text(
        f'{TURTLE}\nt:wheat skos:altLabel "Plain"@en, "barley"@en ; skos:definition "{"long " * 2000}"@en .\n'
        't:cereals skos:altLabel "barley"@en .'
    )
    cereals, _, wheat = read_concepts(str(path), "en", "name")
    assert (cereals["aliases"], wheat["aliases"]) == (["barley"], ["durum", "spelt"])
    assert len(wheat["description"]) == MAX_DESCRIPTION


@pytest.mark.parametrize(
    ("content", "why"),
    [(b"t:wheat a", "not turtle, or damaged"), (b"", "there is no skos:Concept"), (None, "no such file")],
)
def test_damaged_vocabularies(tmp_path: Path, content: bytes | None, why: str) -> None:
    path = tmp_path / "subjects.ttl"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(Malformed, match=why):
        list(read_concepts(str(path), "en", "uri"))


def test_a_vocabulary_is_registered(run: Run, service: Served, turtle: str) -> None:
    run("models", "create", "subjects", "--url", service.url)
    said = run("register", turtle, "--url", service.url, "-m", "subjects", "--concept-label", "notation", "--json")
    assert said.json["registered"] == 3
    assert said.json["aliases"] == 2
    answer = service.http.post("/models/subjects/classify", json={"text": "durum prices", "names": True}).json()
    assert (answer["labels"][0]["label"], answer["labels"][0]["name"]) == ("633.11", "Wheat")
    only = {"text": "durum prices", "include": ["spelt"]}
    assert service.http.post("/models/subjects/classify", json=only).json()["labels"][0]["label"] == "633.11"
