"""Every command of the documents runs, and prints what the document says."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from abound.cli.main import app
from abound.jobs.methods import METHODS
from tests.documents.blocks import COMMANDS, OTHERS, PAGES, ROOT, Block, Command, agrees, blocks_of
from tests.documents.session import Shell, session

BLOCKS = [block for page in PAGES for block in blocks_of(page)]
ROOT_COMMAND = typer.main.get_command(app)
USAGE_ERROR = typer.BadParameter.__mro__[1]
"""What the parser raises; typer exports only this kind of it."""
HARMLESS = (
    "abound audit",
    "abound config",
    "abound history show",
    "abound keys list",
    "abound snapshots create",
    "abound verify",
    "abound versions activate live",
)
"""Commands that stand whole in sentences, and change nothing that another one relies on."""

TYPED = [block for block in BLOCKS if block.language in COMMANDS]


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    with session(tmp_path_factory.mktemp("documents")) as made:
        yield made


@pytest.mark.long
@pytest.mark.parametrize(
    "page", [page for page in PAGES if any(b.page == page and not b.reason for b in TYPED)], ids=lambda page: page.name
)
@pytest.mark.timeout(900)
def test_what_a_page_says_to_type_does_what_it_says(shell: Shell, page: Path) -> None:
    for block in TYPED:
        if block.page == page and block.reason is None:
            for command, printed, complained in shell.run(block):
                if command.prints is not None:
                    assert agrees(command.prints, printed), f"{block}: {command.text}\n{printed}\n{complained}"


@pytest.mark.parametrize("block", [block for block in TYPED if block.reason and not block.by], ids=str)
def test_what_is_not_run_has_a_reason(block: Block) -> None:
    assert block.reason
    assert len(block.reason) > 20
    pytest.skip(block.reason)


@pytest.mark.parametrize("block", [block for block in TYPED if block.by], ids=str)
def test_what_is_run_by_a_test_of_its_own_is_read_there(block: Block) -> None:
    assert block.by
    assert "block_of(__file__)" in (ROOT / block.by).read_text()


def test_every_block_says_what_it_is() -> None:
    assert [f"{block}: {block.language}" for block in BLOCKS if block.language not in COMMANDS + OTHERS] == []
    assert len(TYPED) > 5


def commands_in_the_text() -> list[str]:
    """``abound ...`` inside of sentences and tables, and in blocks that are not run."""
    found = set()
    for page in PAGES:
        text = re.sub(r"<details>.*?</details>", "", page.read_text(), flags=re.DOTALL)
        found |= set(re.findall(r"`((?:\.venv/bin/)?abound [a-z][^`\n]*)`", text))
    for block in TYPED:
        if block.reason:
            texts = (command.text.partition("#")[0].strip() for command in block.commands)
            typed = (re.search(r"(?:^|-- |/|[|;] *)(abound [a-z].*)", text) for text in texts)
            found |= {match[1] for match in typed if match is not None}
    return sorted(text[text.index("abound ") :].replace("...", "").strip() for text in found)


@pytest.mark.long
@pytest.mark.parametrize("text", [text for text in commands_in_the_text() if text in HARMLESS])
def test_a_command_in_a_sentence_that_does_no_harm_runs(shell: Shell, text: str) -> None:
    [(_, printed, _)] = shell.run(Block(ROOT, 0, "sh", [Command(text, None)], None))
    assert printed.strip()


def test_what_does_no_harm_is_still_named() -> None:
    assert set(HARMLESS) <= set(commands_in_the_text())


def fault_of(text: str) -> str | None:
    """Why a command would not be taken as it stands; None where it would be, once what it leaves out is given."""
    words = shlex.split(re.split(r"[|>](?!\S)", text)[0])[1:]
    command: Any = ROOT_COMMAND
    while hasattr(command, "commands") and words:
        if words[0] not in command.commands:
            return f"no command {words[0]}"
        command = command.commands[words.pop(0)]
    if hasattr(command, "commands"):
        return None
    try:
        given = command.make_context("abound", words).params
    except USAGE_ERROR as error:
        without = type(error).__name__ == "MissingParameter"  # a sentence may name a command without what it acts on
        return None if without else str(error)
    if text.startswith("abound jobs submit") and given["method"] not in METHODS:
        return f"no method {given['method']}"
    return None


@pytest.mark.parametrize("text", commands_in_the_text())
def test_a_command_that_is_named_is_one(text: str) -> None:
    assert fault_of(text) is None


@pytest.mark.parametrize(
    "text",
    [
        "abound jobs submit nothing_like_this --model x",
        "abound versions activate live extra words",
        "abound versions activate live --nothing",
        "abound classify - --min-probability 2",
        "abound jobs nothing",
    ],
)
def test_a_command_that_would_not_be_taken_is_found(text: str) -> None:
    assert fault_of(text) is not None


@pytest.mark.parametrize(
    ("said", "printed", "good"),
    [
        ('{"offset":"1763600000000-0.3"}', '{"offset":"1763600000001-7.0"}\n', True),
        ('{"labels":[{"label":"a",\n"score":0.5}]}', '{"labels":[{"label":"a","score":0.5}]}', True),
        ('{"score":0.08164966106414795}', '{"score":0.97164966106414795}', False),
        ('{"name":"shop",…"classes":3}', '{"name":"shop","memory":17,"classes":3}', True),
        ('{"name":"shop",…"classes":3}', '{"name":"shop","memory":17,"classes":4}', False),
    ],
)
def test_what_agrees(said: str, printed: str, good: bool) -> None:
    assert agrees(said, printed) is good
