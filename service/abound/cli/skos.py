"""SKOS: the concepts of a vocabulary as labels, read with rdflib (the extra ``skos``).

A concept gives its ``skos:prefLabel`` as the name, its ``skos:definition`` as the description, its ``skos:altLabel`` as
aliases, and as the parent the first ``skos:broader`` that closes no cycle. Concepts marked ``owl:deprecated`` are left
out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Literal

from abound_core.errors import Malformed

if TYPE_CHECKING:
    from rdflib import Graph, Node

ConceptId = Literal["uri", "notation", "name"]  # what becomes the label of a concept
FORMATS = {".ttl": "turtle", ".rdf": "xml", ".nt": "nt", ".jsonld": "json-ld"}  # by suffix; ``.gz`` may follow
MAX_DESCRIPTION, MAX_ALIASES = 4096, 1000  # characters, and names; more are left out


def format_of(file: str) -> str | None:
    stem = file.removesuffix(".gz")
    return next((form for suffix, form in FORMATS.items() if stem.endswith(suffix)), None)


def read_concepts(
    file: str, language: str, label: ConceptId, say: Callable[[str], None] = lambda line: None
) -> Iterator[dict[str, Any]]:
    """Yield the concepts of a file, ordered by URI, as registrations. The file is held in memory.

    ``language`` also stands for its regions: ``en`` for ``en-GB``. Where a concept has no texts in it, those without a
    language count. ``say`` gets a line for each parent that is left out. Raises Malformed if there are no concepts or
    none has a name in this language, or one has no such label.
    """
    graph = _parsed(file)
    from rdflib import OWL, RDF, SKOS, Literal, URIRef

    language = language.lower()

    def text_of(concept: Node, predicate: URIRef) -> list[str]:
        given: dict[str, list[str]] = {}
        for one in sorted(graph.objects(concept, predicate), key=str):
            if isinstance(one, Literal):
                given.setdefault((one.language or "").lower(), []).append(str(one))
        regional = [text for own in sorted(given) if own.startswith(f"{language}-") for text in given[own]]
        return given.get(language) or regional or given.get("", [])

    def label_of(concept: Node) -> str:
        if label == "uri":
            return str(concept)
        found = (
            text_of(concept, SKOS.prefLabel)
            if label == "name"
            else sorted(map(str, graph.objects(concept, SKOS.notation)))
        )
        if not found:
            raise Malformed(f"{file}: the concept {concept} has no {label}; choose another --concept-label")
        return found[0]

    concepts = set(graph.subjects(RDF.type, SKOS.Concept)) - set(graph.subjects(OWL.deprecated, Literal(True)))
    if not concepts:
        raise Malformed(f"{file}: there is no skos:Concept")
    named = [name for one in concepts for name in graph.objects(one, SKOS.prefLabel) if isinstance(name, Literal)]
    languages = Counter((name.language or "").lower() for name in named)
    if any(languages) and not any(one == language or one.startswith(f"{language}-") for one in languages):
        counts = ", ".join(f"{one or 'no language'} ({n:,})" for one, n in languages.most_common())
        raise Malformed(f"{file}: no concept has a name in the language {language}; names are in {counts}")
    labels = {concept: label_of(concept) for concept in concepts}
    taken = set(labels.values())  # an alias means one label
    parents: dict[Node, Node] = {}
    for concept in sorted(concepts, key=str):
        for broader in sorted((one for one in graph.objects(concept, SKOS.broader) if one in concepts), key=str):
            above = [broader]
            while above[-1] in parents:
                above.append(parents[above[-1]])
            if concept not in above:
                parents[concept] = broader
                break
            say(f"left out, because it closes a cycle: {concept} skos:broader {broader}")
        found: dict[str, Any] = {
            "label": labels[concept],
            "name": next(iter(text_of(concept, SKOS.prefLabel)), None),
            "aliases": [name for name in text_of(concept, SKOS.altLabel) if name not in taken][:MAX_ALIASES],
            "description": "; ".join(text_of(concept, SKOS.definition))[:MAX_DESCRIPTION],
            "parent": labels[parents[concept]] if concept in parents else None,
            "metadata": {"uri": str(concept)} if label != "uri" else None,
        }
        taken.update(found["aliases"])
        yield {name: value for name, value in found.items() if value}


def _parsed(file: str) -> Graph:
    import fsspec

    from abound.datasets.files import file_errors

    try:
        from rdflib import Graph
    except ImportError as error:
        raise Malformed(f"{file}: SKOS needs rdflib: pip install 'abound[skos]'") from error
    with file_errors(file), fsspec.open(file, "rb", compression="infer") as stream:
        data = stream.read()
    try:
        return Graph().parse(data=data, format=format_of(file))
    except Exception as error:  # each parser of rdflib has errors of its own
        reason = str(error).strip().partition("\n")[0]
        raise Malformed(f"{file}: not {format_of(file)}, or damaged: {reason}") from error
