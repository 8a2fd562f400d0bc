"""The examples with a language model, against a running service and a stand-in for the model's endpoint."""

import asyncio
import importlib
import json
import os
import random
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import httpx
import pytest
from fastapi.testclient import TestClient

from abound import Client, Model
from abound.client import Labelled
from examples.llm_offramp.offramp import LanguageModel, answer, connect, main
from examples.llm_shortlist.shortlist import CANDIDATES
from tests.support import stand_in
from tests.support.served import Served, fresh_model

WORDS = {"delivery": ["parcel", "courier", "late"], "billing": ["invoice", "charged", "refund"]}
TARGET = 0.9


def true_label(text: str) -> str:
    """Return the teacher's label. That of an account depends on its number, which is hard to learn."""
    if text.startswith("account"):
        return "delivery" if int(text.split()[-1]) % 3 == 0 else "billing"
    return next((label for label, own in WORDS.items() if text.split()[0] in own), "none")


class Teacher(stand_in.JsonHandler):
    """A stand-in for ``POST /v1/chat/completions``: answers with true labels or a given text, keeps requests."""

    asked: list[Any]
    status = 200
    key: str | None
    says: str | None
    released: threading.Event

    def do_POST(self) -> None:
        sent = self.sent()
        self.asked.append(sent)
        self.released.wait(30)
        said = self.says if self.says is not None else true_label(sent["messages"][-1]["content"])
        allowed = self.key is None or self.headers["authorization"] == f"Bearer {self.key}"
        self.answer({"choices": [{"message": {"role": "assistant", "content": said}}]}, self.status if allowed else 401)


@pytest.fixture
def teacher() -> Iterator[str]:
    Teacher.asked, Teacher.status, Teacher.says, Teacher.key = [], 200, None, None
    Teacher.released = threading.Event()
    Teacher.released.set()
    with stand_in.running(Teacher) as url:
        yield f"{url}/v1"
        Teacher.released.set()


@pytest.fixture
def model(service: Served) -> Iterator[Model]:
    name = fresh_model(service, update="sls", decide={"agreement": TARGET, "audit": 0.1})
    with Client(service.url) as client:
        yield client.model(name)


def language_model(url: str, **settings: Any) -> LanguageModel:
    return LanguageModel(url, "small", list(WORDS), **settings)


def utterances(n: int) -> list[str]:
    rng = random.Random(1)
    words = [*WORDS.values(), *WORDS.values(), ["account"]]
    return [f"{rng.choice(rng.choice(words))} number {rng.randrange(500)}" for _ in range(n)]


def teach(model: Model) -> None:
    """Teach until the model answers without the teacher."""
    list(model.learn_many(Labelled(text=text, labels=[true_label(text)]) for text in utterances(800)))


def find(model: Model, audit: bool) -> str:
    """Return a text that the model answers, audited or not."""
    for text in (f"parcel number {number}" for number in range(500)):
        decided = model.classify(text)
        if decided.decision == "answer" and bool(decided.audit) == audit:
            return text
    raise AssertionError("no such text")


def test_calls_fall_while_the_answers_agree_with_the_teacher(teacher, model):
    llm, calls, agreed = language_model(teacher), [], []
    for text in utterances(800):
        before = len(Teacher.asked)
        found = answer(model, llm, text)
        calls.append(len(Teacher.asked) - before)
        if found.by == "abound":
            agreed.append(found.labels == [true_label(text)])
    assert sum(calls[:20]) == 20
    assert sum(calls[-200:]) < 100
    assert sum(agreed) >= TARGET * len(agreed)
    assert len(agreed) > 400


def test_none_of_the_language_model_is_learned(service, teacher, model):
    teach(model)
    before = service.learned(model.name)
    for number in range(30):
        assert answer(model, language_model(teacher), f"weather tomorrow {number}").labels == []
    assert service.learned(model.name) == before + 30
    assert model.classify("weather tomorrow").decision == "none"


def test_an_audited_answer_asks_and_learns_and_an_endpoint_that_is_down_does_not_lose_it(service, teacher, model):
    teach(model)
    text, before = find(model, audit=True), service.learned(model.name)
    assert answer(model, language_model(teacher), text).by == "abound"
    assert (len(Teacher.asked), service.learned(model.name)) == (1, before + 1)
    Teacher.status = 503
    assert answer(model, language_model(teacher), text).by == "abound"
    assert service.learned(model.name) == before + 1
    answer(model, language_model(teacher), find(model, audit=False))
    assert len(Teacher.asked) == 2


@pytest.mark.parametrize("trouble", ["down", "status", "invented", "time"])
def test_an_error_of_the_endpoint_reaches_the_caller_and_nothing_is_learned(service, teacher, model, trouble):
    llm, before = language_model(teacher, timeout=0.5), service.learned(model.name)
    if trouble == "down":
        llm = language_model("http://127.0.0.1:9/v1")
    elif trouble == "status":
        Teacher.status = 500
    elif trouble == "invented":
        Teacher.says = "an invention"
    else:
        Teacher.released.clear()
    expected = {"invented": ValueError, "time": httpx.TimeoutException}.get(trouble, httpx.HTTPError)
    with pytest.raises(expected):
        answer(model, llm, "parcel is late")
    assert service.learned(model.name) == before


def test_the_language_model_answers_while_the_service_is_down(teacher, monkeypatch, capsys):
    monkeypatch.setenv("ABOUND_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("LLM_URL", teacher)
    monkeypatch.setenv("LLM_MODEL", "small")
    with connect() as client:
        assert answer(client.model("any"), language_model(teacher), "parcel is late").by == "llm"
    assert main(["any", "delivery,billing", "parcel is late"]) == 0
    assert capsys.readouterr().out == "delivery (llm)\n"
    Teacher.status = 500
    assert main(["any", "delivery,billing", "parcel is late"]) == 1


class CustomLLM: ...


class CustomLLMError(Exception):
    def __init__(self, status_code: int, message: str) -> None:
        self.status_code = status_code
        super().__init__(message)


@pytest.fixture
def provider(service, teacher, monkeypatch) -> Any:
    """The provider, with a stand-in for the two names of LiteLLM that it uses."""
    package, custom = ModuleType("litellm"), ModuleType("litellm.llms.custom_llm")
    vars(package)["CustomLLM"], vars(custom)["CustomLLMError"] = CustomLLM, CustomLLMError
    for name, module in {
        "litellm": package,
        "litellm.llms": ModuleType("litellm.llms"),
        custom.__name__: custom,
    }.items():
        monkeypatch.setitem(sys.modules, name, module)
    for name, value in {"URL": teacher, "MODEL": "small", "LABELS": ",".join(WORDS)}.items():
        monkeypatch.setenv(f"LLM_{name}", value)
    monkeypatch.setenv("ABOUND_URL", service.url)
    monkeypatch.delitem(sys.modules, "examples.llm_offramp.litellm_provider", raising=False)
    return importlib.import_module("examples.llm_offramp.litellm_provider").handler


def call_of(model: Model, text: Any) -> dict[str, Any]:
    """Return the arguments that LiteLLM passes."""
    names = "api_base custom_prompt_dict print_verbose encoding api_key logging_obj optional_params acompletion"
    names += " litellm_params logger_fn headers timeout client"
    message = SimpleNamespace(content=None)
    response = SimpleNamespace(model=None, choices=[SimpleNamespace(message=message)])
    messages = [{"role": "system", "content": "Classify."}, {"role": "user", "content": text}]
    return dict.fromkeys(names.split()) | {"model": model.name, "messages": messages, "model_response": response}


def test_the_provider_of_litellm_answers_and_forwards_the_prompt(provider, model):
    call = call_of(model, "parcel is late")
    for done in (provider.completion(**call), asyncio.run(provider.acompletion(**call))):
        assert done.choices[0].message.content == "delivery"
        assert done.model == f"llm/{model.name}"
    assert Teacher.asked[0]["messages"] == call["messages"]
    teach(model)
    done = provider.completion(**call_of(model, find(model, audit=False)))
    assert (done.choices[0].message.content, done.model) == ("delivery", f"abound/{model.name}")
    assert len(Teacher.asked) == 2


def test_errors_of_the_provider_have_the_status_that_litellm_passes_on(provider, model):
    Teacher.status = 500
    with pytest.raises(CustomLLMError) as failed:
        provider.completion(**call_of(model, "parcel is late"))
    assert failed.value.status_code == 502
    with pytest.raises(CustomLLMError) as failed:
        provider.completion(**call_of(model, [{"type": "image_url"}]))
    assert failed.value.status_code == 400


def test_the_semantic_router_gets_a_distribution_over_its_labels(service, model, monkeypatch):
    teach(model)
    monkeypatch.setenv("ABOUND_URL", service.url)
    monkeypatch.setenv("ABOUND_MODEL", model.name)
    monkeypatch.setenv("ROUTER_LABELS", "billing,delivery,other")
    monkeypatch.delitem(sys.modules, "examples.llm_offramp.semantic_router", raising=False)
    with TestClient(importlib.import_module("examples.llm_offramp.semantic_router").app) as router:
        scored = router.post("/classify", json={"inputs": "parcel number 3"}).json()
        assert [one["label"] for one in scored] == ["billing", "delivery", "other"]
        assert sum(one["score"] for one in scored) == pytest.approx(1)
        assert max(scored, key=lambda one: one["score"])["label"] == "delivery"


ROOT = Path(__file__).parents[2]
TEXT = "word7 word7 word7 " + " ".join(f"word{number}" for number in range(30))


@pytest.fixture
def charged(service: Served) -> Iterator[Model]:
    """Thirty labels, all of them for the word `charged`; number 7 has a name."""
    name = fresh_model(service, update="sls")
    service.http.put(f"/models/{name}/labels", json={"labels": [{"label": "l7", "name": "Charged twice"}]})
    with Client(service.url) as client:
        model = client.model(name)
        for number in range(30):
            model.learn(f"charged word{number}", [f"l{number}"])
        yield model


def run(service: Served, url: str, model: Model, key: str, reply: str) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-m", "examples.llm_shortlist.shortlist", model.name, TEXT]
    names = {"LLM_URL": url, "LLM_MODEL": "small", "LLM_KEY": key, "ABOUND_URL": service.url}
    return subprocess.run(words, cwd=ROOT, input=reply, capture_output=True, text=True, env={**os.environ, **names})


def test_the_program_suggests_asks_and_learns(service, teacher, charged):
    Teacher.key = "secret"
    Teacher.says = 'Sure: ["l7", "an invention", "l7", 3]'
    before = service.learned(charged.name)
    assert run(service, teacher, charged, "secret", "\n").returncode == 0
    assert service.learned(charged.name) == before
    [asked] = Teacher.asked
    system, user = asked["messages"]
    assert (asked["model"], user) == ("small", {"role": "user", "content": TEXT})
    listed = [json.loads(line) for line in system["content"].splitlines() if line.startswith("{")]
    assert len(listed) == CANDIDATES
    assert listed[0] == {"label": "l7", "name": "Charged twice"}
    done = run(service, teacher, charged, "secret", "y\n")
    assert (done.returncode, done.stdout) == (0, "suggested: l7\ny, n, or the right labels: learned: l7\n"), done.stderr
    refused = run(service, teacher, charged, "wrong", "y\n")
    assert refused.returncode == 1
    assert "401" in refused.stderr
