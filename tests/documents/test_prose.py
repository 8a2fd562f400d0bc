"""Spelling, links and wording of the pages."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MARKDOWN = sorted(
    path
    for pattern in ("*.md", "docs/**/*.md", "benchmarks/notes/*.md", "packages/*/README.md", "examples/**/README.md")
    for path in ROOT.glob(pattern)
    if "node_modules" not in path.parts
)
LAB_NOTES = {"CHANGELOG.md", "experiments.md"}
PROSE = [path for path in MARKDOWN if path.name not in LAB_NOTES]
BARE_DECIMAL = r"(?<![\w.)\]/`])\.\d+"
AMERICAN = r"\b(?:colors?|neighbor|behaviors?|catalogs?|normalized|optimized?|canceled|labeled|analyzed?)\b"
WEB = ROOT / "service" / "abound" / "web"
WIDTH = 100
CODE = re.compile(r"`[^`]*`")

WORDS = {
    r"anew": "again",
    r"for good": "permanently",
    r"for ever": "forever",
    r"whoever|whosoever": "name the reader: an operator, a client",
    r"is told|are told|was told|is had": "reports, shows",
    r"by itself|by themselves": "automatically, or leave it out",
    r"comes? to be": "becomes",
    r"one that is|those that are": "name the thing",
    r"at one's own": "name the person",
    r"doorkeeper|stables?|horses?|shelf|shelves": "the name of the component",
    r"simply|obviously|of course": "leave it out",
    r"allows to": "lets you, lets the service",
    r"e\.g\.|i\.e\.": "for example, that is",
}
"""Our word list: a pattern, and what to write instead."""

STARTS = r"(?:^|[.!?] )(?:What|Whoever|Those that|One that)\b(?! [^.!?]*\?)"
"""A subject clause that starts a sentence; a question may."""


LONGEST = 30
"""Most words of a sentence, or of a part of one that a colon ends."""

PARTS = re.compile(r"(?<=[.!?:])[)*]*\s+")
ITEM = re.compile(r"(?:[-*]|\d+\.) ")


def passages(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the lines of prose and headings with their numbers, without code, comments and images."""
    inside = None
    for number, line in enumerate(path.read_text().splitlines(), 1):
        text = line.strip()
        if inside is None and text.startswith("```"):
            inside = "```"
        elif inside is None and text.startswith("<!--") and "-->" not in text:
            inside = "-->"
        elif inside is not None:
            inside = None if inside in text else inside
        elif text and not text.startswith(("!", "<")):
            yield number, line


def paragraphs(path: Path) -> Iterator[str]:
    """Yield headings, paragraphs and items of lists, each as one line, without tables and the targets of links."""
    lines: list[str] = []
    before = 0
    for number, line in [*passages(path), (0, "")]:
        if lines and (number != before + 1 or line.startswith(("#", "|")) or ITEM.match(line.strip())):
            yield re.sub(r"\]\([^)]*\)", "]", CODE.sub("code", " ".join(lines)))
            lines = []
        before = number
        if not line.startswith("|"):
            lines.append(line.strip())


def test_the_spelling_is_right() -> None:
    done = subprocess.run(
        [Path(sys.executable).with_name("typos"), "--format", "brief"], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_proselint_finds_nothing() -> None:
    """``.proselintrc.json`` leaves out typography (pages are plain text) and repeated words (titles repeat theirs)."""
    linter = [Path(sys.executable).with_name("proselint"), "check", "--config", ".proselintrc.json"]
    done = subprocess.run([*linter, *PROSE], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def unusual(text: str) -> list[str]:
    return [
        f"{match[0]!r}: {advice}"
        for pattern, advice in WORDS.items()
        for match in re.finditer(rf"(?<![\w-])(?:{pattern})(?!\w)".replace(" ", r"\s+"), text, re.IGNORECASE)
    ]


@pytest.mark.parametrize("path", sorted(WEB.glob("*.js")), ids=lambda path: path.name)
def test_the_words_of_the_page_are_those_that_engineers_use(path: Path) -> None:
    literals = re.findall(r'"[^"\n]*"|`[^`\n]*`', path.read_text())
    texts = [re.sub(r"\$\{[^}]*\}", "1", one[1:-1]) for one in literals if " " in one]
    sentences = [one for text in texts for one in PARTS.split(text)]
    assert unusual("\n".join(texts)) == []
    assert [one for one in sentences if len(one.split()) > LONGEST] == []
    assert [one for one in sentences if one.endswith(".") and re.search(STARTS, one)] == []


def messages(path: Path) -> Iterator[str]:
    """Yield the messages with which a module raises errors; values in them are left out."""
    for raised in ast.walk(ast.parse(path.read_text())):
        if isinstance(raised, ast.Raise) and isinstance(raised.exc, ast.Call):
            for text in raised.exc.args[:1]:
                parts = text.values if isinstance(text, ast.JoinedStr) else [text]
                constants = [one.value if isinstance(one, ast.Constant) else "``" for one in parts]
                if " " in (message := "".join(map(str, constants))):
                    yield message


@pytest.mark.parametrize("package", ["core", "service"])
def test_error_messages_are_plain(package: str) -> None:
    """The help of commands is on a page, which is read with the others."""
    texts = [text for path in sorted((ROOT / package).rglob("*.py")) for text in messages(path)]
    assert len(texts) > 100
    assert [found for text in texts if (found := unusual(text) + re.findall(AMERICAN, text))] == []
    assert [one for text in texts for one in re.split(r"(?<=[.!?:;])\s+", text) if len(one.split()) > LONGEST] == []


@pytest.mark.parametrize("path", PROSE, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_the_words_are_those_that_engineers_use(path: Path) -> None:
    text = "\n".join(CODE.sub("``", line) for _, line in passages(path))
    found = unusual(text)
    found += [f"{match[0]!r} starts a sentence" for match in re.finditer(STARTS, text, re.MULTILINE)]
    if "notes" not in path.parts:
        found += re.findall(rf"{BARE_DECIMAL}|{AMERICAN}", text, re.IGNORECASE)
    assert found == []


@pytest.mark.parametrize("path", PROSE, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_no_sentence_is_long(path: Path) -> None:
    sentences = [one for paragraph in paragraphs(path) for one in PARTS.split(paragraph)]
    assert [one for one in sentences if len(one.split()) > LONGEST] == []


@pytest.mark.parametrize("path", MARKDOWN, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_lines_are_wrapped_and_links_lead_to_files(path: Path) -> None:
    lines = list(passages(path))
    if path.name != "CHANGELOG.md":
        wide = [number for number, line in lines if len(CODE.sub("``", line)) > WIDTH and not line.startswith("|")]
        assert wide == []
    links = re.findall(r"\]\(([^)#\s:]+)(?:#[\w-]*)?\)", path.read_text())
    assert [link for link in links if not (path.parent / link).exists()] == []
