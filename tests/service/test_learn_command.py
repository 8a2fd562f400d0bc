"""What ``abound learn`` says of a stream that ends before its file does."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

import service.client
from service.client import Client
from service.commands.streaming import Stopped, learn


@pytest.mark.parametrize("last", [httpx.ConnectError("away"), 401])
def test_a_request_that_was_learned_in_part(
    last: httpx.ConnectError | int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    busy = '{"title": "X", "status": 429, "retry_after": 0}'
    answers = [httpx.Response(200, content=f'{{"applied": true}}\n{busy}\n{{"applied": true}}\n{busy}\n')]
    assert learning(answers, last, tmp_path, monkeypatch).endswith(
        "1 instances done, 0 refused; 3 more may or may not have been taken, from f.jsonl: line 2 on"
    )


@pytest.mark.parametrize(("status", "taken"), [(401, False), (404, False), (500, True), (502, True), (504, True)])
def test_a_request_that_was_refused_as_a_whole(
    status: int, taken: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = "4 more may or may not have been taken" if taken else "nothing was taken"
    expected = f"0 instances done, 0 refused; {said}, from f.jsonl: line 1 on"
    assert learning([], status, tmp_path, monkeypatch).endswith(expected)


def learning(
    answers: list[httpx.Response], last: httpx.ConnectError | int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> str:
    """What the command says of four lines, where requests get these answers, and the last one ever after."""
    at_hand = iter(answers)

    def handler(request: httpx.Request) -> httpx.Response:
        if request.method == "GET":
            return httpx.Response(200, json={})
        if (answer := next(at_hand, None)) is not None:
            return answer
        if isinstance(last, httpx.ConnectError):
            raise last
        return httpx.Response(last, json={"title": "X", "status": last})

    def client(url: str, key: str | None) -> Client:
        return Client(url, transport=httpx.MockTransport(handler), pause=lambda seconds: None)

    monkeypatch.setattr(service.client, "Client", client)
    monkeypatch.chdir(tmp_path)
    Path("f.jsonl").write_text('{"text": "a", "labels": ["b"]}\n' * 4)
    with pytest.raises(Stopped) as stopped:
        learn(["f.jsonl"])
    return str(stopped.value)
