"""Log lines: one line each whatever others sent, with the id of the request, and never with a secret."""

import json
import logging
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import structlog
from opentelemetry.sdk.trace import TracerProvider

from abound.api import app
from abound.metrics import configure_logging
from abound.processes.tracing import Tracing
from abound.security.key import digest_of
from tests.support.served import make_key, served


@pytest.fixture
def logged(capfd: pytest.CaptureFixture[str], request: pytest.FixtureRequest) -> Iterator[Any]:
    """What is written by loggers that are configured as in a process of the service; all is put back afterwards."""
    root = logging.getLogger()
    handlers, level, before = root.handlers[:], root.level, structlog.get_config()

    def configure(form: Any, level: Any = "debug") -> Any:
        configure_logging(level, form)
        return lambda: capfd.readouterr().err

    yield configure
    root.handlers[:] = handlers
    root.setLevel(level)
    structlog.configure(**before)


NASTY = "a\nERROR all is lost\r\n\x1b[2Jb\u2028c\x00"


@pytest.mark.parametrize("form", ["text", "json"])
def test_what_others_send_stays_on_one_line(logged: Any, form: str) -> None:
    written = logged(form)
    structlog.get_logger("service.test").warning("odd", path=NASTY)
    logging.getLogger("uvicorn.error").warning("odd %s", NASTY)
    lines = written().splitlines()
    assert len(lines) == 2
    assert not any("\x1b[2J" in line or "\x00" in line for line in lines)
    assert all("ERROR all is lost" in line for line in lines)


def test_the_level_is_that_of_all_loggers(logged: Any) -> None:
    written = logged("json", "warning")
    structlog.get_logger("service.test").info("unsaid")
    logging.getLogger("uvicorn.error").info("unsaid")
    logging.getLogger("uvicorn.error").warning("by %s", "another")
    [line] = [json.loads(one) for one in written().splitlines()]
    assert (line["event"], line["level"], line["logger"]) == ("by another", "warning", "uvicorn.error")


@pytest.mark.parametrize("tracing", [False, True])
def test_lines_name_the_trace_of_the_caller(logged: Any, monkeypatch: pytest.MonkeyPatch, tracing: bool) -> None:
    trace, caller = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
    monkeypatch.setattr(app, "Tracing", partial(Tracing, TracerProvider()))
    written = logged("json")
    with served(access_log=True, tracing=tracing) as running:
        for given in (f"00-{trace}-{caller}-01", f"00-{'0' * 32}-{caller}-01", "nonsense\n"):
            running.http.post("/classify", json={"text": "wheat"}, headers={"traceparent": given.strip()})
    lines = [json.loads(line) for line in written().splitlines() if '"event": "request"' in line]
    own, *others = [line.get("trace_id") for line in lines]
    assert own == trace
    assert all((other is None) is not tracing for other in others)
    assert trace not in others


def test_every_line_that_a_request_causes_carries_its_id(logged: Any) -> None:
    written = logged("json", "info")
    asked = [("PUT", "/models/m", {}), ("POST", "/models/m/learn", {"labels": ["a"]}), ("POST", "/classify", {})]
    with served(access_log=True) as service:
        for number, (method, path, body) in enumerate([*asked, ("GET", "/no%0Awhere", None)]):
            sent = None if body is None or method == "PUT" else {"features": {"f": 1}} | body
            query = "?secret=of-the-query" if number > 1 else ""
            headers = {"x-request-id": f"mine-{number}"}
            answer = service.http.request(method, path + query, json=sent, headers=headers)
            assert answer.headers["x-request-id"] == f"mine-{number}"
        assert service.learned("m") == 1
    ours = [line for line in map(json.loads, written().splitlines()) if line["logger"] != "httpx"]
    lines = [line for line in ours if str(line.get("request_id")).startswith("mine")]
    assert [(line["request_id"], line["event"]) for line in lines] == [
        ("mine-0", "audit"), ("mine-0", "request"), ("mine-1", "request"), ("mine-2", "request"), ("mine-3", "request"),
    ]  # fmt: skip
    told = {"method": "POST", "path": "/models/m/learn", "status": 200, "address": "127.0.0.1"}
    assert told.items() <= lines[2].items()
    assert 0 < lines[2]["ms"] < 60_000
    assert lines[-1]["path"] == "/no\\nwhere"
    assert "of-the-query" not in str(ours)


def test_requests_are_not_told_of_unless_asked(caplog: pytest.LogCaptureFixture) -> None:
    with served() as service:
        service.http.post("/classify", json={"features": {"f": 1}}).raise_for_status()
        assert "/classify" not in caplog.text


@pytest.mark.parametrize("form", ["text", "json"])
def test_an_error_that_nobody_meant_is_logged_without_the_key_and_with_the_request(logged, monkeypatch, form):
    """A traceback has no locals: these hold the headers."""
    with served() as service:
        made = make_key(service, "classify")

        async def fail(*_: Any) -> Any:
            raise RuntimeError("a bug")

        monkeypatch.setattr("abound.api.classify.Classify.answer", fail)
        written = logged(form)
        headers = {"authorization": f"Bearer {made.secret}", "x-request-id": "the-one"}
        batch = {"instances": [{"features": {"f": 1}}]}  # a single one may be answered without the route
        answer = service.http.post("/classify", json=batch, headers=headers)
        assert answer.status_code == 500
        assert "a bug" not in answer.text
    text = written()  # the server logs the error after its answer
    assert "RuntimeError: a bug" in text
    assert "the-one" in text
    assert made.secret not in text
    assert made.secret[-43:] not in repr(service.app.state.parts.ring.__dict__)


def test_no_secret_is_kept_where_it_could_be_shown() -> None:
    with served() as service:
        made = make_key(service, "learn")
        ring = service.app.state.parts.ring
        with service.server.client() as client:
            for key in client.keys("*"):
                dumped = client.dump(key)
                assert made.secret[-43:].encode() not in (dumped if isinstance(dumped, bytes) else b"")
        grant = ring.find(f"Bearer {made.secret}".encode())
        assert made.secret not in repr(grant)
        assert digest_of(made.secret.encode()).hex() == made.key.digest
