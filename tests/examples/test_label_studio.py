"""The ML backend answers the requests that Label Studio 1.23.2 sent, recorded without tokens."""

import json
from pathlib import Path

import httpx

from examples.label_studio.backend import app
from tests.support.served import fresh_model

RECORDED = [
    json.loads(line) for line in Path(__file__).with_name("label_studio_requests.jsonl").read_text().splitlines()
]
SETUP, BILLING, BUG, PREDICT, CHANGED, DELETED = (one["body"] for one in RECORDED)


async def test_a_recorded_project_is_learned_and_predicted(service, monkeypatch):
    name = fresh_model(service, update="sls")
    monkeypatch.setenv("ABOUND_URL", service.url)
    monkeypatch.setenv("ABOUND_MODEL", name)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://backend") as client,
    ):
        assert (await client.get("/health")).json() == {"status": "UP", "model_class": "Abound"}
        before = (await client.post("/setup", json=SETUP)).json()["model_version"]
        for annotation in (BILLING, BUG, BUG):  # one comes twice
            answer = await client.post("/webhook", json=annotation)
            assert (answer.status_code, answer.json()) == (201, {"learned": 1})
        assert service.learned(name) == 2
        assert (await client.post("/setup", json=SETUP)).json()["model_version"] != before
        results = (await client.post("/predict", json=PREDICT)).json()["results"]
        assert [one["result"][0]["value"]["choices"] for one in results] == [["billing"], ["bug"], ["billing"]]
        about = {"from_name": "team", "to_name": "text", "type": "choices"}
        assert results[0]["result"][0].items() >= about.items()
        assert all(0 < one["score"] <= 1 for one in results)
        for _ in range(2):
            assert (await client.post("/webhook", json=CHANGED)).json() == {"learned": 1}
        assert service.learned(name) == 3
        assert (await client.post("/webhook", json=DELETED)).json() == {"learned": 0}
        many = BILLING | {
            "action": "ANNOTATIONS_CREATED",
            "annotation": [BILLING["annotation"], BUG["annotation"]],
            "task": [BILLING["task"], BUG["task"]],
        }
        assert (await client.post("/webhook", json=many)).json() == {"learned": 2}
        assert service.learned(name) == 3
