"""Exit with 0 while a container does what it was started for: a server answers, the event loop of a worker runs.

    python health.py [FILE]

``FILE``: the command line of the container's first process, ``/proc/1/cmdline`` where it is not said.
"""

import os
import sys
import time
import urllib.request
from pathlib import Path

MOST_SECONDS = 30.0
"""Longest time since a worker touched its file."""

words = Path(sys.argv[1] if len(sys.argv) > 1 else "/proc/1/cmdline").read_text().split("\0")
if "serve" in words:
    given = "=".join(words).partition("--port=")[2].partition("=")[0]
    port = given or os.environ.get("ABOUND_PORT", "8000")
    urllib.request.urlopen(f"http://127.0.0.1:{port}/livez", timeout=2).close()
if "worker" in words:
    age = time.time() - (Path(os.environ.get("ABOUND_DATA_DIR", "data")) / "worker-alive").stat().st_mtime
    if age > MOST_SECONDS:
        sys.exit(f"the worker has done nothing for {age:.0f} s")
