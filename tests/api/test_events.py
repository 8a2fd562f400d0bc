"""The newest events of a model, as its log has them, and those that may have a wrong label."""

from __future__ import annotations

from typing import Any

from abound.client import Client
from tests.support.command_line import Run
from tests.support.served import Served, problem


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
    two = [{"text": "hat", "labels": ["hats"]}, {"text": "red hat", "labels": ["hats"], "rejected": ["caps"]}]
    last = teach({"instances": two})
    events = listed()
    assert [event["labels"] for event in events] == [["hats"], ["hats"], ["socks"]]
    assert [events[0]["offset"], events[2]["offset"]] == [last, first]
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
    texts = {"theft": "my card was stolen", "refund": "send the money back", "hours": "when do you open"}
    right = [{"text": f"{text} {n}", "labels": [label]} for n in range(30) for label, text in texts.items()]
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
        client.dismiss("doubtful", at)
        client.dismiss("doubtful", at)
        assert client.suspicious("doubtful", limit=5)["events"] == []
    for wrong_offset in ("yesterday", learned["offset"]):
        problem(service.http.delete(f"{address}/suspicious/{wrong_offset}"), 422, "invalid-field", "offset")
    problem(service.http.get(f"{address}/suspicious?limit=0"), 422, "invalid-field", "limit")


def test_a_model_without_probabilities_suspects_nothing(service: Served, model: str) -> None:
    service.http.post(f"/models/{model}/learn", json={"text": "a", "labels": ["b"]}).raise_for_status()
    assert service.http.get(f"/models/{model}/suspicious").json() == {"events": []}
