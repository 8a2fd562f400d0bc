"""``abound register`` with a vocabulary in SKOS."""

import gzip
from pathlib import Path

import pytest

from abound.cli.skos import MAX_DESCRIPTION, read_concepts
from abound_core.errors import Malformed
from tests.support.command_line import Run
from tests.support.served import Served

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
