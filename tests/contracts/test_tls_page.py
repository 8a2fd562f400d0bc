"""The page on TLS: nginx takes its configuration, buffers nothing, and has the limits of the service."""

import re
import ssl
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest

from abound.processes.lifetime import dies_with_parent
from abound.settings import Settings
from benchmarks.serving import free_port
from tests.contracts.programs import needs
from tests.documents.blocks import FENCE, ROOT
from tests.support import stand_in
from tests.support.job_worker import until

PAGE = (ROOT / "docs" / "guides" / "tls.md").read_text()
BLOCKS: dict[str, list[str]] = {}
for found in FENCE.finditer(PAGE):
    BLOCKS.setdefault(found[1], []).append(found[2])

PATIENCE = 30.0
HELD_BACK = 10.0
"""Seconds after which an event that the client has not confirmed counts as held back."""


class Upstream(ThreadingHTTPServer):
    """What stands in for the service: events of a job that goes on, and the headers that came."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.job_ends = threading.Event()


class Handler(stand_in.JsonHandler):
    protocol_version = "HTTP/1.1"
    server: Upstream

    def do_GET(self) -> None:
        """The first event of a job, and its end when the test says so; the forwarded address for any other path."""
        if self.path != "/jobs/some/events":
            self.answer(str(self.headers.get_all("X-Forwarded-For")).encode())
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(b"data: begun\n\n")
        in_time = self.server.job_ends.wait(HELD_BACK)
        self.wfile.write(b"data: ended\n\n" if in_time else b"data: the first event was held back\n\n")


@pytest.fixture(scope="module")
def proxied(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[httpx.Client, Upstream]]:
    folder = tmp_path_factory.mktemp("nginx")
    certificate, key = folder / "abound.pem", folder / "abound.key"
    words = [needs("openssl"), "req", "-x509", "-nodes", "-newkey", "rsa:2048", "-subj", "/CN=localhost"]
    words += ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(words, check=True, capture_output=True)
    upstream = Upstream()
    with stand_in.running(upstream):
        [text] = BLOCKS["nginx"]
        port = free_port()
        for written, here in {
            "/etc/ssl/abound.pem": str(certificate),
            "/etc/ssl/abound.key": str(key),
            "listen 443 ssl": f"listen 127.0.0.1:{port} ssl",
            "server 127.0.0.1:8000": f"server 127.0.0.1:{upstream.server_address[1]}",
        }.items():
            assert text.count(written) == 1
            text = text.replace(written, here)
        with (
            nginx(folder, text),
            httpx.Client(
                base_url=f"https://127.0.0.1:{port}",
                verify=ssl.create_default_context(cafile=certificate),
                timeout=PATIENCE,
            ) as client,
        ):
            until(lambda: listens(client), PATIENCE)
            yield client, upstream


@contextmanager
def nginx(folder: Path, server: str) -> Iterator[None]:
    temporary = "".join(
        f"{name}_temp_path {folder / name};\n" for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    configuration = folder / "nginx.conf"
    configuration.write_text(
        f"daemon off;\nmaster_process off;\npid {folder / 'pid'};\nevents {{}}\n"
        f"http {{\naccess_log off;\n{temporary}{server}}}\n"
    )
    command = [needs("nginx"), "-c", str(configuration), "-e", str(folder / "errors")]
    checked = subprocess.run([*command, "-t"], capture_output=True, text=True)
    assert checked.returncode == 0, checked.stderr
    process = subprocess.Popen(command, preexec_fn=dies_with_parent())
    try:
        yield
    finally:
        process.terminate()
        process.wait(PATIENCE)


def listens(client: httpx.Client) -> bool:
    with suppress(httpx.ConnectError):
        return client.get("/readyz").is_success
    return False


def test_events_of_a_job_arrive_while_it_runs(proxied: tuple[httpx.Client, Upstream]) -> None:
    client, upstream = proxied
    with client.stream("GET", "/jobs/some/events") as answer:
        lines = answer.iter_lines()
        assert next(lines) == "data: begun"
        upstream.job_ends.set()
        assert [line for line in lines if line] == ["data: ended"]


@pytest.mark.parametrize("path", ["/models", "/models/some/versions"])
def test_a_client_does_not_choose_the_address_that_the_audit_log_gets(proxied, path):
    client, _ = proxied
    assert client.get(path, headers={"X-Forwarded-For": "10.9.8.7"}).text == "['127.0.0.1']"


@pytest.mark.parametrize("path", ["/metrics", "/%6detrics"])
def test_metrics_are_not_for_the_public(proxied: tuple[httpx.Client, Upstream], path: str) -> None:
    assert proxied[0].get(path).status_code == 404


def test_the_limits_are_those_of_the_service() -> None:
    settings = Settings()
    assert re.findall(r"client_max_body_size (\w+);|max_size (\w+)iB", PAGE) == [
        ("64m", ""), ("4g", ""), ("", "4G"), ("", "64M"),
    ]  # fmt: skip
    assert (settings.max_ndjson_bytes, settings.max_import_bytes) == (64 * 2**20, 4 * 2**30)
