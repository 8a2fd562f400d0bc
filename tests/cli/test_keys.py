"""``abound keys`` and ``abound audit``: with the service running, before it runs, and where there is none."""

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from abound.processes.embedded_store import EmbeddedStore
from tests.cli.test_cli import COMMANDS
from tests.support.command_line import Run
from tests.support.served import Served, make_key, served


def listed(run: Run, *where: object) -> list[dict[str, Any]]:
    code, out, _ = run("keys", "list", "--json", *where)
    assert code == 0
    return json.loads(out)["keys"]


def test_a_key_is_made_before_there_is_a_service(run: Run, tmp_path: Path) -> None:
    where = ("--data-dir", tmp_path / "data")
    code, out, err = run("keys", "create", "--scope", "admin", "--description", "mine", "--new-store", *where)
    assert code == 0
    secret = out.strip()
    [key] = listed(run, *where)
    assert (key["scopes"], key["description"], key["state"], key["used"]) == (["admin"], "mine", "valid", None)
    assert key["id"] in err
    assert f"creating a new store in {tmp_path / 'data'}" in err
    assert secret.startswith(f"abk_{key['id']}_")
    code, out, err = run("keys", "list", *where)
    assert secret[-43:] not in out + err
    assert "digest" not in json.dumps(key)
    for file in (tmp_path / "data").rglob("*"):
        assert file.is_dir() or secret[-43:].encode() not in file.read_bytes(), file
    acts = json.loads(run("audit", "--json", *where)[1])["acts"]
    [act] = acts
    assert (act["action"], act["outcome"], act["details"]["key"]) == ("key.create", "done", key["id"])
    assert "@" in acts[0]["address"]
    code, _, err = run("keys", "create", "--scope", "learn", "--new-store", *where)
    assert (code, "a new store" in err, err.startswith(f"store: {tmp_path / 'data'}\n")) == (0, False, True)


@pytest.mark.parametrize("named", ["nothing", "option", "environment"])
def test_the_first_key_makes_a_store_only_when_it_is_told_to(run, tmp_path, monkeypatch, named):
    monkeypatch.chdir(tmp_path)
    if named == "environment":
        monkeypatch.setenv("ABOUND_DATA_DIR", "data")
    create = ("keys", "create", "--scope", "admin", *(("--data-dir", "data") if named == "option" else ()))
    code, _, err = run(*create)
    assert (code, [*tmp_path.iterdir()]) == (1, [])
    assert f"there is no store in {tmp_path / 'data'}; name its --data-dir" in err
    assert "`abound keys create --new-store`" in err
    code, _, err = run(*create, "--new-store")
    assert (code, f"creating a new store in {tmp_path / 'data'}\n" in err) == (0, True)


def test_every_offline_command_prints_where_the_store_is(run: Run, tmp_path: Path) -> None:
    with EmbeddedStore(tmp_path / "data") as store:
        assert store
    for command, more in OFFLINE.items():
        _, out, err = run(*command.split(), *more, "--data-dir", tmp_path / "data")
        assert f"store: {tmp_path / 'data'}\n" in err, command
        assert "store: " not in out
    _, out, err = run("keys", "list", "--redis-url", "redis://abound:secret@localhost:1/3")
    assert err.startswith("store: redis://localhost:1/3\n")
    assert "secret" not in out + err


OFFLINE = {
    "keys list": (),
    "keys create": ("--scope", "admin"),
    "keys revoke": ("0" * 12,),
    "keys rotate": ("0" * 12,),
    "keys clear": ("--yes",),
    "audit": (),
    "verify": ("--offline",),
    "store rewrite": (),
    "store accept-loss": ("--yes",),
    "history show": (),
    "history begin-anew": ("--yes",),
}
"""Every command that asks the store itself, and what it needs."""


@pytest.mark.parametrize("command", OFFLINE)
@pytest.mark.parametrize("there", ["nothing", "empty"])
def test_no_command_makes_a_store_where_there_is_none(run: Run, tmp_path: Path, command: str, there: str) -> None:
    place = tmp_path / "typo"
    if there == "empty":
        place.mkdir()
    code, _, err = run(*command.split(), *OFFLINE[command], "--data-dir", place)
    assert code == 1
    assert str(place) in err
    assert [*tmp_path.rglob("*")] == ([place] if there == "empty" else [])


@pytest.mark.parametrize(
    "command", [*(name for name, words in OFFLINE.items() if words == ("--yes",)), "models delete mine"]
)
def test_a_question_goes_to_standard_error_and_needs_a_terminal(run, monkeypatch, command):
    code, out, err = run(*command.split(), "--json")
    assert (code, out, "confirm with --yes" in err) == (2, "", True)
    monkeypatch.setattr(sys, "stdin", io.StringIO("n\n"))
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
    code, out, err = run(*command.split(), "--json")
    assert (code, out.strip(), "[y/N]" in err) == (1, "", True)


def test_every_command_that_asks_the_store_itself_is_tried() -> None:
    asking = {path for path, command in COMMANDS.items() if any(one.name == "data_dir" for one in command.params)}
    assert asking - OFFLINE.keys() == {"serve"}  # it makes one


def test_an_embedded_store_that_runs_is_asked_as_it_is(run: Run, tmp_path: Path) -> None:
    with EmbeddedStore(tmp_path):
        code, _, _ = run("keys", "create", "-s", "classify", "--data-dir", tmp_path)
        assert code == 0
        assert len(listed(run, "--data-dir", tmp_path)) == 1
    assert len(listed(run, "--data-dir", tmp_path)) == 1


def test_the_life_of_a_key(run: Run, service: Served) -> None:
    where = ("--redis-url", service.server.url)
    terms = ("-s", "learn", "-s", "classify", "-m", "default", "--expires", "30d", "--rate", "100/second")
    made = run("keys", "create", *terms, "--json", *where).json
    assert (made["scopes"], made["models"], made["rate"]) == (["classify", "learn"], ["default"], "100/second")
    assert made["expires"] - made["created"] == pytest.approx(30 * 86_400)
    rotated = run("keys", "rotate", made["id"], "--grace", "0", "--json", *where).json
    assert rotated["replaces"] == made["id"]
    assert run("keys", "revoke", rotated["id"], *where)[:2] == (0, f"{rotated['id']} is revoked\n")
    states = {key["id"]: key["state"] for key in listed(run, *where)}
    assert states == {made["id"]: "expired", rotated["id"]: "revoked"}
    assert run("keys", "rotate", rotated["id"], *where)[0] == 1  # for good is for good
    assert run("keys", "clear", "--yes", *where)[0] == 0
    assert listed(run, *where) == []
    out = run("audit", "--json", "-n", "10", *where).out
    acts = [(act["action"], act["outcome"]) for act in json.loads(out)["acts"]]
    assert acts[:3] == [("key.clear", "done"), ("key.rotate", "refused"), ("key.revoke", "done")]
    assert made["key"][-43:] not in out


def test_a_missing_and_a_wrong_key_are_answered_with_the_options_that_set_one(run, tmp_path, monkeypatch):
    with served() as locked:
        made, where = make_key(locked, "classify"), ("--url", locked.url)
        missing, wrong = run("models", "list", *where), run("models", "list", "--key", "abk_x", *where)
        (tmp_path / "key").write_text(f"{made.secret}\n")
        monkeypatch.setenv("ABOUND_KEY_FILE", str(tmp_path / "key"))
        assert run("models", "list", *where).code == 0
        refused = run("models", "create", "new", *where)
        monkeypatch.setenv("ABOUND_KEY", "abk_y")
        assert "there is no such key" in run("models", "list", *where).err
    needed = "a key is needed: send the header Authorization: Bearer <key> (401)"
    assert missing.err == f"abound: {needed}; set ABOUND_KEY, ABOUND_KEY_FILE or --key\n"
    assert wrong.err == "abound: there is no such key (401); check ABOUND_KEY, ABOUND_KEY_FILE or --key\n"
    assert refused.err == "abound: this key does not have the scope admin (403)\n"
    assert missing.code == wrong.code == refused.code == 1


def test_a_key_that_cannot_travel_is_a_sentence(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "key").write_text("abk_1\nabk_2\n")
    for name, value in (("ABOUND_KEY_FILE", str(tmp_path / "key")), ("ABOUND_KEY", "abk_é")):
        monkeypatch.setenv(name, value)
        ran = run("models", "list", "--url", "http://127.0.0.1:1")
        assert (ran.code, "printable ASCII" in ran.err) == (2, True)
