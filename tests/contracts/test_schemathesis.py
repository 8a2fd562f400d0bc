"""Requests made up from the OpenAPI document, good and bad, against the running service.

Whatever is sent: no error of the service, no status and no media type that the document does not name for the
operation, every answer of its documented shape, and nothing that breaks the document is taken as good.
"""

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from abound.datasets.check import counts
from abound.datasets.files import resolve_file
from abound.datasets.repository import DatasetRepository
from abound_core.errors import InvalidInstance, Malformed
from tests.randomness import THOROUGH
from tests.support.served import Served

REQUESTS = Path(__file__).with_name("made_up_requests.py")


@pytest.fixture
def checked_here(service: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """Data sets are checked in this process: one for each request would take minutes."""
    artifacts = Path(service.settings.artifacts_location() or "")

    async def check(self, name, file, options, environment, client_left) -> dict[str, object]:
        def counted() -> dict[str, object]:
            (path,) = artifacts.glob(f"*/{file}")
            resolved = resolve_file(str(path), options)
            return {**counts(path, 10**6, options=resolved), "options": msgspec.to_builtins(resolved)}

        try:
            return await asyncio.to_thread(counted)
        except Malformed as error:
            raise InvalidInstance(str(error), "body") from error

    monkeypatch.setattr(DatasetRepository, "_counts", check)


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.usefixtures("checked_here")
def test_no_request_finds_the_service_outside_its_document(service: Served, tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    options = ["-q", "-p", "no:cacheprovider", f"--basetemp={tmp_path}/requests", f"--hypothesis-profile={THOROUGH}"]
    words = [sys.executable, "-m", "pytest", *options, str(REQUESTS)]
    done = subprocess.run(words, env=environment | {"SERVICE_URL": service.url}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-10_000:] + done.stderr[-2000:]
