"""The newest events of a model, as its log and history have them, and those that may have a wrong label."""

import asyncio
from pathlib import Path
from typing import Any

from abound.client import Client
from abound.jobs.replace import forget
from abound.replace.forget import ForgetParams
from tests.support.command_line import Run
from tests.support.lab import Lab
from tests.support.served import Served, problem

HAS_ARTIFACTS = True
RIGHT = {"theft": "my card was stolen", "refund": "send the money back", "hours": "when do you open"}


def test_events_are_listed_newest_first_without_registrations(service: Served) -> None:
    address = f"{service.url}/models/taught"
    service.http.put(address, json={}).raise_for_status()

    def teach(body: dict[str, object], **headers: str) -> str:
        answer = service.http.post(f"{address}/learn", json=body, headers=headers).raise_for_status()
        return str(answer.json()["offset"])

    def listed(**query: str | int) -> list[dict[str, object]]:
        found = service.http.get(f"{address}/events", params=query).raise_for_status()
        return list(found.json()["events"])

    first = teach({"text": "wool socks", "labels": ["socks"], "source": "shop"}, **{"idempotency-key": "order-17"})
    service.http.put(f"{address}/labels", json={"labels": [{"label": "socks", "name": "Socks"}]}).raise_for_status()
    service.http.post(f"{address}/labels/rename", json={"from": "socks", "to": "stockings"}).raise_for_status()
    two = [
        {"text": "hat", "labels": ["hats"]},
        {"text": "red hat", "labels": ["hats"], "rejected": ["caps"], "partial": True},
    ]
    last = teach({"instances": two})
    events = listed()
    assert [event["labels"] for event in events] == [["hats"], ["hats"], ["socks"]]
    assert [events[0]["offset"], events[2]["offset"]] == [last, first]
    assert [event["partial"] for event in events] == [True, False, False]
    assert (events[2]["source"], events[2]["key"], events[0]["rejected"]) == ("shop", "order-17", ["caps"])
    assert set(events[2]["features"]) == {"wool", "socks"}  # type: ignore[call-overload]
    assert listed(source="shop") == events[2:]
    assert listed(label="caps") == events[:1]
    assert listed(limit=1) == events[:1]
    assert listed(before=last) == events[1:]
    problem(service.http.get(f"{address}/events?before=yesterday"), 422, "invalid-field")


def test_suspicious_events_are_listed_until_they_are_dismissed(service: Served, run: Run) -> None:
    address = f"{service.url}/models/doubtful"
    service.http.put(address, json={"update": "sls", "calibrate": True}).raise_for_status()
    right = [{"text": f"{text} {n}", "labels": [label]} for n in range(30) for label, text in RIGHT.items()]
    service.http.post(f"{address}/learn", json={"instances": right}).raise_for_status()
    wrong = [{"text": "my card was stolen now", "labels": ["refund"]}, {"text": "open when", "labels": ["vault"]}]
    body = {"instances": [right[0], *wrong], "source": "desk"}
    learned = service.http.post(f"{address}/learn", json=body, headers={"idempotency-key": "k1"}).json()
    at = learned["results"][1]["offset"]

    def listed() -> list[dict[str, Any]]:
        return list(service.http.get(f"{address}/suspicious").raise_for_status().json()["events"])

    [event] = listed()  # a new label is not suspicious
    figures = event.pop("probability"), event.pop("first_probability")
    assert figures[0] < 0.2 < 0.7 < figures[1]
    [shown] = [one for one in service.http.get(f"{address}/events").json()["events"] if one["offset"] == at]
    assert event == shown | {"label": "refund", "first": "theft"}
    assert (event["key"], event["source"], event["labels"]) == ("k1", "desk", ["refund"])
    printed = run("suspicious", "doubtful", "--url", service.url)
    assert at in printed.out
    assert f"theft ({figures[1]:.1%})" in printed.out
    service.http.post(f"{address}/labels/rename", json={"from": "theft", "to": "stolen"}).raise_for_status()
    assert listed()[0]["first"] == "stolen"
    with Client(service.url) as client:
        assert client.suspicious("doubtful", limit=1000)["total"] == 1
        client.dismiss("doubtful", at)
        client.dismiss("doubtful", at)
        assert client.suspicious("doubtful", limit=5) == {"total": 0, "events": []}
    problem(service.http.delete(f"{address}/suspicious/yesterday"), 422, "invalid-field", "offset")
    problem(service.http.delete(f"{address}/suspicious/{learned['offset']}"), 404, "unknown-event")
    problem(service.http.get(f"{address}/suspicious?limit=0"), 422, "invalid-field", "limit")


def test_a_model_without_probabilities_suspects_nothing(service: Served, model: str) -> None:
    service.http.post(f"/models/{model}/learn", json={"text": "a", "labels": ["b"]}).raise_for_status()
    assert service.http.get(f"/models/{model}/suspicious").json() == {"total": 0, "events": []}


def test_archived_events_are_listed_also_after_a_forget(service: Served) -> None:
    address = f"{service.url}/models/default"
    service.http.put(address, json={"update": "sls", "calibrate": True}).raise_for_status()

    def teach(text: str, *labels: str, source: str | None = None) -> None:
        three = [{"text": f"{text} {n}", "labels": labels} for n in range(3)]
        service.http.post(f"{address}/learn", json={"instances": three, "source": source}).raise_for_status()

    def listed(what: str = "events", **query: str | int) -> list[dict[str, Any]]:
        found = service.http.get(f"{address}/{what}", params={"limit": 500} | query).raise_for_status()
        return list(found.json()["events"])

    async def work(archives: bool) -> None:
        lab = Lab(service.server, Path(service.settings.artifacts_location() or ""))
        await lab.open()
        if archives:
            assert len((await lab.archived()).segments) > 3  # type: ignore[union-attr]
        else:
            await lab.run(forget, ForgetParams(source="bad", reason="asked for"))
        await lab.close()

    for n in range(20):
        for label, text in RIGHT.items():
            teach(f"{text} {n}", label, source="first" if n == 0 else None)
    teach("my card was stolen", "refund", source="desk")
    before = listed(), listed("suspicious")
    assert (len(before[0]), {one["source"] for one in before[1]}) == (183, {"desk"})
    asyncio.run(work(archives=True))
    assert (listed(), listed("suspicious")) == before
    teach("hats", "hats", source="bad")
    asyncio.run(work(archives=False))
    assert (listed(), listed("suspicious")) == before
    teach("gloves", "gloves")
    whole = [*listed(limit=3), *before[0]]
    paged: list[dict[str, Any]] = []
    while page := listed(limit=50, **({"before": paged[-1]["offset"]} if paged else {})):
        paged += page
    assert paged == whole
    for name, value in (("source", "first"), ("label", "theft"), ("label", "gloves")):
        assert listed(**{name: value}) == [one for one in whole if value in (one["source"], *one["labels"])]
