"""Programs of the system that tests drive."""

from __future__ import annotations

import shutil
import time

import pytest
import redis


def needs(program: str) -> str:
    """The path of a program; skips where it is missing."""
    found = shutil.which(program)
    if found is None:
        pytest.skip(f"{program} is not installed")
    return found


def until_it_answers(store: redis.Redis) -> None:
    deadline = time.monotonic() + 30
    while True:
        try:
            store.ping()
            return
        except redis.exceptions.ConnectionError:
            assert time.monotonic() < deadline
            time.sleep(0.05)
