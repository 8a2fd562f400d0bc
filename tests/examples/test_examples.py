"""The examples do what they say, against a running service."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from abound.client import Client, Model
from examples import queue_consumer, web_form
from tests.support.served import fresh_model

NOTEBOOK = Path(__file__).parents[2] / "examples" / "notebook.ipynb"


async def test_the_form_suggests_what_it_was_taught(service, monkeypatch):
    monkeypatch.setenv("ABOUND_URL", service.url)
    transport = httpx.ASGITransport(web_form.app)
    async with (
        web_form.app.router.lifespan_context(web_form.app),
        httpx.AsyncClient(transport=transport, base_url="http://form") as browser,
    ):
        assert "Which subject?" in (await browser.get("/")).text
        page = (await browser.post("/suggest", data={"text": "wheat <b> rises"})).text
        assert "wheat &lt;b&gt; rises" in page
        assert 'type="radio"' not in page
        form = {"id": one_of(r'name="id" value="([\w-]+)"', page), "other": "grain & <more>"}
        page = (await browser.post("/learn", data=form)).text
        assert "Learned grain &amp; &lt;more&gt;, which was not suggested." in page
        page = (await browser.post("/suggest", data={"text": "wheat falls"})).text
        assert 'value="grain &amp; &lt;more&gt;"' in page
        form = {"id": one_of(r'name="id" value="([\w-]+)"', page), "label": "grain & <more>"}
        learned = service.learned()
        for _ in range(2):  # sent twice, learned once
            assert "which was suggestion 1." in (await browser.post("/learn", data=form)).text
        assert service.learned() == learned + 1
        assert "learned before" in (await browser.post("/learn", data=form | {"label": "another"})).text
        assert "Too late" in (await browser.post("/learn", data={"id": "0" * 32, "label": "grain"})).text


def one_of(pattern: str, text: str) -> str:
    found = re.search(pattern, text)
    assert found, text
    return found[1]


def test_a_message_is_learned_once_although_it_comes_twice(service, own_server):
    name = fresh_model(service)
    with own_server.client() as store, Client(service.url) as client:
        store.flushall()
        for i in range(700):
            store.xadd("routed", {"text": f"word{i % 5}", "labels": f"label{i % 5}"})
        store.xadd("routed", {"text": "no label", "labels": ""})
        model = Model(client, name)
        # A consumer that is killed between the answer and its acknowledgements.
        queue_consumer.prepare(store, "routed")
        lost = queue_consumer.taken(store, "routed")
        assert len(lost) == 500
        assert len(list(model.learn_many(queue_consumer.instances(lost)))) == 500
        assert service.learned(name) == 500
        assert queue_consumer.consume(store, "routed", model, idle_seconds=0.1) == 700
        assert service.learned(name) == 700
        assert store.xpending("routed", queue_consumer.GROUP)["pending"] == 0
        [rejected] = store.lrange("routed:rejected", 0, -1)
        refused = json.loads(rejected)
        assert (refused["text"], refused["labels"]) == ("no label", "")
        assert "labels" in refused["refused"]
        assert [one.label for one in model.classify(text="word3", k=1).labels] == ["label3"]


@pytest.mark.timeout(300)
def test_the_notebook_runs_from_the_top_to_the_end(service):
    cells = json.loads(NOTEBOOK.read_text())["cells"]
    program = "\n\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    environment = {**os.environ, "ABOUND_URL": service.url}
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=environment, cwd=NOTEBOOK.parents[1]
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("grain ")
    assert float(one_of(r"of the last 1,000: ([\d.]+)", done.stdout)) > 0.95
    assert float(one_of(r"accuracy of three folds: ([\d.]+)", done.stdout)) > 0.9
    assert "3003 learned, 4 labels" in done.stdout
