"""Free memory in a control group."""

from __future__ import annotations

import pytest

from abound.processes import memory

MB = 2**20


@pytest.mark.parametrize("version", [0, 1], ids=["v2", "v1"])
def test_cached_files_of_a_control_group_are_free_memory(tmp_path, monkeypatch, version):
    _, most, used, cache = memory._GROUPS[version]
    monkeypatch.setattr(memory, "_GROUPS", ((tmp_path, most, used, cache),))
    monkeypatch.setattr(memory, "_MEMINFO", tmp_path / "absent")
    (tmp_path / most).write_text(f"{100 * MB}\n")
    (tmp_path / used).write_text(f"{95 * MB}\n")
    assert memory.free_memory() == 5 * MB
    (tmp_path / "memory.stat").write_text(f"anon {20 * MB}\n{cache} {70 * MB}\nactive_file {5 * MB}\n")
    assert memory.free_memory() == 75 * MB
    (tmp_path / used).write_text(f"{60 * MB}\n")  # read before memory.stat, which may have grown
    assert memory.free_memory() == 100 * MB
    (tmp_path / most).write_text("max\n")
    assert memory.free_memory() is None
