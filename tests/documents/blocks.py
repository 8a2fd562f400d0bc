"""What the documents tell people to type, and what they say comes of it.

    ```console          commands behind ``$``, and what they print
    ```sh               commands alone
    ```python           a program
    <!-- not run: why -->     before a block that no test can run
    <!-- run by FILE: why -->  before one that a test of its own runs: it cannot stand beside the others

In what is printed ``…`` stands for anything, and so does whatever differs from run to run: offsets, ids, times.
"""

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md")),
    *(page for folder in ("docs", "benchmarks/notes") for page in sorted((ROOT / folder).rglob("*.md"))),
]
COMMANDS = ("sh", "console", "python")
OTHERS = ("mermaid", "json", "yaml", "nginx", "text")

FENCE = re.compile(r"^```(\S*)[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
ALONE = re.compile(r"<!-- (?:not run|run by (\S+)): ((?:(?!-->).)*) -->\s*\Z", re.DOTALL)

VOLATILE = [
    re.compile(pattern)
    for pattern in (
        r"\b\d{13}-\d+-[\w-]{22}",  # ids of remembered instances
        r"\b\d{13}-\d+(\.\d+)?",  # offsets
        r"(?<=\"request_id\":\")[^\"]*",
        r"\babk_[0-9a-f]+_[\w-]+",
        r"(?<!\d\.)\b[0-9a-f]{12,64}\b",  # ids, digests, incarnations; not what stands behind a decimal point
        r"\b1[6-9]\d{8}(\.\d+)?\b",  # seconds since the epoch
        r"\b\d+(\.\d+)? s\b",
        r"(?<=\"seconds\": )[\d.]+",
        r"\(?[\d,]+ a second\)?",
    )
]


@dataclass(frozen=True)
class Command:
    """A command, and what it prints: None where the document does not say."""

    text: str
    prints: str | None


@dataclass(frozen=True)
class Block:
    """A block of commands, which may have a reason why it is not run with the others."""

    page: Path
    line: int
    language: str
    commands: list[Command]
    reason: str | None
    by: str | None = None  # the file of tests that runs it all the same

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks_of(page: Path) -> list[Block]:
    """All fenced blocks of a page."""
    text = page.read_text()
    found = []
    for match in FENCE.finditer(text):
        alone = ALONE.search(text[: match.start()])
        language = match[1]
        commands = {"console": _dialogue, "sh": _script, "python": _program}.get(language, lambda body: [])(match[2])
        line = text.count("\n", 0, match.start()) + 1
        reason, by = (" ".join(alone[2].split()), alone[1]) if alone else (None, None)
        found.append(Block(page, line, language, commands, reason, by))
    return found


def block_of(file: str) -> Block:
    """The block that a file of tests runs."""
    [found] = [one for page in PAGES for one in blocks_of(page) if one.by and (ROOT / one.by) == Path(file)]
    return found


def _dialogue(body: str) -> list[Command]:
    """Commands behind ``$``; one goes on behind a backslash."""
    commands: list[Command] = []
    lines = body.splitlines()
    at = 0
    while at < len(lines):
        assert lines[at].startswith("$ "), lines[at]
        text = lines[at][2:]
        at += 1
        while text.endswith("\\"):
            text += "\n" + lines[at].removeprefix("> ")
            at += 1
        printed = []
        while at < len(lines) and not lines[at].startswith("$ "):
            printed.append(lines[at])
            at += 1
        commands.append(Command(text, "\n".join(printed)))
    return commands


def _script(body: str) -> list[Command]:
    joined = body.replace("\\\n", " ")
    return [Command(line, None) for line in joined.splitlines() if line.strip() and not line.startswith("#")]


def _program(body: str) -> list[Command]:
    return [Command(f"python -c {shlex.quote(body)}", None)]


def agrees(said: str, printed: str) -> bool:
    """Whether a document says what was printed."""
    pattern = ".*?".join(re.escape(_plain(part)) for part in said.split("…"))
    return re.fullmatch(pattern, _plain(printed), re.DOTALL) is not None


def _plain(text: str) -> str:
    """Without line ends, space at the ends, and what differs from run to run."""
    text = "".join(line.strip() if line[:1] in '{["' else line + " " for line in text.splitlines())
    for pattern in VOLATILE:
        text = pattern.sub("~", text)
    return re.sub(r"\s+", "", text)
