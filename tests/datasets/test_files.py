"""Files by name: formats, compressions, damage, and memory that does not grow with the file."""

from __future__ import annotations

import gzip
import sys
import tracemalloc
from pathlib import Path

import pytest
import zstandard

from abound.core.errors import Malformed
from abound.service.datasets.files import MAX_LINE_BYTES, format_of, read_file, size_of

LINES = b'{"text": "a", "labels": ["x"]}\n{"text": "b"}\n'


def compressed(data: bytes, ending: str) -> bytes:
    if ending == ".gz":
        return gzip.compress(data)
    return zstandard.ZstdCompressor().compress(data) if ending == ".zst" else data


@pytest.mark.parametrize("ending", ["", ".gz", ".zst"])
@pytest.mark.parametrize(
    ("form", "data"),
    [(".jsonl", LINES), (".svm", b"x 1:1\n 2:1\n"), (".txt", b"2 3 3\n1 1:1\n 2:1\n")],
)
def test_every_format_and_compression(tmp_path: Path, form: str, data: bytes, ending: str) -> None:
    path = tmp_path / f"some.name{form}{ending}"
    path.write_bytes(compressed(data, ending))
    assert [len(instance.labels) for instance in read_file(str(path))] == [1, 0]
    assert size_of(str(path)) == path.stat().st_size


def test_zstandard_frames_one_after_the_other(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl.zst"
    path.write_bytes(compressed(LINES, ".zst") * 2)
    assert len(list(read_file(str(path)))) == 4


def test_standard_input_is_json_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "piped"
    path.write_bytes(LINES)
    with path.open() as piped:
        monkeypatch.setattr(sys, "stdin", piped)
        assert [instance.text for instance in read_file("-")] == ["a", "b"]
    assert size_of("-") is None


@pytest.mark.parametrize("name", ["a.csv", "txt", "a.gz", "a.txt.bz2", "a.jsonl.zst.gz"])
def test_unknown_formats(name: str) -> None:
    with pytest.raises(Malformed, match="cannot tell the format"):
        format_of(name)


def test_errors_name_file_and_line(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(LINES + b"{")
    with pytest.raises(Malformed, match=r"a\.jsonl: line 3: not an instance in JSON"):
        list(read_file(str(path)))


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(Malformed, match=r"none\.jsonl: No such file"):
        list(read_file(str(tmp_path / "none.jsonl")))


@pytest.mark.parametrize("ending", [".gz", ".zst"])
def test_no_compressed_file_at_all(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"a.jsonl{ending}"
    path.write_bytes(LINES)
    with pytest.raises(Malformed, match=r"a\.jsonl"):
        list(read_file(str(path)))


def test_a_gzip_file_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip.compress(LINES * 1000)[:-20])
    with pytest.raises(Malformed, match="damaged or cut off"):
        list(read_file(str(path)))


def test_a_zstandard_file_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl.zst"
    path.write_bytes(compressed(LINES * 1000, ".zst")[:-20])
    with pytest.raises(Malformed, match="damaged or cut off"):
        list(read_file(str(path)))


def test_a_zstandard_file_that_lacks_its_second_frame_s_end(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl.zst"
    path.write_bytes(compressed(LINES, ".zst") + compressed(LINES, ".zst")[:6])
    with pytest.raises(Malformed, match="damaged or cut off"):
        list(read_file(str(path)))


def test_memory_is_bounded(tmp_path: Path) -> None:
    path = tmp_path / "large.jsonl.gz"
    with gzip.open(path, "wb", compresslevel=1) as file:
        for _ in range(20):
            file.write(LINES * 1000)
    tracemalloc.start()
    try:
        count = sum(1 for _ in read_file(str(path)))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert count == 40_000
    assert peak < 2**20


def test_an_endless_line_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl.zst"
    path.write_bytes(compressed(b" " * (MAX_LINE_BYTES + 2), ".zst"))
    with pytest.raises(Malformed, match="line 1: longer than"):
        list(read_file(str(path)))
