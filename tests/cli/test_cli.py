"""The command line as a user meets it: exit codes, JSON, and files through a real service."""

import csv
import io
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import httpx
import pytest
import typer.main

from abound.cli import main as cli
from abound.client.local_service import own_service
from abound.datasets.files import read_file
from abound.evaluation.live import evaluate
from abound_core.config import ModelConfig
from abound_core.types import Offset
from tests.cli.conftest import rows, write
from tests.contracts.test_cli_page import commands
from tests.support.command_line import Run
from tests.support.job_worker import until


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("service")


@pytest.fixture(scope="module")
def url(data_dir: Path) -> Iterator[str]:
    with own_service(data_dir=data_dir, worker=True) as url:
        yield url


COMMANDS = dict(commands(typer.main.get_command(cli.app)))


@pytest.mark.parametrize("path", [one for one in COMMANDS if one != "mcp"])
def test_every_command_has_json_and_help(path: str, run: Run) -> None:
    assert any("--json" in parameter.opts for parameter in COMMANDS[path].params)
    shown = run(*path.split(), "--help")
    assert shown.code == 0
    assert "--json" in shown.out


def test_help_is_there_at_once() -> None:
    heavy = "{'numpy', 'numba', 'fastapi', 'redis', 'httpx', 'pydantic'}"
    program = f"import abound.cli.main, sys; print({heavy} & set(sys.modules))"
    imported = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert imported.stdout == "set()\n"


@pytest.mark.parametrize(
    "arguments",
    [
        ["frobnicate"],
        ["learn"],
        ["models", "configure", "m"],
        ["models", "create", "m", "--set", "margin"],
        ["models", "delete", "m"],
        ["models", "create", "bad/name"],
        ["demo", "--instances", "0"],
        ["serve", "--processes", "0"],
        ["keys", "create", "-s", "root"],
        ["keys", "create", "-s", "learn", "--expires", "soon"],
        ["keys", "create", "-s", "learn", "--rate", "many"],
        ["keys", "create", "-s", "learn", "--description", "two\nlines"],
    ],
)
def test_wrong_use_is_exit_code_2(arguments: list[str], run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    ran = run(*arguments)
    assert ran.code == 2
    assert ran.err


def test_config_tells_where_each_setting_comes_from(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ABOUND_PORT", "8123")
    monkeypatch.setenv("ABOUND_REDIS_URL", "redis://u:secret@h:1")
    monkeypatch.setenv("ABOUND_PROT", "1")
    ran = run("config", "--json")
    settings = ran.json["settings"]
    assert settings["port"] == {"value": 8123, "from": "ABOUND_PORT", "meaning": settings["port"]["meaning"]}
    assert settings["host"]["from"] == "default"
    values = {name: settings[name]["value"] for name in ("worker", "limits_max_labels", "host")}
    assert values == {"worker": True, "limits_max_labels": 100, "host": "127.0.0.1"}
    assert "secret" not in ran.out
    assert len(ran.json["unknown"]) == 1
    assert "8123" in run("config").out


def test_a_wrong_setting_is_one_sentence(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ABOUND_PORT", "many")
    ran = run("serve")
    assert ran.code == 2
    assert "ABOUND_PORT" in ran.err
    assert "Traceback" not in ran.err


def test_the_service_equals_the_library(run: Run, url: str, train: Path, test: Path) -> None:
    assert run("models", "create", "same", "--set", "margin=0.5", "--url", url).code == 0
    learned = run("learn", train, "--url", url, "--model", "same", "--json").json
    here = evaluate(read_file(str(train)), read_file(str(test)), ModelConfig(margin=0.5))
    shown = run("models", "show", "same", "--url", url, "--json").json
    assert shown["digest"] == here["digest"]
    assert learned["learned"] == 1500
    assert learned["accuracy"]["all"] == {
        name: pytest.approx(shown["stats"]["all"][name]) for name in ("n", "R@1", "R@5", "MRR")
    }
    ran = run("classify", test, "--url", url, "--model", "same", "-k", 1000, "--json")
    assert [len(json.loads(line)["labels"]) > 0 for line in ran.out.splitlines()] == [True] * 100
    accuracy = json.loads(ran.err)["accuracy"]["all"]
    assert {name: accuracy[name] for name in ("R@1", "R@5", "MRR")} == pytest.approx(
        {name: here["metrics"][name] for name in ("R@1", "R@5", "MRR")}
    )


def test_tables_in_and_out(run: Run, url: str, tmp_path: Path) -> None:
    table = tmp_path / "tickets.csv"
    rows = "".join(f"broken screen {n},hardware|phone,{n},3\nlate bill {n},billing,{n},1\n" for n in range(20))
    table.write_text(f"subject,topics,id,prio\n{rows}")
    named = ("--text", "subject", "--label", "topics", "--label-separator", "|", "--ignore", "id")
    run("models", "create", "tickets", "--url", url)
    learned = run("learn", table, *named, "--url", url, "-m", "tickets", "--json").json
    assert (learned["learned"], learned["refused"]) == (40, 0)
    here = run("evaluate", "--train", table, "--test", table, *named, "--json").json
    assert run("models", "show", "tickets", "--url", url, "--json").json["digest"] == here["digest"]
    output = tmp_path / "answers.csv"
    asked = ("classify", table, *named, "--url", url, "-m", "tickets", "-k", 2)
    assert run(*asked, "-o", output, "--limit", 2, "--json").json["accuracy"]["all"]["R@1"] == 1
    with output.open(newline="") as file:
        answers = list(csv.DictReader(file))
    assert [(one["line"], one["rank"], one["error"]) for one in answers] == [
        (line, rank, "") for line in "23" for rank in "12"
    ]
    assert {one["label"] for one in answers[:2]} == {"hardware", "phone"}
    assert answers[2]["label"] == "billing"
    assert all(float(one["score"]) > 0 and 0 < float(one["probability"]) < 1 for one in answers)
    printed = run(*asked, "--output-format", "csv", "--limit", 1).out
    assert printed.startswith("line,rank,label,score,probability,error\n")
    for wrong, message in (
        (("--output-format", "csv", "--explain"), "JSON only"),
        (("--output-format", "csv", "--label-separator", ""), "length >= 1"),
        (("--output-format", "xml"), "xml"),
    ):
        refused = run(*asked, *wrong)
        assert (refused.code, message in refused.err) == (2, True)


def test_decisions_are_columns(run: Run, url: str, tmp_path: Path) -> None:
    table, at = tmp_path / "drinks.csv", ("--url", url, "-m", "drinks")
    kinds = ("tea,tea", "coffee,coffee", "hot,tea", "hot,coffee")
    table.write_text("text,label\n" + "\n".join(kinds * 99) + "\n")
    run("models", "create", "drinks", "--set", "update=sls", "--set", "decide.audit=1", "--url", url)
    assert run("learn", table, *at, "--json").json["learned"] == 396
    table.write_text("text\ntea\nhot\nwhisky\n")
    lines = [json.loads(line) for line in run("classify", table, *at).out.splitlines()]
    answered = run("classify", table, *at, "--output-format", "csv").out.splitlines()
    rows = {row["line"]: row for row in csv.DictReader(answered)}
    assert [one["decision"] for one in lines] == ["answer", "defer", "none"]
    for line in lines:
        row = rows[str(line["line"])]
        assert row["decision"] == line["decision"]
        for name in ("audit", "candidates", "reachable"):
            assert row[name] == (json.dumps(line[name]) if name in line else "")


def test_a_refused_row_is_a_row_of_the_answers(run: Run, url: str, tmp_path: Path) -> None:
    table = tmp_path / "long.tsv"
    table.write_text(f"text\tbody\na\t{'x' * 600}\n")
    run("models", "create", "long", "--url", url)
    ran = run("classify", table, "--url", url, "-m", "long", "--output-format", "csv")
    (answer,) = csv.DictReader(ran.out.splitlines())
    assert (ran.code, answer["line"], answer["label"]) == (1, "2", "")
    assert "512 bytes" in answer["error"]


def test_answers_have_the_lines_of_the_file(run: Run, url: str, tmp_path: Path, test: Path) -> None:
    path, output = tmp_path / "some.jsonl", tmp_path / "answers.jsonl"
    path.write_text('{"text": "a"}\n\n{"text": \n{"features": {"a": [1]}}\n{"text": "b"}\n')
    run("models", "create", "lines", "--url", url)
    at = ("--url", url, "-m", "lines")
    answers = [json.loads(line) for line in run("classify", path, *at, "--skip", 1, "--skip-bad").out.splitlines()]
    assert [(one["line"], one.get("status")) for one in answers] == [(4, 422), (5, None)]
    assert run("learn", test, *at, "--skip", 90, "--json").json["learned"] == 10
    assert run("learn", test, *at, "--skip", 10, "--limit", 5, "--json").json["learned"] == 5
    ran = run("classify", test, *at, "--explain", "-k", 2, "-o", output, "--limit", 3, "--json")
    answers = [json.loads(line) for line in output.read_text().splitlines()]
    assert (ran.json["classified"], len(answers)) == (3, 3)
    assert all(label["because"] for answer in answers for label in answer["labels"])


def test_a_file_with_keys_is_learned_once(run: Run, url: str, tmp_path: Path) -> None:
    run("models", "create", "once", "--url", url)
    made = [one | {"key": f"row-{at}", "source": "desk", "id": at} for at, one in enumerate(rows(10))]
    file = write(tmp_path / "keys.jsonl", made)
    ran = run("learn", file, "--url", url, "-m", "once")
    assert ran.code == 1
    assert "line 1: unknown field 'id'" in " ".join(ran.err.split())
    for _ in range(2):
        assert run("learn", file, "--ignore", "id", "--url", url, "-m", "once", "--keyed", "--json").code == 0
    assert httpx.get(f"{url}/models/once/stats", timeout=60).json()["learned"] == 10


def test_ignored_numbers_are_named_once(run: Run, url: str, tmp_path: Path) -> None:
    file = write(tmp_path / "f.jsonl", [{"text": "a", "labels": ["x"]}] * 3)
    numbers = [{"features": {"n": 1, "debt": -at}, "labels": ["x"]} for at in range(1, 2500)]  # several requests
    file.write_bytes(file.read_bytes() + write(tmp_path / "g.jsonl", numbers).read_bytes())
    run("models", "create", "negative", "--url", url)
    for command in ("learn", "classify"):
        ran = run(command, file, "--url", url, "--model", "negative", "--json")
        said = " ".join(ran.err.split())
        assert ran.code == 0
        assert said.count("debt;") == said.count("f.jsonl: line 4: warning: negative numbers are ignored") == 1


def test_refused_lines_are_told_and_do_not_stop_the_rest(run: Run, url: str, tmp_path: Path) -> None:
    run("models", "create", "refused", "--url", url)
    made = rows(10)
    made[3] = {"features": {"a": {"b": 1}}, "labels": ["x"]}
    made[5] = {"text": "", "labels": ["x"]}
    ran = run("learn", write(tmp_path / "some.jsonl", made), "--url", url, "-m", "refused", "--json")
    assert ran.code == 1
    assert (ran.json["learned"], ran.json["refused"]) == (8, 2)
    assert "some.jsonl: line 4: features.a" in ran.err
    assert "some.jsonl: line 6:" in ran.err


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (
            {"text": "wheat", "labls": "grain"},
            "abound: 1 of the first 1 rows cannot be read; the first: some.jsonl: line 1: unknown field 'labls'; "
            "did you mean 'labels'?; nothing was read from it (to go on all the same, use --yes)\n",
        ),
        ({"txt": "wheat", "labels": ["grain"]}, "line 1: unknown field 'txt'; did you mean 'text'?"),
        ({"text": "wheat", "labels": [[1]]}, "line 1: not an instance in JSON"),
        ({"text": "wheat", "topic": "grain"}, "line 1: unknown field 'topic'"),
        ({"text": "wheat", "weight": 2}, "no instance has labels; name their column or field with --label"),
        (
            {"key": "wheat", "labels": ["x"]},
            "line 1: an instance needs text, features or a vector; this one has the fields 'key', 'labels'",
        ),
        (None, "nothing was learned: no instance to learn in some.jsonl"),
    ],
)
def test_a_file_of_which_nothing_is_learned(line, said, run, url, tmp_path):
    ran = run("learn", write(tmp_path / "some.jsonl", [] if line is None else [line]), "--url", url)
    assert ran.code == 1
    assert said in ran.err.replace(f"{tmp_path}/", "")


def test_files_are_shown_before_they_are_learned(run: Run, url: str, tmp_path: Path) -> None:
    file = tmp_path / "bank.csv"
    rows = "".join(f"{at};Süd {at};-{at},50;{4711 + at % 3};{'in' if at % 2 else 'out'}\n" for at in range(20))
    file.write_bytes(f"no;shop;amount;code;kind\n{rows}".encode("cp1252"))
    run("models", "create", "bank", "--url", url)
    roles = ("--text", "shop", "--label", "kind", "--category", "code", "--ignore", "no")
    ran = run("learn", file, *roles, "--url", url, "-m", "bank", "--dry-run", "--json")
    assert (ran.code, ran.json[0]["options"]["encoding"], ran.json[0]["options"]["number"]) == (0, "cp1252", ["amount"])
    assert "2 labels in 20 rows: out, in" in ran.err
    assert "warning: not UTF-8 but cp1252" in ran.err
    assert httpx.get(f"{url}/models/bank/stats", timeout=60).json()["learned"] == 0
    assert run("learn", file, *roles, "--url", url, "-m", "bank", "--json").json["learned"] == 20
    at = ("--url", url, "-m", "bank", "--label", "kind", "--delimiter", ";", "--skip-bad", "--json")
    file.write_bytes(file.read_bytes() + b"broken\n" * 30)
    refused = run("learn", file, *at)
    assert (refused.code, "to go on all the same, use --yes" in refused.err) == (1, True)
    assert run("learn", file, *at, "--yes").json["bad"] == 30


def test_the_version(run: Run) -> None:
    assert run("--version").out == f"abound {metadata.version('abound')}\n"


def test_a_replacement_is_undone(run: Run, url: str, train: Path) -> None:
    at = ["--url", url]
    assert run("models", "create", "mistaken", *at).code == 0
    assert run("learn", train, "--model", "mistaken", *at).code == 0
    refused = run("models", "undo", "mistaken", "--yes", *at)
    assert (refused.code, "nothing to undo" in refused.err) == (1, True)
    restored = ("jobs", "submit", "restore", "--model", "mistaken", "--set", "to=0-0.0", "--reason", "a mistake")
    assert run(*restored, "--follow", *at).code == 0
    assert run("models", "show", "mistaken", "--json", *at).json["stats"]["learned"] == 0
    undone = run("models", "undo", "mistaken", "--yes", "--reason", "it was none", "--json", *at)
    assert (undone.code, undone.json["state"], undone.json["reason"]) == (0, "succeeded", "it was none")
    assert run("models", "show", "mistaken", "--json", *at).json["stats"]["learned"] == 1500


def test_the_demo_leaves_other_models_alone(run: Run, url: str) -> None:
    before = run("models", "show", "default", "--url", url, "--json").json
    ran = run("demo", "--url", url, "--instances", 3000, "--json")
    assert ran.code == 0
    assert ran.json["instances"] == 3000
    assert ran.json["started"] is False
    assert ran.json["accuracy"]["all"]["R@1"] > 0.05
    assert all(filled["labels"] for filled in ran.json["contexts"])
    assert run("models", "show", "default", "--url", url, "--json").json["digest"] == before["digest"]
    again = run("demo", "--url", url, "-n", 1000)
    assert "1,000 words" in again.out
    assert "because, for" in again.out
    own = run("demo", "--url", "http://127.0.0.1:9", "-n", 500, "--json").json
    assert (own["started"], own["instances"]) == (True, 500)


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("evaluate --train {bad} --test {test}", "bad.jsonl: line 2: not an instance"),
        ("worker", "ABOUND_REDIS_URL"),
        *((f"{one} a.csv --url {{url}}", "a.csv: no such file") for one in ("learn", "classify", "datasets put")),
        ("evaluate --train a.csv --test a.csv", "a.csv: no such file"),
        ("learn {test} --url http://127.0.0.1:9", "no service answers at http://127.0.0.1:9"),
        ("learn {test} --url {url} -m missing", "there is no model 'missing'"),
        ("learn {test} --url {url} -m missing", "`abound models create NAME` creates one"),
        ("labels --url {url} -m defaults", "there is no model 'defaults'; did you mean default?"),
        ("verify -m missing --data-dir {data_dir}", "there is no model 'missing'"),
        ("history show -m missing --data-dir {data_dir}", "missing"),
        ("snapshots list missing --url {url}", "missing"),
        ("models show missing --url {url}", "missing"),
        ("models configure missing --set margin=0.1 --url {url}", "missing"),
        ("models configure default --set margin=-1 --url {url}", "margin"),
        ("models create default --url {url}", "already"),
        ("classify {test} --url {url} -o {bad}/answers.jsonl", "cannot write"),
    ],
)
def test_a_failure_is_a_sentence_and_exit_code_1(command, said, run, url, data_dir, tmp_path, test):
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"text": "a", "labels": ["x"]}\n{"text": 3}\n')
    ran = run(*command.format(bad=bad, test=test, url=url, data_dir=data_dir).split())
    assert (ran.code, said in ran.err, "Traceback" in ran.err) == (1, True, False), ran.err


def test_a_damaged_file_ends_the_stream_behind_its_good_part(run: Run, url: str, tmp_path: Path) -> None:
    run("models", "create", "damaged", "--url", url)
    at = ("--url", url, "-m", "damaged")
    path = write(tmp_path / "some.jsonl", rows(10))
    path.write_bytes(path.read_bytes() + b"{\n" + path.read_bytes())
    ran = run("learn", path, *at)
    assert ran.code == 1
    assert re.search(
        r"some\.jsonl: line 11: not an instance.* \(to continue after it, use --skip 11 or --skip-bad\); "
        r"10 instances done, 0 refused\n$",
        ran.err,
    )
    assert run("models", "show", "damaged", "--url", url, "--json").json["learned"] == 10
    assert run("learn", path, *at, "--skip", "11", "--json").json["learned"] == 10
    ran = run("learn", path, *at, "--skip-bad", "--json")
    assert (ran.code, ran.json["learned"], ran.json["bad"]) == (0, 20, 1)
    assert "skipped some.jsonl: line 11" in ran.err.replace(f"{tmp_path}/", "")
    ran = run("classify", path, *at, "--skip-bad")
    assert (ran.code, len(ran.out.splitlines())) == (0, 20)
    for skip, learned in (("10", 1), ("11", 2)):
        ran = run("learn", path, *at, "--skip-bad", "--skip", skip, "--limit", "2", "--json")
        assert (ran.code, ran.json["learned"]) == (0, learned), "a bad line counts"
    ran = run("classify", path, *at, "--skip", "50")
    assert (ran.code, f"nothing was classified: no instance to classify in {path}" in ran.err) == (1, True)
    path.write_bytes(b"{\n{\n")
    ran = run("learn", path, *at, "--skip-bad", "--yes")
    assert (ran.code, f"no instance to learn in {path}; lines that are not instances: 2" in ran.err) == (1, True)


def test_models(run: Run, url: str) -> None:
    at = ("--url", url)
    settings = ("d_max=7", "analyzer.kind=char", "analyzer.ngrams=1,2")
    given = (word for one in settings for word in ("--set", one))
    config = run("models", "create", "mine", *given, *at, "--json").json["config"]
    assert (config["d_max"], config["analyzer"]["kind"], config["analyzer"]["ngrams"]) == (7, "char", [1, 2])
    assert "did you mean margin?" in run("models", "create", "other", "--set", "margn=0.5", *at).err
    assert run("models", "configure", "mine", "--set", "margin=0.1", *at, "--json").json["config"]["margin"] == 0.1
    assert "mine" in {model["name"] for model in run("models", "list", *at, "--json").json["models"]}
    assert "mine" in run("models", "list", *at).out
    shown = run("models", "show", "mine", *at).out
    assert "margin" in shown
    assert "0.9 to 1.0" in shown.partition("probabilities")[2]
    run("models", "configure", "mine", "--set", "calibrate=false", *at)
    assert "probabilities" not in run("models", "show", "mine", *at).out
    assert run("models", "delete", "mine", "--yes", *at, "--json").json == {"deleted": "mine"}
    assert run("models", "show", "mine", *at).code == 1


def test_snapshots_and_verify(run: Run, url: str, data_dir: Path, train: Path) -> None:
    at, here = ("--url", url), ("--data-dir", data_dir)
    run("models", "create", "kept", *at)
    assert run("snapshots", "list", "kept", *at, "--json").json == {"snapshots": []}
    run("learn", train, *at, "-m", "kept", "--limit", 100)
    ran = until(lambda: (ran := run("snapshots", "create", "kept", *at, "--json")).code == 0 and ran)  # it is starting
    listed = until(lambda: run("snapshots", "list", "kept", *at, "--json").json["snapshots"])
    assert Offset.parse(listed[0]["offset"]) >= Offset.parse(ran.json["offset"])
    assert listed[0]["digest"] in run("snapshots", "list", "kept", *at).out
    run("learn", train, *at, "-m", "kept", "--limit", 50)
    ran = run("verify", "-m", "kept", *here, "--json")
    assert ran.code == 0, ran.err
    (verified,) = ran.json["models"]
    digest = run("models", "show", "kept", *at, "--json").json["digest"]
    assert verified["good"] is True
    assert {verified["from_start"], verified["from_snapshot"], *verified["replicas"].values()} == {digest}
    shown = run("history", "show", "-m", "kept", *here, "--json")
    assert shown.json == {"model": "kept", "history": None, "wrong": []}
    begun = run("history", "begin-anew", "-m", "kept", *here, "--yes")
    assert begun.code == 0, begun.err
    assert listed[0]["offset"] in begun.out
    shown = run("history", "show", "-m", "kept", *here, "--json").json
    assert (shown["history"]["beginning"], shown["wrong"]) == (listed[0]["offset"], [])
    assert f"a base of {shown['history']['bytes']} bytes" in run("history", "show", "-m", "kept", *here).out
    for more, are_served in (((), True), (("--offline",), False)):
        ran = run("verify", *here, *more)
        assert (ran.code, "kept at" in ran.out, "served by" in ran.out) == (0, True, are_served)
