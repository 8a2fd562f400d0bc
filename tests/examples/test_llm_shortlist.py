"""The example with a language model: an endpoint that answers as it is told, and a running service."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from abound import Client, Model
from examples.llm_shortlist.shortlist import CANDIDATES
from tests.support import stand_in
from tests.support.served import Served, fresh_model

ROOT = Path(__file__).parents[2]
TEXT = "word7 word7 word7 " + " ".join(f"word{number}" for number in range(30))


class Endpoint(stand_in.JsonHandler):
    """``POST /v1/chat/completions`` as OpenAI describes it."""

    says: str
    asked: list[dict[str, Any]]

    def do_POST(self) -> None:
        allowed = self.path == "/v1/chat/completions" and self.headers["authorization"] == "Bearer secret"
        self.asked.append(self.sent())
        message = {"role": "assistant", "content": self.says}
        self.answer({"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}, 200 if allowed else 401)


@pytest.fixture
def endpoint() -> Iterator[str]:
    Endpoint.asked = []
    with stand_in.running(Endpoint) as url:
        yield f"{url}/v1"


@pytest.fixture
def model(service: Served) -> Iterator[Model]:
    """Thirty labels, all of them for the word `charged`; number 7 has a name."""
    name = fresh_model(service, update="sls")
    service.http.put(f"/models/{name}/labels", json={"labels": [{"label": "l7", "name": "Charged twice"}]})
    with Client(service.url) as client:
        model = client.model(name)
        for number in range(30):
            model.learn(f"charged word{number}", [f"l{number}"])
        yield model


def run(service: Served, endpoint: str, model: Model, key: str, reply: str) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-m", "examples.llm_shortlist.shortlist", model.name, TEXT]
    names = {"LLM_URL": endpoint, "LLM_MODEL": "small", "LLM_KEY": key, "ABOUND_URL": service.url}
    return subprocess.run(words, cwd=ROOT, input=reply, capture_output=True, text=True, env={**os.environ, **names})


def test_the_program_suggests_asks_and_learns(service, endpoint, model):
    Endpoint.says = 'Sure: ["l7", "an invention", "l7", 3]'
    before = service.learned(model.name)
    assert run(service, endpoint, model, "secret", "\n").returncode == 0
    assert service.learned(model.name) == before
    [asked] = Endpoint.asked
    system, user = asked["messages"]
    assert (asked["model"], user) == ("small", {"role": "user", "content": TEXT})
    listed = [json.loads(line) for line in system["content"].splitlines() if line.startswith("{")]
    assert len(listed) == CANDIDATES
    assert listed[0] == {"label": "l7", "name": "Charged twice"}
    done = run(service, endpoint, model, "secret", "y\n")
    assert (done.returncode, done.stdout) == (0, "suggested: l7\ny, n, or the right labels: learned: l7\n"), done.stderr
    refused = run(service, endpoint, model, "wrong", "y\n")
    assert refused.returncode == 1
    assert "401" in refused.stderr
