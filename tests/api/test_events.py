"""The newest events of a model, as its log has them."""

from __future__ import annotations

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
