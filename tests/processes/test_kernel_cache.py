"""Compiled kernels are kept apart by the version of their source."""

import os
import shutil
import time

import pytest

from abound.processes import kernel_cache
from abound.processes.kernel_cache import KEPT_SECONDS, VARIABLE, set_cache_dir
from abound_core.errors import CannotStart


@pytest.fixture
def source(monkeypatch, tmp_path):
    copy = tmp_path / "source"
    shutil.copytree(kernel_cache.SOURCE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(kernel_cache, "SOURCE", copy)
    return copy


def test_any_change_of_any_kernel_leads_to_another_directory(source, tmp_path):
    environment = {"XDG_CACHE_HOME": str(tmp_path / "cache")}

    def placed():
        return set_cache_dir(dict(environment))

    first = placed()
    assert placed() == first
    assert first.parent == tmp_path / "cache" / "abound"
    file = next(source.glob("index/*_kernels.py"))
    file.write_text(file.read_text() + "\n")
    second = placed()
    file.rename(source / "renamed_kernels.py")
    assert len({first, second, placed()}) == 3


def test_it_is_named_in_the_environment_and_one_that_is_named_is_left(tmp_path):
    environment = {"XDG_CACHE_HOME": str(tmp_path)}
    path = set_cache_dir(environment)
    assert environment[VARIABLE] == str(path)
    assert path.is_dir()
    environment = {VARIABLE: "/elsewhere"}
    assert str(set_cache_dir(environment)) == "/elsewhere"
    assert environment == {VARIABLE: "/elsewhere"}


def test_without_a_home_that_can_be_written_the_temporary_directory_is_used_if_it_is_ours(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    (tmp_path / "file").write_text("")
    environment = {"XDG_CACHE_HOME": str(tmp_path / "file")}
    path = set_cache_dir(dict(environment))
    assert path.parent == tmp_path / f"abound-{os.getuid()}-cache"
    path.parent.chmod(0o777)
    with pytest.raises(CannotStart, match="mode 0700"):
        set_cache_dir(dict(environment))


def test_directories_that_nobody_used_for_long_go(tmp_path):
    environment = {"XDG_CACHE_HOME": str(tmp_path)}
    home = tmp_path / "abound"
    for name, age in (("kernels-old", KEPT_SECONDS + 60), ("kernels-recent", 60), ("other", KEPT_SECONDS + 60)):
        (home / name).mkdir(parents=True)
        os.utime(home / name, (time.time() - age,) * 2)
    path = set_cache_dir(environment)
    assert {entry.name for entry in home.iterdir()} == {"kernels-recent", "other", path.name}
