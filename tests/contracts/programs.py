"""Programs of the system that tests drive."""

import shutil
from contextlib import suppress

import pytest
import redis

from tests.support.job_worker import until


def needs(program: str) -> str:
    """The path of a program; skips where it is missing."""
    found = shutil.which(program)
    if found is None:
        pytest.skip(f"{program} is not installed")
    return found


def until_it_answers(store: redis.Redis) -> None:
    def answers() -> bool:
        with suppress(redis.exceptions.ConnectionError):
            return bool(store.ping())
        return False

    until(answers, 30)
