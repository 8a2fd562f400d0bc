"""Files by name: formats, compressions, damage, and memory that does not grow with the file."""

import datetime
import gzip
import sys
import tracemalloc
from pathlib import Path

import fsspec
import pyarrow
import pytest
import zstandard
from pyarrow import parquet

from abound.datasets import files
from abound.datasets.files import MAX_LINE_BYTES, check_columns, format_of, read_file, size_of
from abound_core.errors import Malformed, TooLarge
from abound_core.instances.tables import WITHOUT_OTHERS, TableColumns

LINES = b'{"text": "a", "labels": ["x"]}\n{"text": "b"}\n'


def compressed(data: bytes, ending: str) -> bytes:
    if ending == ".gz":
        return gzip.compress(data)
    return zstandard.ZstdCompressor().compress(data) if ending == ".zst" else data


@pytest.mark.parametrize("ending", ["", ".gz", ".zst"])
@pytest.mark.parametrize(
    ("form", "data"),
    [
        (".jsonl", LINES),
        (".svm", b"x 1:1\n 2:1\n"),
        (".txt", b"2 3 3\n1 1:1\n 2:1\n"),
        (".csv", b"text,label\na,x\nb,\n"),
        (".tsv", b"text\tlabel\na\tx\nb\t\n"),
    ],
)
def test_every_format_and_compression(tmp_path, form, data, ending):
    path = tmp_path / f"some.name{form}{ending}"
    path.write_bytes(compressed(data, ending))
    assert [len(instance.labels) for instance in read_file(str(path))] == [1, 0]
    assert size_of(str(path)) == path.stat().st_size


def test_zstandard_frames_one_after_the_other(tmp_path):
    path = tmp_path / "a.jsonl.zst"
    path.write_bytes(compressed(LINES, ".zst") * 2)
    assert len(list(read_file(str(path)))) == 4


def test_standard_input_is_json_lines(tmp_path, monkeypatch):
    path = tmp_path / "piped"
    path.write_bytes(LINES)
    with path.open() as piped:
        monkeypatch.setattr(sys, "stdin", piped)
        assert [instance.text for instance in read_file("-")] == ["a", "b"]
    assert size_of("-") is None


@pytest.mark.parametrize("name", ["a.xlsx", "txt", "a.parquet.gz", "a.gz", "a.txt.bz2", "a.jsonl.zst.gz"])
def test_unknown_formats(name):
    with pytest.raises(Malformed, match="cannot tell the format"):
        format_of(name)


TABLE = {
    "text": ["a", None, "c"],
    "labels": [["x", "y"], [], ["z"]],
    "n": [1.5, float("nan"), 3.0],
    "on": [datetime.date(2026, 1, 2), None, None],
}


def columnar(path: Path, wrong: bool = False) -> str:
    table = pyarrow.table(TABLE | ({"wrong": [{"a": 1}] * 3} if wrong else {}))
    if path.suffix == ".parquet":
        parquet.write_table(table, path, row_group_size=2)
    else:
        opened = pyarrow.ipc.new_stream if path.stem == "stream" else pyarrow.ipc.new_file
        with opened(str(path), table.schema) as out:
            out.write_table(table, max_chunksize=2)
    return str(path)


@pytest.mark.parametrize("name", ["a.parquet", "file.arrow", "stream.arrow"])
def test_columnar_files(tmp_path, name):
    told: list[int] = []
    found = list(read_file(columnar(tmp_path / name), told.append))
    assert [(one.text, one.labels, one.line) for one in found] == [("a", ("x", "y"), 1), ("", (), 2), ("c", ("z",), 3)]
    assert [one.features for one in found] == [b'{"n":1.5,"on":"2026-01-02"}', None, b'{"n":3.0}']
    assert told
    (one, *_) = read_file(str(tmp_path / name), columns=TableColumns(label="text", ignore=("labels", "on")))
    assert (one.labels, one.features) == (("a",), b'{"n":1.5}')
    (one, *_) = read_file(str(tmp_path / name), columns=WITHOUT_OTHERS)
    assert (one.text, one.labels, one.features) == ("a", ("x", "y"), None)


@pytest.mark.parametrize("name", ["a.parquet", "a.arrow"])
def test_wrong_columnar_files(tmp_path, name, monkeypatch):
    path = tmp_path / name
    columnar(path, wrong=True)
    with pytest.raises(Malformed, match=f"{name}: line 1: wrong: a dict"):
        list(read_file(str(path)))
    bad: list[Malformed] = []
    assert list(read_file(str(path), on_bad=bad.append)) == []
    assert len(bad) == 3
    with pytest.raises(Malformed, match=f"{name}: there is no column 'title'"):
        list(read_file(str(path), columns=TableColumns(text=("title",))))
    with pytest.raises(TooLarge):
        list(read_file(str(path), plain_bytes=10))
    monkeypatch.setattr(files, "MAX_BATCH_BYTES", 10)
    with pytest.raises(Malformed, match="write batches of up to 10"):
        list(read_file(str(path)))
    monkeypatch.undo()
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(Malformed, match=name):
        list(read_file(str(path)))


def test_columnar_files_need_a_library(tmp_path, monkeypatch):
    path = columnar(tmp_path / "a.parquet")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(Malformed, match=r"needs pyarrow: pip install 'abound\[arrow\]'"):
        list(read_file(path))


def test_files_of_other_file_systems():
    memory = fsspec.filesystem("memory")
    memory.pipe("/tables/a.csv.gz", gzip.compress(b"text,label\na,x\n"))
    memory.pipe("/tables/a.parquet", b"")
    assert [one.labels for one in read_file("memory://tables/a.csv.gz")] == [("x",)]
    assert size_of("memory://tables/a.csv.gz") == memory.size("/tables/a.csv.gz")
    assert size_of("memory://tables/none.csv") is None
    for name in ("memory://tables/none.csv: no such file", "memory://tables/a.parquet", "nosuch://a.csv"):
        with pytest.raises(Malformed, match=name):
            list(read_file(name.removesuffix(": no such file")))


def test_only_tables_have_columns():
    check_columns("a.csv", TableColumns(label="x"))
    check_columns("a.jsonl", TableColumns(ignore=("id",)))
    with pytest.raises(Malformed, match=r"a\.txt: only CSV"):
        check_columns("a.txt", TableColumns(ignore=("id",)))
    with pytest.raises(Malformed, match="standard input: only CSV"):
        check_columns("-", TableColumns(label="x"))


def test_errors_name_file_and_line(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(LINES + b"{")
    with pytest.raises(Malformed, match=r"a\.jsonl: line 3: not an instance in JSON"):
        list(read_file(str(path)))


def test_a_missing_file(tmp_path):
    with pytest.raises(Malformed, match=r"none\.jsonl: no such file"):
        list(read_file(str(tmp_path / "none.jsonl")))


@pytest.mark.parametrize("ending", [".gz", ".zst"])
def test_no_compressed_file_at_all(tmp_path, ending):
    path = tmp_path / f"a.jsonl{ending}"
    path.write_bytes(LINES)
    with pytest.raises(Malformed, match=r"a\.jsonl"):
        list(read_file(str(path)))


def test_a_gzip_file_cut_off(tmp_path):
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip.compress(LINES * 1000)[:-20])
    with pytest.raises(Malformed, match="damaged or cut off"):
        list(read_file(str(path)))


def test_a_zstandard_file_cut_off(tmp_path):
    path = tmp_path / "a.jsonl.zst"
    path.write_bytes(compressed(LINES * 1000, ".zst")[:-20])
    with pytest.raises(Malformed, match="damaged or cut off"):
        list(read_file(str(path)))


def test_a_zstandard_file_that_lacks_its_second_frame_s_end(tmp_path):
    path = tmp_path / "a.jsonl.zst"
    path.write_bytes(compressed(LINES, ".zst") + compressed(LINES, ".zst")[:6])
    with pytest.raises(Malformed, match="damaged or cut off"):
        list(read_file(str(path)))


def test_memory_is_bounded(tmp_path):
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


def test_an_endless_line_is_refused(tmp_path):
    path = tmp_path / "a.jsonl.zst"
    path.write_bytes(compressed(b" " * (MAX_LINE_BYTES + 2), ".zst"))
    with pytest.raises(Malformed, match="line 1: longer than"):
        list(read_file(str(path)))
