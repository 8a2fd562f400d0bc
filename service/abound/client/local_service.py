"""A private, temporary service: started on a free port and stopped afterwards."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import httpx

import abound_core
from abound_core.errors import CannotStart

MEMORY = ":memory:"  # the URL that stands for a temporary service of the client's own
START_SECONDS = 300.0  # the first start on a machine compiles the kernels
STOP_SECONDS = 30.0

_LISTENING = re.compile(r"listening on (http://[^\s,\"]+)")


@contextmanager
def own_service(
    say: Callable[[str], None] = lambda sentence: None,
    *,
    data_dir: Path | None = None,
    worker: bool = False,
    settings: Mapping[str, str] | None = None,
) -> Iterator[str]:
    """Run ``abound serve`` in a child process and yield its URL. ``say`` gets the lines that it prints while it starts.

    The child process sees no ``ABOUND_*`` variables but ``settings``, so it never touches another store or data
    directory.
    Raises CannotStart, with its last lines of output, if the service is not installed, or not ready in time.
    """
    if find_spec("abound.cli") is None:
        raise CannotStart("only the client is installed; install the service: pip install abound")
    with tempfile.TemporaryDirectory(prefix="abound-") as directory:
        said = Path(directory) / "said"
        command = [sys.executable, "-m", "abound", "serve", "--port", "0"]
        command += ["--worker" if worker else "--no-worker", "--data-dir", str(data_dir or Path(directory) / "data")]
        environment = _environment() | dict(settings or {})
        with said.open("wb") as output:
            process = subprocess.Popen(  # noqa: S603
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=environment
            )
        try:
            yield _wait_until_ready(process, said, say)
        finally:
            process.terminate()
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _environment() -> dict[str, str]:
    others = {name: value for name, value in os.environ.items() if not name.startswith("ABOUND_")}
    roots = [str(Path(__file__).resolve().parents[2]), str(Path(abound_core.__path__[0]).resolve().parent)]
    return others | {"PYTHONPATH": os.pathsep.join([*roots, *filter(None, [os.environ.get("PYTHONPATH")])])}


def _wait_until_ready(process: subprocess.Popen[bytes], said: Path, say: Callable[[str], None]) -> str:
    deadline = time.monotonic() + START_SECONDS
    n_shown = 0
    while time.monotonic() < deadline:
        lines = said.read_text(errors="replace").splitlines()
        for line in lines[n_shown:]:
            say(line)
        n_shown = len(lines)
        found = _LISTENING.search("\n".join(lines))
        if found and _is_ready(found[1]):
            return found[1]
        if process.poll() is not None:
            raise CannotStart("the service ended while starting; its last output: " + " ".join(lines[-5:]))
        time.sleep(0.05)
    raise CannotStart(
        f"the service was not ready within {START_SECONDS:.0f} s; its last output: " + " ".join(lines[-5:])
    )


def _is_ready(url: str) -> bool:
    try:
        return httpx.get(f"{url}/readyz", timeout=5.0, trust_env=False).is_success
    except httpx.HTTPError:
        return False
