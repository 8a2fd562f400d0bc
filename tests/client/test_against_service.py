"""The clients beside a running service."""

import re

import pytest

from abound.client import Client, InputInstance, Labelled, Model, Refused, Unreachable
from tests.support.served import Served, fresh_model


def test_a_model_is_taught_and_asked(service: Served) -> None:
    name = fresh_model(service)
    with Client(service.url) as client:
        model = Model(client, name)
        learned = model.learn("wheat prices rise", ["grain"], source="test")
        assert learned.applied
        answer = model.classify(text="wheat", k=1, explain=True, remember=True, min_offset=learned.offset)
        assert [one.label for one in answer.labels] == ["grain"]
        assert answer.labels[0].because
        assert [one["text"] for one in client.uncertain(name, limit=1)["instances"]] == ["wheat"]
        assert model.learn(labels=["cereal"], prediction=answer.id).updated
        assert {one.label for one in model.classify(text="wheat").labels} == {"grain", "cereal"}
        with pytest.raises(Refused, match="labels"):
            model.learn("wheat", [])
        assert client.labels(name, prefix="g")["labels"] == ["grain"]
        assert client.stats(name)["learned"] == 2
        told = model.learn("wheat prices rise", rejected=["grain"], ignored=("cereal",), weight=2.0)
        assert told.applied
        assert told.rank is None
        counts = {"unlabelled": 1, "rejected": 1, "ignored": 1, "weighted": 1}
        assert client.stats(name)["feedback"] == counts
        with pytest.raises(TypeError, match="rejected is a list of strings"):
            model.learn("wheat", rejected="grain")


def test_a_model_is_created_and_instances_are_given_in_every_way(service, monkeypatch):
    monkeypatch.setenv("ABOUND_URL", service.url)
    with Client() as client:
        model = Model(client, f"{fresh_model(service)}-more")
        assert repr(model) == f"<Model {model.name!r} of {service.url}>"
        assert model.create(update="sls")["config"]["update"] == "sls"
        change = re.escape(f"the model {model.name!r} exists; leave out create, or change it with client.configure(")
        with pytest.raises(ValueError, match=change):
            model.create()
        wheat = InputInstance(text="wheat", features={"price": 3.0})
        assert model.learn(wheat, ["grain"]).applied
        assert model.classify(wheat) == model.classify("wheat", features={"price": 3.0})
        for wrong in (lambda: model.learn(["grain"], "wheat"), lambda: model.learn("wheat", "grain")):
            with pytest.raises(TypeError):
                wrong()
        with pytest.raises(TypeError, match="not both"):
            model.classify(wheat, text="wheat")


def test_half_of_a_surrogate_pair_ends_no_stream(service: Served) -> None:
    name = fresh_model(service)
    with Client(service.url) as client:
        model = client.model(name)
        texts = ["wheat", "oil \ud83d", "corn"]
        learned = list(model.learn_many(Labelled(text=text, labels=["x"]) for text in texts))
        assert [isinstance(one, Refused) for one in learned] == [False, True, False]
        assert [isinstance(one, Refused) for one in model.classify_many(texts)] == [False, True, False]
        with pytest.raises(Refused, match="half of a surrogate pair"):
            model.learn("oil \ud83d", ["x"])
    assert service.learned(name) == 2


def test_a_client_can_start_a_service_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ABOUND_KEY", "of another service")
    with Client(":memory:") as client:
        assert client.model("default").learn("wheat prices rise", ["grain"]).applied
        assert client.model("default").classify("wheat").labels[0].label == "grain"
        job = client.submit({"method": "unweighted"})
        assert client.wait(job)["state"] == client.wait(job["id"])["state"] == "succeeded"
        url = client.url
    with pytest.raises(Unreachable), Client(url) as client:
        client.models()
