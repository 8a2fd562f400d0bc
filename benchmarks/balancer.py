"""A load balancer in front of replicas: nginx, with what a service like this wants of it.

* A replica that does not answer, or says 503, is left alone for a second; the others get its requests.
* ``/classify`` changes nothing, so a request that failed goes to the next replica. ``/learn`` does not: it is for the
  client to send it again, with its ``Idempotency-Key``.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path

from abound.processes.lifetime import dies_with_parent
from benchmarks.serving import tree

CONFIGURATION = """\
daemon off;
worker_processes 1;
pid {directory}/nginx.pid;
error_log {directory}/nginx.log warn;
{user}
events {{ worker_connections 4096; }}
http {{
  access_log off;
  client_body_temp_path {directory}/body;
  proxy_temp_path {directory}/proxy;
  fastcgi_temp_path {directory}/fastcgi;
  uwsgi_temp_path {directory}/uwsgi;
  scgi_temp_path {directory}/scgi;
  client_max_body_size 64m;
  proxy_http_version 1.1;
  proxy_set_header Connection "";
  proxy_set_header Host $http_host;
  proxy_connect_timeout 1s;
  upstream replicas {{
{servers}
    keepalive 64;
    keepalive_timeout 5s;
  }}
  server {{
    listen 127.0.0.1:{port};
    location / {{
      proxy_pass http://replicas;
      proxy_read_timeout 15s;
      proxy_next_upstream error timeout http_503;
    }}
    location ~ /classify$ {{
      proxy_pass http://replicas;
      proxy_read_timeout {patience:g}s;
      proxy_next_upstream error timeout http_502 http_503 http_504 non_idempotent;
    }}
  }}
}}
"""


def program() -> str | None:
    """Where nginx is; None when it is not installed."""
    return shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/usr/local/sbin")


class Balancer:
    """nginx on a port of loopback, in front of replicas on other ports.

    Parameters
    ----------
    patience : float
        Seconds without an answer after which a classify goes to the next replica.
    """

    def __init__(self, directory: Path, port: int, replicas: Sequence[int], patience: float = 2.0) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self.process: subprocess.Popen[bytes] | None = None
        self._configuration = directory / "nginx.conf"
        directory.mkdir(parents=True, exist_ok=True)
        servers = "\n".join(f"    server 127.0.0.1:{at} max_fails=1 fail_timeout=1s;" for at in replicas)
        user = "user root;" if Path("/proc/self").stat().st_uid == 0 else ""
        self._configuration.write_text(
            CONFIGURATION.format(directory=directory, port=port, servers=servers, patience=patience, user=user)
        )

    def start(self) -> None:
        """Start it unless it runs."""
        found = program()
        if found is None:
            raise RuntimeError("nginx is not installed (on Debian: apt-get install nginx-light)")
        if self.process is None or self.process.poll() is not None:
            words = [found, "-e", str(self._configuration.with_suffix(".log")), "-c", str(self._configuration)]
            self.process = subprocess.Popen(words, preexec_fn=dies_with_parent())

    def kill(self) -> None:
        """End it and its worker as a crash would."""
        if self.process is not None and self.process.poll() is None:
            for pid in tree(self.process.pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self.process.wait()

    def close(self) -> None:
        """End it in order."""
        if self.process is not None:
            self.process.terminate()
            self.process.wait(10)
