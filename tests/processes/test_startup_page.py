"""The start-up page at the end of its process; what it answers is tried with the supervisor."""

from __future__ import annotations

import subprocess
import sys

import pytest

ENDING = """
import asyncio, socket, sys
from abound.processes.startup_page import StartupServer, StartupStatus
from abound.processes.startup_page import listen

async def main():
    with listen("127.0.0.1", 0) as listening:
        startup = StartupServer(listening, lambda: StartupStatus("loading", 0.5))
        await startup.open()
        half = [socket.create_connection(listening.getsockname()) for _ in range(3)]
        half[0].sendall(b"GET /readyz HTTP/1.1\\r\\nHost: x\\r\\n")
        half[1].sendall(b"POST /learn HTTP/1.1\\r\\nHost: x\\r\\nContent-Length: 9\\r\\n\\r\\nabc")
        await asyncio.sleep(0.2)
        startup.close()
        return half

if sys.argv[1] == "uvloop":
    import uvloop
    kept = uvloop.run(main())
else:
    kept = asyncio.run(main())
"""


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_connections_that_are_left_at_the_end_make_no_noise(loop: str) -> None:
    command = [sys.executable, "-c", ENDING, loop]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert (ran.stdout, ran.stderr) == ("", "")
