"""The OpenAPI document says what the service does, no more and no less."""

import json
from pathlib import Path
from typing import Any

import jsonschema_rs
import msgspec
import pytest

from abound.api.schemas.learn_classify import ClassifyRequest, LabelledInstance, LearnRequest
from abound.jobs.methods import METHODS as METHODS_OF_JOBS
from abound.security.key import KeyTerms
from abound_core.errors import InvalidInstance
from tests.support.served import NDJSON, Served, lines, served

COMMITTED = Path(__file__).parents[2] / "docs" / "openapi.json"


@pytest.fixture(scope="module")
def document(service: Served) -> dict[str, Any]:
    answer = service.http.get("/openapi.json")
    assert answer.headers["content-type"] == "application/json"
    return answer.json()


def test_the_committed_document_is_that_of_the_service(document: dict[str, Any]) -> None:
    assert ordered(json.loads(COMMITTED.read_text())) == ordered(document), (
        "python -m tests.contracts.test_openapi writes it"
    )


def ordered(schema: Any) -> Any:
    """A schema whose alternatives are in one order: that of msgspec differs between its versions."""
    if isinstance(schema, list):
        return [ordered(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    found = {name: ordered(one) for name, one in schema.items()}
    if "anyOf" in found:
        found["anyOf"].sort(key=json.dumps)
    return found


def test_what_is_documented_is_served(service: Served, document: dict[str, Any]) -> None:
    for path, item in document["paths"].items():
        asked = service.http.options(path.replace("{model}", "default").replace("{key_id}", "0" * 12))
        allowed = set(asked.headers["allow"].split(", ")) - {"OPTIONS", "HEAD"}
        assert allowed == {method.upper() for method in item}, path


def test_operations_are_named_once_and_described(document: dict[str, Any]) -> None:
    operations = [operation for item in document["paths"].values() for operation in item.values()]
    assert len({operation["operationId"] for operation in operations}) == len(operations)
    assert all(operation["summary"] and operation["tags"] for operation in operations)
    groups = [group["name"] for group in document["tags"]]
    assert set(groups) == {tag for operation in operations for tag in operation["tags"]}
    assert groups[0] == "learner", "the most used is first"


def test_fields_of_the_hot_requests_are_those_that_are_decoded(document: dict[str, Any]) -> None:
    schemas = document["components"]["schemas"]
    for struct in (ClassifyRequest, LearnRequest, LabelledInstance):
        schema = schemas[struct.__name__]
        assert set(schema["properties"]) == {field.encode_name for field in msgspec.structs.fields(struct)}
        assert schema["additionalProperties"] is False


@pytest.mark.parametrize("path", ["/classify", "/models/{model}/classify", "/learn", "/models/{model}/learn"])
def test_examples_are_good_requests_with_answers_of_their_shape(service, document, path):
    operation = document["paths"][path]["post"]
    content = operation["requestBody"]["content"]
    where = path.replace("{model}", "default")
    request = {**content["application/json"]["schema"], "components": document["components"]}
    answer_schema = operation["responses"]["200"]["content"]["application/json"]["schema"]
    answer_schema = {**answer_schema, "components": document["components"]}
    for example in content["application/json"]["examples"].values():
        jsonschema_rs.validator_for(request).validate(example["value"])
        answer = service.http.post(where, json=example["value"]).raise_for_status()
        jsonschema_rs.validator_for(answer_schema).validate(answer.json())
    example = content["application/x-ndjson"]["example"]
    answered = lines(service.http.post(where, content=example, headers=NDJSON))
    assert len(answered) == example.count("\n") > 1
    for one in answered:
        jsonschema_rs.validator_for(answer_schema).validate(one)


@pytest.mark.parametrize("name", METHODS_OF_JOBS)
def test_every_parameter_of_a_job_is_described(name: str) -> None:
    """The page makes its forms from this, and whoever fills one in has nothing else to go by."""
    jsonschema_rs.meta.validate(METHODS_OF_JOBS[name].schema)
    for parameter, about in METHODS_OF_JOBS[name].schema["properties"].items():
        described = about.get("description", "")
        assert len(described) >= 10, f"{parameter} of {name}"
        assert not described.startswith("See "), f"{parameter} of {name}"
        assert parameter not in ("since", "until") or "seconds since 1970" in described


REFUSED_BY_RULE: dict[str, tuple[str, dict[str, Any]]] = {
    "no labels": ("/learn", {"text": "a"}),
    "an empty label": ("/learn", {"text": "a", "labels": [""]}),
    "too many labels": ("/learn", {"text": "a", "labels": [str(i) for i in range(101)]}),
    "a long label": ("/learn", {"text": "a", "labels": ["x" * 513]}),
    "no label and none rejected": ("/learn", {"text": "a", "labels": [], "rejected": []}),
    "an empty rejected label": ("/learn", {"text": "a", "rejected": [""]}),
    "a long ignored label": ("/learn", {"instances": [{"text": "a", "labels": ["x"], "ignored": ["x" * 513]}]}),
    "an empty feature name": ("/learn", {"features": {"": 1}, "labels": ["x"]}),
    "a long feature name": ("/classify", {"features": {"x" * 513: 1}}),
    "a feature name with a zero byte first": ("/classify", {"features": {"\0x": 1}}),
    "a long string in a list": ("/classify", {"features": {"a": ["x" * 511]}}),
    "an instance and a prediction": ("/learn", {"text": "a", "prediction": "p", "labels": ["x"]}),
    "labels of a batch": ("/learn", {"instances": [{"text": "a", "labels": ["x"]}], "labels": ["x"]}),
    "no labels in a batch": ("/learn", {"instances": [{"text": "a"}]}),
    "none and a label": ("/learn", {"text": "a", "labels": ["x"], "none": True}),
    "none of a batch": ("/learn", {"instances": [{"text": "a", "labels": ["x"]}], "none": True}),
    "a weight of a batch": ("/learn", {"instances": [{"text": "a", "labels": ["x"]}], "weight": 1}),
    "an instance and a batch": ("/classify", {"text": "a", "instances": [{"text": "a"}]}),
    "a model of a key": ("/keys", {"scopes": ["admin"], "models": ["a b"]}),
    "a rate": ("/keys", {"scopes": ["admin"], "rate": "often"}),
    "k too large": ("/classify", {"text": "a", "k": 1001}),
    "null features without a text": ("/classify", {"features": None}),
    "no instance": ("/classify", {}),
    "a method": ("/jobs", {"method": "none"}),
    "data of a job": ("/jobs", {"method": "swnn", "data": "a b"}),
    "a horizon with sls": ("/models/{model}", {"update": "sls", "memory": 5}),
    "rows with fsu": ("/models/{model}", {"update": "fsu", "rows": True}),
    "rows and a horizon": ("/models/{model}", {"rows": True, "memory": 5}),
}


@pytest.mark.parametrize("case", REFUSED_BY_RULE)
def test_what_a_rule_refuses_breaks_the_document(case: str, service: Served, document: dict[str, Any]) -> None:
    path, body = REFUSED_BY_RULE[case]
    method = "put" if path == "/models/{model}" else "post"
    if path == "/keys":  # the first one is never made over HTTP
        with pytest.raises(InvalidInstance):
            KeyTerms(**body).check()
    else:
        assert service.http.request(method, path.replace("{model}", "ruled"), json=body).status_code == 422
    assert not is_valid(document, method, path, body)


TAKEN: dict[str, tuple[str, dict[str, Any]]] = {
    "no label fits": ("/learn", {"text": "a", "labels": [], "none": True}),
    "null features and a text": ("/classify", {"features": None, "text": "a"}),
    "no features": ("/classify", {"features": {}}),
    "the largest k": ("/classify", {"text": "a", "k": 1000}),
    "rejected without labels": ("/learn", {"text": "a", "rejected": ["x"]}),
    "rejected and labels null": ("/learn", {"text": "a", "labels": None, "rejected": ["x"]}),
    "rejected and no labels": ("/learn", {"text": "a", "labels": [], "rejected": ["x"], "ignored": []}),
    "rejected in a batch": ("/learn", {"instances": [{"text": "a", "rejected": ["x"], "weight": 2}]}),
    "the most labels": ("/learn", {"text": "a", "labels": ["x"], "ignored": [f"{i:0512}" for i in range(100)]}),
    "the longest feature names": ("/learn", {"features": {"x" * 512: 1, "a": "x" * 510, "x\0": 1}, "labels": ["x"]}),
    "more features than may be active": ("/classify", {"features": {str(i): i < 9_999 for i in range(20_000)}}),
    "rows and rerank with sls": ("/models/{model}", {"update": "sls", "rows": True, "rerank": True}),
    "no rerank with sls": ("/models/{model}", {"update": "sls", "rerank": False}),
    "a horizon with fsu": ("/models/{model}", {"update": "fsu", "memory": 5, "rows": False}),
}


@pytest.mark.parametrize("case", TAKEN)
def test_what_is_taken_is_valid_by_the_document(case: str, service: Served, document: dict[str, Any]) -> None:
    path, body = TAKEN[case]
    method = "put" if path == "/models/{model}" else "post"
    model = "taken-" + case.replace(" ", "-")
    answer = service.http.request(method, path.replace("{model}", model), json=body)
    assert answer.status_code in (200, 201), answer.text
    assert is_valid(document, method, path, body)


def is_valid(document: dict[str, Any], method: str, path: str, body: dict[str, Any]) -> bool:
    schema = document["paths"][path][method]["requestBody"]["content"]["application/json"]["schema"]
    return bool(jsonschema_rs.validator_for({**schema, "components": document["components"]}).is_valid(body))


if __name__ == "__main__":
    with served() as running:
        COMMITTED.write_text(json.dumps(running.http.get("/openapi.json").json(), indent=2, ensure_ascii=False) + "\n")
