"""Programs of the system that tests drive."""

from __future__ import annotations

import shutil

import pytest


def needs(program: str) -> str:
    """The path of a program; skips where it is missing."""
    found = shutil.which(program)
    if found is None:
        pytest.skip(f"{program} is not installed")
    return found
