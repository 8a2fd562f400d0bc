"""HTTP servers in the process of the test that stand in for other programs."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class JsonHandler(BaseHTTPRequestHandler):
    """Reads and writes JSON, and logs nothing."""

    def sent(self) -> Any:
        return json.loads(self.rfile.read(int(self.headers["content-length"])))

    def answer(self, said: object, status: int = 200, **headers: str) -> None:
        body = said if isinstance(said, bytes) else json.dumps(said).encode()
        self.send_response(status)
        for name, value in ({"content-length": str(len(body))} | headers).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments: object) -> None: ...


@contextmanager
def running(server: type[BaseHTTPRequestHandler] | ThreadingHTTPServer) -> Iterator[str]:
    """The URL of a server, or of one with this handler, which runs for a while."""
    if not isinstance(server, ThreadingHTTPServer):
        server = ThreadingHTTPServer(("127.0.0.1", 0), server)
    with server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()
