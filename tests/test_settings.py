"""Settings: where values come from, what is refused, what is shown."""

import os
import subprocess
import sys

import pytest

from abound.jobs.record import KINDS
from abound.settings import Settings, is_loopback, mask_password, unknown_variables
from abound_core.errors import CannotStart
from abound_core.limits import Limits


@pytest.fixture(autouse=True)
def _bare_environment(monkeypatch):
    for variable in list(os.environ):
        if variable.startswith("ABOUND_"):
            monkeypatch.delenv(variable)


def described(settings):
    return {line.name: line for line in settings.describe()}


def test_an_option_beats_the_environment_which_beats_the_default(monkeypatch):
    monkeypatch.setenv("ABOUND_PORT", "9001")
    monkeypatch.setenv("ABOUND_PROCESSES", "3")
    monkeypatch.setenv("ABOUND_HOST", "")
    settings = Settings.load(port=9002, host=None)
    assert (settings.port, settings.processes, settings.host) == (9002, 3, "127.0.0.1")
    lines = described(settings)
    assert lines["port"].origin == "command line"
    assert lines["processes"].origin == "ABOUND_PROCESSES"
    assert lines["host"].origin == "default"


def test_a_secret_is_read_from_a_file_and_never_shown(monkeypatch, tmp_path):
    secret = tmp_path / "url"
    secret.write_text("redis://user:hunter2@store.example:6379/0\n")
    monkeypatch.setenv("ABOUND_REDIS_URL_FILE", str(secret))
    settings = Settings.load()
    assert settings.store_url() == "redis://user:hunter2@store.example:6379/0"
    shown = f"{settings!r} {settings} {settings.model_dump()} {settings.model_dump_json()} {settings.describe()}"
    assert "hunter2" not in shown
    line = described(settings)["redis_url"]
    assert line.value == "redis://user:***@store.example:6379/0"
    assert line.origin == "ABOUND_REDIS_URL_FILE"


def test_a_variable_and_its_file_are_not_both_taken(monkeypatch, tmp_path):
    monkeypatch.setenv("ABOUND_HOST", "127.0.0.1")
    monkeypatch.setenv("ABOUND_HOST_FILE", str(tmp_path / "host"))
    with pytest.raises(CannotStart, match="ABOUND_HOST or ABOUND_HOST_FILE, not both"):
        Settings.load()


@pytest.mark.parametrize("content", [None, "", " \n"])
def test_a_secret_file_that_cannot_be_used_is_named(monkeypatch, tmp_path, content):
    path = tmp_path / "url"
    if content is not None:
        path.write_text(content)
    monkeypatch.setenv("ABOUND_REDIS_URL_FILE", str(path))
    with pytest.raises(CannotStart, match=f"ABOUND_REDIS_URL_FILE: .*{path}"):
        Settings.load()


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("ABOUND_PORT", "70000"),
        ("ABOUND_PORT", "http"),
        ("ABOUND_PROCESSES", "0"),
        ("ABOUND_INSECURE", "perhaps"),
        ("ABOUND_STOP_SECONDS", "nan"),
        ("ABOUND_LOG_LEVEL", "loud"),
        ("ABOUND_DURABILITY", "sometimes"),
        ("ABOUND_WORKER_KINDS", "replace,fits"),
        ("ABOUND_WORKER_KINDS", "none,fit"),
    ],
)
def test_a_wrong_value_is_refused_by_the_name_of_its_variable(monkeypatch, variable, value):
    monkeypatch.setenv(variable, value)
    with pytest.raises(CannotStart, match=f"^{variable}: "):
        Settings.load()


def test_kinds_of_jobs_are_those_that_there_are():
    for kinds in ("none", ",".join(KINDS), ",".join(reversed(KINDS)), *KINDS):
        assert Settings.load(worker_kinds=kinds).worker_kinds == kinds
    with pytest.raises(CannotStart, match=r"^--worker-kinds: "):  # a wrong option by the name of the option
        Settings.load(worker_kinds="")  # a child process would take an empty variable for unset


def test_a_wrong_secret_is_refused_without_being_shown(monkeypatch):
    monkeypatch.setenv("ABOUND_REDIS_URL", "http://user:hunter2@store")
    with pytest.raises(CannotStart, match=r"^ABOUND_REDIS_URL: must begin with redis://") as refusal:
        Settings.load()
    assert "hunter2" not in str(refusal.value)


def test_a_child_gets_equal_settings_through_its_environment(monkeypatch, tmp_path):
    given = Settings.load(
        host="::1", port=1234, data_dir=tmp_path, worker=False, redis_url="redis://u:p@h:1/2", max_staleness=2.5
    )
    for variable, value in given.environment().items():
        monkeypatch.setenv(variable, value)
    assert Settings.load().model_dump() == given.model_dump()
    assert Settings.load().environment() == given.environment()


def test_a_child_takes_what_a_file_gave_its_parent(monkeypatch, tmp_path):
    secret = tmp_path / "url"
    secret.write_text("redis://u:p@h:1/2")
    monkeypatch.setenv("ABOUND_REDIS_URL_FILE", str(secret))
    monkeypatch.setenv("ABOUND_LOG_REQUEST_BYTES", "17")
    given = Settings.load()
    for variable in [name for name in os.environ if name not in (environment := given.child_environment())]:
        monkeypatch.delenv(variable)
    for variable, value in environment.items():
        monkeypatch.setenv(variable, value)
    assert Settings.load().store_url() == "redis://u:p@h:1/2"
    assert environment["ABOUND_LOG_REQUEST_BYTES"] == "17"


def test_a_group_is_read_and_checked_beside_its_code(monkeypatch):
    settings = Settings.load()
    assert settings.group(Limits) == Limits()
    monkeypatch.setenv("ABOUND_LIMITS_MAX_LABELS", "7")
    assert settings.group(Limits) == Limits(max_labels=7)
    assert described(settings)["limits_max_labels"][1:3] == ("7", "ABOUND_LIMITS_MAX_LABELS")
    monkeypatch.setenv("ABOUND_LIMITS_MAX_LABELS", "-7")
    with pytest.raises(CannotStart, match=r"^ABOUND_LIMITS: max_labels must be from 1"):
        settings.group(Limits)
    monkeypatch.setenv("ABOUND_LIMITS_MAX_LABELS", "many")
    with pytest.raises(CannotStart, match=r"^ABOUND_LIMITS_MAX_LABELS: input should be a valid integer"):
        settings.group(Limits)


def test_the_parent_does_not_import_the_learner():
    program = """
import sys, abound.processes.supervisor
abound.processes.supervisor.unknown_variables({"ABOUND_LIMITS_X": "1"})
print([name for name in ("numba", "numpy", "redis", "fastapi") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_unknown_variables_are_told_with_the_nearest_name():
    environment = {
        "ABOUND_PROT": "1",
        "ABOUND_REDIS_URL_FILE": "x",
        "ABOUND_PORT": "1",
        "ABOUND_DATA": "x",
        "ABOUND_LIMITS_MAX_LABELS": "7",
        "ABOUND_LIMITS_MAX_LABEL": "7",
        "HOME": "x",
    }
    assert unknown_variables(environment) == [
        "ABOUND_LIMITS_MAX_LABEL is not a setting and is ignored; the nearest one is ABOUND_LIMITS_MAX_LABELS",
        "ABOUND_PROT is not a setting and is ignored; the nearest one is ABOUND_PORT",
    ]


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        ("127.0.0.1", True),
        ("127.8.0.1", True),
        ("::1", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("10.0.0.1", False),
        ("localhost.example.org", False),
        ("127.0.0.1.example.org", False),
    ],
)
def test_only_loopback_is_served_without_a_key_unless_told(host, loopback):
    assert is_loopback(host) is loopback
    settings = Settings.load(host=host)
    if loopback:
        settings.check_exposure()
    else:
        with pytest.raises(CannotStart, match="--insecure"):
            settings.check_exposure()
    Settings.load(host=host, insecure=True).check_exposure()


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://:secret@h:1/0", "redis://:***@h:1/0"),
        ("redis://u:s@e:c@h/0", "redis://u:***@h/0"),
        ("unix:///run/store.sock?db=1&password=secret", "unix:///run/store.sock?db=1&password=***"),
        ("redis://h", "redis://h"),
    ],
)
def test_a_url_is_shown_without_its_password(url, shown):
    assert mask_password(url) == shown


@pytest.mark.parametrize("sign", ["/", "?", "#"])
def test_a_password_that_would_end_the_address_is_refused_and_not_shown(sign: str) -> None:
    with pytest.raises(CannotStart, match="write %2F, %3F or %23") as refused:
        Settings.load(redis_url=f"redis://:s3cr{sign}et@host:6379")
    assert "s3cr" not in str(refused.value)
