"""Versions over HTTP and on the command line: listed, compared, copied, deleted, kept."""

import json
import select
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

from abound.cli.main import app
from abound.client import Client, Refused
from abound.client.local_service import own_service
from tests.jobs.test_fit import Place, instances
from tests.support.served import problem


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    directory: Path = tmp_path_factory.mktemp("data")
    with own_service(data_dir=directory, worker=True) as url, Client(url) as client:
        client.learn("default", {"instances": instances(120)})
        client.configure("other", {})
        yield Place(client, directory)


@pytest.fixture(scope="module")
def made(place: Place) -> list[dict[str, Any]]:
    jobs = [place.done("frequency", seed=3), place.done("swnn", S=10)]
    return [place.client.version("default", job["version"]) for job in jobs]


@contextmanager
def refusing(said: str, status: int = 409) -> Iterator[None]:
    with pytest.raises(Refused, match=said) as refused:
        yield
    assert refused.value.problem["status"] == status


def run(place: Place, *arguments: str) -> Any:
    result = CliRunner().invoke(app, ["versions", *arguments, "--url", place.client.url, "--json"])
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def answer_to(place: Place, method: str, path: str, **given: Any) -> httpx.Response:
    """The answer to a request, which is sent again while the store is too slow."""
    while (answer := httpx.request(method, f"{place.client.url}{path}", timeout=60, **given)).status_code == 503:
        time.sleep(0.1)
    return answer


def test_versions_are_listed_newest_first(place: Place, made: list[dict[str, Any]]) -> None:
    listed = place.client.versions("default")["versions"]
    assert [card for card in listed if card in made] == made[::-1]
    assert listed == sorted(listed, key=lambda card: card["created"], reverse=True)
    assert run(place, "list")["versions"] == listed
    assert run(place, "show", made[0]["id"]) == made[0]
    assert place.client.versions("other") == {"versions": []}
    assert made[0]["needed"] is None
    taken = sum(path.stat().st_size for path in place.directory.rglob(f"{made[1]['id']}/*.npy"))
    assert made[1]["bytes"] == taken
    assert {"instances": 120, "classes": 6, "assertions": 240}.items() <= made[0]["sizes"].items()
    plain = CliRunner().invoke(app, ["versions", "list", "--url", place.client.url])
    assert made[0]["id"] in plain.stdout


def test_versions_stand_side_by_side(place: Place, made: list[dict[str, Any]]) -> None:
    ids = [card["id"] for card in made]
    compared = place.client.compare_versions("default", ids)
    assert compared == run(place, "compare", *ids)
    assert compared["versions"] == ids
    assert compared["methods"] == ["frequency", "swnn"]
    assert compared["metrics"]["R@1"] == [card["metrics"]["R@1"] for card in made]
    assert compared["params"]["S"] == [None, 10]
    assert compared["params"]["seed"] == [3, 0]
    assert run(place, "compare")["versions"] == [card["id"] for card in place.client.versions("default")["versions"]]


def test_a_version_goes_out_as_a_file_and_comes_in_elsewhere(place, made, tmp_path):
    file = tmp_path / "version"
    told = run(place, "export", made[1]["id"], str(file))
    assert told["bytes"] == file.stat().st_size > made[1]["bytes"]
    card = run(place, "import", str(file), "--model", "other")
    assert card["digest"] == made[1]["digest"]
    assert card["id"] != made[1]["id"]
    assert (card["model"], card["data"], card["data_range"], card["job"]) == ("other", "import", None, None)
    assert card["origin"]["id"] == made[1]["id"]
    assert place.client.versions("other")["versions"] == [card]
    again = place.client.import_version("default", iter([file.read_bytes()]))
    assert (again["data"], again["data_range"]) == ("history", made[1]["data_range"])
    place.client.delete_version("default", again["id"])
    assert run(place, "delete", card["id"], "--model", "other") == {"deleted": card["id"]}
    assert place.files("other") == []


def test_a_version_is_not_taken_by_a_model_that_reads_instances_otherwise(place, made):
    whole = b"".join(place.client.export_version("default", made[1]["id"]))
    place.client.configure("pairs", {"analyzer": {"ngrams": [1, 2]}})
    place.client.configure("signs", {"negative": "split"})
    for name, said in (("pairs", "analyzer"), ("signs", "negative")):
        with refusing(f"read otherwise than the model reads them: with {said} "):
            place.client.import_version(name, iter([whole]))
        assert place.files(name) == []


def test_a_version_does_not_answer_for_a_model_that_reads_instances_otherwise_by_now(place, made):
    whole = b"".join(place.client.export_version("default", made[1]["id"]))
    place.client.configure("later", {})
    version = place.client.import_version("later", iter([whole]))["id"]
    place.client.configure("later", {"boolean": True})
    for ask in (place.client.activate, place.client.enter_challenger):
        with refusing("with boolean false"):
            ask("later", version)
    place.client.configure("later", {"boolean": False})
    assert place.client.activate("later", version)["version"] == version
    with refusing("boolean cannot change while a version is active"):
        place.client.configure("later", {"boolean": True})
    place.client.activate("later", "live")
    assert place.client.configure("later", {"boolean": True})["config"]["boolean"]


def test_no_import_changes_how_instances_reach_the_active_version(place: Place, made: list[dict[str, Any]]) -> None:
    whole = b"".join(place.client.export_version("default", made[1]["id"]))
    place.client.configure("letters", {"analyzer": {"kind": "char"}})
    place.client.learn("letters", {"text": "a", "labels": ["b"]})
    file = b"".join(place.client.export("letters"))
    place.client.configure("words", {})
    version = place.client.import_version("words", iter([whole]))["id"]
    place.client.activate("words", version)
    with refusing("fitted on instances that are read otherwise"):
        place.client.import_("words", iter([file]))
    place.client.activate("words", "live")
    assert place.client.import_("words", iter([file]))["config"]["analyzer"]["kind"] == "char"


def test_slow_imports_leave_the_artifact_store_to_others(place: Place, made: list[dict[str, Any]]) -> None:
    url = httpx.URL(place.client.url)
    file = b"".join(place.client.export_version("default", made[0]["id"]))
    head = f"POST /models/other/versions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(file)}\r\n\r\n".encode()
    with ExitStack() as opened:
        slow = [opened.enter_context(socket.create_connection((url.host, url.port or 80))) for _ in range(20)]
        for connection in slow:
            connection.sendall(head + file[:-20])
        refused: set[socket.socket] = set()
        while len(refused) < 16:
            answered, _, _ = select.select([one for one in slow if one not in refused], [], [], 60)
            assert answered
            for connection in answered:
                assert connection.recv(65_536).startswith(b"HTTP/1.1 503 ")
            refused.update(answered)
        assert httpx.get(f"{url}/models/default/versions", timeout=60).status_code == 200
        last = next(one for one in slow if one not in refused)
        last.sendall(file[-20:])
        last.settimeout(60)
        assert last.recv(65_536).startswith(b"HTTP/1.1 201 ")
    [card] = place.client.versions("other")["versions"]
    place.client.delete_version("other", card["id"])


def test_what_is_not_there_is_not_found(place: Place) -> None:
    for path in ("versions/0123456789abcdef", "versions/0123456789abcdef/export", "comparison?id=01234567"):
        answer = answer_to(place, "GET", f"/models/default/{path}")
        assert (answer.status_code, answer.json()["type"]) == (404, "/problems/unknown-version"), answer.text
    for path in ("versions/live", "versions/..%2F..%2Fx", "comparison", "comparison?id=" + "x" * 500):
        assert answer_to(place, "GET", f"/models/default/{path}").status_code in (404, 422)
    with refusing("no version", 404):
        place.client.delete_version("default", "0123456789abcdef")
    assert answer_to(place, "GET", "/models/none/versions").status_code == 404


def test_a_challenger_stays_until_it_is_withdrawn(place: Place, made: list[dict[str, Any]]) -> None:
    client = place.client
    job = client.submit({"method": "frequency", "activate": "if_better"})
    job = list(client.follow(job["id"]))[-1]
    version = job["version"]
    assert job["outcome"]["challenger"] is True
    assert client.version("default", version)["needed"] == "it is a challenger"
    with refusing("it is a challenger"):
        client.delete_version("default", version)
    path = "/models/default/challengers"
    entered = answer_to(place, "POST", path, json={"version": made[0]["id"], "reason": "it looks good"})
    assert (entered.status_code, entered.json()["challengers"][1]["reason"]) == (201, "it looks good")
    listed = answer_to(place, "GET", path).json()["challengers"]
    assert {one["version"] for one in listed} == {version, made[0]["id"]}
    for one in (version, made[0]["id"]):
        assert answer_to(place, "DELETE", f"{path}/{one}").status_code == 204
    assert answer_to(place, "GET", path).json()["challengers"] == []
    assert answer_to(place, "DELETE", f"{path}/{version}").status_code == 404


KNOWN = b'{"version": "aaaaaaaa"}'


@pytest.mark.parametrize(
    ("body", "status", "field"),
    [
        (KNOWN, 404, None),
        (b'{"version":', 400, None),
        (KNOWN + b" " * 2**24, 413, None),
        (b"", 422, "version"),
        (b'{"version": "live"}', 422, "version"),
        (KNOWN[:-1] + b', "why": 1}', 422, "why"),
    ],
    ids=["unknown", "cut", "large", "empty", "live", "field"],
)
def test_what_cannot_be_a_challenger_is_refused(place: Place, body: bytes, status: int, field: str | None) -> None:
    problem(answer_to(place, "POST", "/models/default/challengers", content=body), status, field=field)


def test_what_was_fitted_on_forgotten_events_goes(place: Place) -> None:
    """Also where it is active, or loaded; what was fitted before stays."""
    client = place.client
    client.configure("forgetful", {})
    client.learn("forgetful", {"instances": instances(60)})
    before = place.done("frequency", "forgetful")["version"]
    client.learn("forgetful", {"instances": [{"features": {"x": 1}, "labels": ["secret"]}] * 3, "source": "bad"})
    after = [
        place.done(method, "forgetful", **params)["version"] for method, params in (("swnn", {"S": 5}), ("ind", {}))
    ]
    asked = {"features": {"x": 1}, "version": after[0]}
    assert client.classify("forgetful", asked)["labels"][0]["label"] == "secret"
    activated = answer_to(place, "POST", "/models/forgetful/activate", json={"version": after[1]})
    assert activated.status_code == 200, activated.text
    assert client.classify("forgetful", {"features": {"x": 1}})["version"] == after[1]
    job = place.done("forget", "forgetful", source="bad", reason="it was a secret")
    assert job["state"] == "succeeded", job["error"]
    assert job["outcome"]["versions_deleted"] == sorted(after)
    assert [card["id"] for card in client.versions("forgetful")["versions"]] == [before]
    assert {name.partition("/")[0] for name in place.files("forgetful")} == {before}
    answer = client.classify("forgetful", {"features": {"x": 1}})
    assert (answer["version"], answer["labels"]) == ("live", [])
    for version in after:
        with refusing("no version", 404):
            client.classify("forgetful", {"features": {"x": 1}, "version": version})
    assert client.classify("forgetful", {"features": {"x": 1}, "version": before})["version"] == before
