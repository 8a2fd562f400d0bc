"""Where the client asks: URLs, what the environment says of the way there, and names as parts of paths."""

import itertools
import socket
from collections.abc import Callable

import httpx
import pytest

from abound.client import AsyncClient, Client, Refused, Unreachable
from abound.client import requests as client_requests
from tests.client.mock_service import AWAY, Script, client
from tests.support.served import served


@pytest.mark.parametrize("url", ["htp:/x", "127.0.0.1:8000", "http://", "/x", "", "http://a:b"])
def test_what_is_no_url_of_a_service_is_refused_at_once(url: str) -> None:
    for make in (Client, AsyncClient):
        with pytest.raises(Unreachable, match="is not a URL"):
            make(url)


@pytest.fixture
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy", "ssl_cert_file", "ssl_cert_dir"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


BROKEN = [
    ("ALL_PROXY", "socks5://127.0.0.1:9"),
    ("HTTP_PROXY", "gopher://127.0.0.1:9"),
    ("HTTPS_PROXY", "garbage:::"),
    ("NO_PROXY", "[::"),
    ("SSL_CERT_FILE", "/nowhere"),
]


@pytest.mark.parametrize("make", [Client, AsyncClient])
@pytest.mark.parametrize(("name", "value"), BROKEN)
def test_what_the_environment_says_wrong_is_one_error(make, name, value, no_proxy, monkeypatch):
    monkeypatch.setenv(name, value)
    with pytest.raises(Unreachable, match=f"environment names .*{name}"):
        make("http://service.example")


def test_a_service_on_this_machine_is_asked_past_the_proxy(no_proxy: None, monkeypatch: pytest.MonkeyPatch) -> None:
    with served() as service:
        monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
        with Client(service.url) as asking:
            assert asking.ready()["status"] == "ready"
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, "socks5://127.0.0.1:9")
    for host in ("localhost", "[::1]", "127.1.2.3", "localhost.", "a.localhost", "[::ffff:127.0.0.1]"):
        for make in (Client, AsyncClient):
            make(f"http://{host}:8000")
            make(f"https://{host}:8000")


def test_a_proxy_that_does_not_answer_is_told_of(no_proxy: None, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:  # bound, and nobody listens there
        taken.bind(("127.0.0.1", 0))
        monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{taken.getsockname()[1]}")
        with Client("http://service.example") as asking, pytest.raises(Unreachable, match="names a proxy"):
            asking.models()


@pytest.mark.parametrize(
    ("name", "value"), [("HTTPS_PROXY", "http://127.0.0.1:9"), ("NO_PROXY", "service.example"), ("NO_PROXY", "*")]
)
def test_a_proxy_that_was_not_asked_is_not_told_of(name, value, no_proxy, monkeypatch):
    if name == "NO_PROXY":
        monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv(name, value)
    transport = httpx.MockTransport(Script(AWAY))
    with Client("http://service.example", transport=transport) as asking, pytest.raises(Unreachable, match="start one"):
        asking.models()


PATHS = [
    (client_requests.model_path, 1),
    (client_requests.job_path, 1),
    (client_requests.dataset_path, 1),
    (client_requests.challengers_path, 1),
    (client_requests.challenger_path, 2),
    (client_requests.version_path, 2),
]

NAMES = ["a", "a/b", "/", "/..", "../x", "a/..", "...", ".a", "a b", "a?b#c", "%2e%2e", "é", ":"]


@pytest.mark.parametrize(("path", "n_names"), PATHS)
def test_the_path_of_whatever_name_arrives_as_it_was_made(path: Callable[..., str], n_names: int) -> None:
    for at, name in itertools.product(range(n_names), NAMES):
        made = path(*["x"] * at, name, *["x"] * (n_names - at - 1))
        assert made.count("/") == path(*["x"] * n_names).count("/")
        with httpx.Client(base_url="http://test/below") as http:
            assert http.build_request("DELETE", made).url.raw_path.decode() == f"/below{made}"


@pytest.mark.parametrize("name", ["", ".", ".."])
def test_nothing_is_sent_for_what_is_no_name(name: str) -> None:
    script = Script(200)
    asking = client(script)
    asked: list[Callable[[], object]] = [
        lambda: asking.delete(name),
        lambda: asking.configure(name, {}),
        lambda: asking.delete_version("mine", name),
        lambda: asking.withdraw_challenger("mine", name),
        lambda: asking.delete_dataset(name),
        lambda: asking.put_dataset("a.jsonl", name, pieces=[]),
        lambda: asking.cancel(name),
        lambda: asking.import_(name, []),
        lambda: list(asking.export_version("mine", name)),
        lambda: list(asking.follow(name)),
        lambda: list(asking.learn_stream(name, [b'{"n": 0}'])),
    ]
    for ask in asked:
        with pytest.raises(Refused, match="is not a valid name"):
            ask()
    assert script.requests == []
