"""docs/reference/http.md has all routes and fields; ``python -m tests.contracts.test_http_page`` writes it."""

import json
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parents[2] / "docs"
PAGE = DOCS / "reference" / "http.md"
DOCUMENT: dict[str, Any] = json.loads((DOCS / "openapi.json").read_text())
SCHEMAS: dict[str, Any] = DOCUMENT["components"]["schemas"]
HEAD = """\
# HTTP reference

This page is generated from `/openapi.json` of the service, which has the same. [The API by
example](../api.md) shows requests with their answers, and how errors look.

| route | what it does |
|---|---|
"""
LIMITS = {
    "minimum": "at least {}",
    "exclusiveMinimum": "above {}",
    "maximum": "at most {}",
    "minItems": "at least {} items",
    "maxItems": "at most {} items",
    "minLength": "at least {} characters",
    "maxLength": "at most {} characters",
    "maxProperties": "at most {} names",
}


def kind_of(schema: dict[str, Any]) -> str:
    """The type of a value in a word or a few, a link for a schema that has a section."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "const" in schema or "enum" in schema:
        values = schema.get("enum", [schema.get("const")])
        return " \\| ".join(f"`{json.dumps(one)}`" for one in values) if len(values) < 12 else f"one of {len(values)}"
    if "anyOf" in schema or "oneOf" in schema:
        kinds = [kind_of(one) for one in schema.get("anyOf", schema.get("oneOf", []))]
        return " or ".join(dict.fromkeys(kind for kind in kinds if kind != "null"))
    kinds = schema.get("type", "any")
    kinds = [kinds] if isinstance(kinds, str) else [kind for kind in kinds if kind != "null"]
    if kinds == ["array"] and schema.get("items"):
        return f"list of {kind_of(schema['items'])}"
    if kinds == ["object"] and isinstance(schema.get("additionalProperties"), dict):
        return f"object of {kind_of(schema['additionalProperties'])}"
    return " or ".join(kinds)


def parts(schema: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """A schema and its alternatives, which may hold its description and its limits."""
    yield schema
    for one in schema.get("anyOf", []):
        yield from parts(one)


def meaning_of(schema: dict[str, Any]) -> str:
    said = next((part["description"] for part in parts(schema) if "description" in part), "")
    limits = {text.format(part[name]): None for part in parts(schema) for name, text in LIMITS.items() if name in part}
    told = f"{', '.join(limits)[:1].upper()}{', '.join(limits)[1:]}." if limits else ""
    return " ".join(f"{said} {told}".replace("|", "\\|").split())


def fields(properties: dict[str, Any], required: list[str]) -> str:
    rows = "| field | type | default | meaning |\n|---|---|---|---|\n"
    for name, schema in properties.items():
        default = (
            "required" if name in required else f"`{json.dumps(schema['default'])}`" if "default" in schema else ""
        )
        rows += f"| `{name}` | {kind_of(schema)} | {default} | {meaning_of(schema)} |\n"
    return rows


def body_of(content: dict[str, Any]) -> str:
    return ", ".join(f"`{media}`: {kind_of(one['schema'])}" for media, one in content.items() if "schema" in one)


def wrapped(*paragraphs: str) -> str:
    lines = [textwrap.fill(" ".join(one.split()), 100) for text in paragraphs for one in text.split("\n\n") if one]
    return "\n\n".join(lines)


def item(text: str) -> str:
    return textwrap.fill(text, 100, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False) + "\n"


def operation(method: str, path: str, found: dict[str, Any]) -> str:
    text = f"\n### {method.upper()} {path}\n\n{wrapped(found['summary'] + '.', found.get('description', ''))}\n\n"
    parameters = [one for one in found.get("parameters", []) if one["in"] == "query"]
    if parameters:
        schemas = {one["name"]: {**one["schema"], "description": one.get("description", "")} for one in parameters}
        text += fields(schemas, [one["name"] for one in parameters if one.get("required")]) + "\n"
    if "requestBody" in found:
        text += item(f"- Body: {body_of(found['requestBody']['content'])}")
    for status, answer in found["responses"].items():
        if status.startswith("2"):
            said = body_of(answer.get("content", {}))
            text += item(f"- {status}: {answer['description'].rstrip('.')}{f' ({said})' if said else ''}")
    return text + item(f"- Errors: {', '.join(sorted(one for one in found['responses'] if one > '3'))}")


def routes() -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, item in DOCUMENT["paths"].items():
        for method, found in item.items():
            yield method, path, found


def page() -> str:
    listed = "".join(f"| `{method.upper()} {path}` | {found['summary']} |\n" for method, path, found in routes())
    sections = ""
    for group in DOCUMENT["tags"]:
        sections += f"\n## Routes: {group['name']}\n\n{group.get('description', '')}\n"
        sections += "".join(operation(*route) for route in routes() if route[2]["tags"] == [group["name"]])
    schemas = "\n## Schemas\n"
    for name, schema in SCHEMAS.items():
        schemas += f"\n### {name}\n\n" + "".join(
            f"{one}\n\n" for one in [wrapped(schema.get("description", ""))] if one
        )
        if schema.get("properties"):
            schemas += fields(schema["properties"], schema.get("required", []))
        elif kind_of(schema) != "object":
            schemas += f"{kind_of(schema)}\n"
    return "\n".join(line.rstrip() for line in (HEAD + listed + sections + schemas).splitlines()) + "\n"


def test_the_page_is_that_of_the_document() -> None:
    assert PAGE.read_text() == page(), "python -m tests.contracts.test_http_page writes it"


if __name__ == "__main__":
    PAGE.write_text(page())
