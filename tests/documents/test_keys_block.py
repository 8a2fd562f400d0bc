"""The commands for keys of the page on security, before a service of their own, which asks for keys from then on."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.documents.blocks import Block, Command, block_of
from tests.documents.session import Shell, session

MADE_UP = "0123456789ab"


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    with session(tmp_path) as made:
        yield made


def status(url: str, secret: str | None) -> int:
    headers = {"Authorization": f"Bearer {secret}"} if secret else {}
    return httpx.post(f"{url}/models/shop/classify", json={"text": "wheat"}, headers=headers, timeout=60).status_code


def until(url: str, secret: str | None, wanted: int) -> None:
    """Everywhere within about a second."""
    deadline = time.monotonic() + 20
    while status(url, secret) != wanted:
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.long
def test_keys_are_made_listed_rotated_and_revoked_as_the_page_says(shell: Shell) -> None:
    block = block_of(__file__)
    verbs = [command.text.split()[2] for command in block.commands]
    assert verbs == ["create", "create", "list", "rotate", "revoke"]

    def run(at: int, key: str = MADE_UP) -> str:
        command = Command(block.commands[at].text.replace(MADE_UP, key), None)
        [(_, said, _)] = shell.run(Block(block.page, block.line, "sh", [command], None))
        return said.strip()

    httpx.put(f"{shell.url}/models/shop", json={}, timeout=60).raise_for_status()
    assert status(shell.url, None) == 200
    admin = run(0)
    until(shell.url, None, 401)
    secret = run(1)
    until(shell.url, secret, 200)
    for path, given, expected in (("/models/default", secret, 403), ("/keys", admin, 200)):
        answer = httpx.get(f"{shell.url}{path}", headers={"Authorization": f"Bearer {given}"}, timeout=60)
        assert answer.status_code == expected
    [key] = re.findall(r"^abk_([0-9a-f]{12})_", secret)
    listed = run(2)
    assert key in listed
    assert secret.rpartition("_")[2] not in listed
    rotated = run(3, key)
    until(shell.url, rotated, 200)
    assert status(shell.url, secret) == 200  # for an hour
    [newer] = re.findall(r"^abk_([0-9a-f]{12})_", rotated)
    run(4, newer)
    until(shell.url, rotated, 401)
    assert status(shell.url, secret) == 200
