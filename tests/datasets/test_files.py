"""Files by name: formats, compressions, damage, and memory that does not grow with the file."""

import datetime
import gzip
import sys
import tracemalloc
from pathlib import Path

import fsspec
import pyarrow
import pytest
from pyarrow import parquet

from abound.artifacts.zstandard import zstd
from abound.datasets import files
from abound.datasets.files import MAX_LINE_BYTES, read_file, size_of
from abound_core.errors import Malformed, TooLarge
from abound_core.instances.read_options import WITHOUT_OTHERS, ReadOptions

LINES = b'{"text": "a", "labels": ["x"]}\n{"text": "b"}\n'


def compressed(data: bytes, ending: str) -> bytes:
    if ending == ".gz":
        return gzip.compress(data)
    return zstd.compress(data) if ending == ".zst" else data


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
    if ending and form == ".jsonl":  # one compressed file after the other
        path.write_bytes(compressed(data, ending) * 2)
        assert len(list(read_file(str(path)))) == 4


def test_standard_input_is_json_lines(tmp_path, monkeypatch):
    path = tmp_path / "piped"
    path.write_bytes(LINES)
    with path.open() as piped:
        monkeypatch.setattr(sys, "stdin", piped)
        assert [instance.text for instance in read_file("-")] == ["a", "b"]
    assert size_of("-") is None


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
    assert [one.features for one in found] == [
        b'{"n":1.5,"on weekday":"Fri","on month":"1","on day":"2"}',
        None,
        b'{"n":3.0}',
    ]
    assert told
    (one, *_) = read_file(str(tmp_path / name), options=ReadOptions(label=("text",), ignore=("labels", "on")))
    assert (one.labels, one.features) == (("a",), b'{"n":1.5}')
    (one, *_) = read_file(str(tmp_path / name), options=WITHOUT_OTHERS)
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
        list(read_file(str(path), options=ReadOptions(text=("title",))))
    with pytest.raises(TooLarge):
        list(read_file(str(path), plain_bytes=10))
    monkeypatch.setattr(files, "MAX_BATCH_BYTES", 10)
    with pytest.raises(Malformed, match="write batches of up to 10"):
        list(read_file(str(path)))
    monkeypatch.undo()
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(Malformed, match=name):
        list(read_file(str(path)))


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


GZ, ZST = compressed(LINES * 1000, ".gz"), compressed(LINES, ".zst")


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("a.jsonl", LINES + b"{", "line 3: not an instance in JSON"),
        ("a.jsonl", None, "no such file"),
        ("a.jsonl.gz", LINES, "Not a gzipped file"),
        ("a.jsonl.gz", GZ[:-20], "damaged or cut off"),
        ("a.jsonl.zst", LINES, "damaged or cut off"),
        ("a.jsonl.zst", ZST[:-20], "damaged or cut off"),
        ("a.jsonl.zst", ZST + ZST[:6], "damaged or cut off"),  # of the second frame
        ("a.jsonl.zst", compressed(b" " * (MAX_LINE_BYTES + 2), ".zst"), "line 1: longer than"),
        ("a.xlsx", b"", "cannot tell the format"),
        ("a.parquet.gz", b"", "cannot tell the format"),
        ("a.txt.bz2", b"", "cannot tell the format"),
    ],
)
def test_wrong_files_are_named_with_what_is_wrong(tmp_path, name, data, message):
    if data is not None:
        (tmp_path / name).write_bytes(data)
    with pytest.raises(Malformed, match=f"{name}: .*{message}"):
        list(read_file(str(tmp_path / name)))


def test_columnar_files_need_a_library(tmp_path, monkeypatch):
    path = columnar(tmp_path / "a.parquet")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(Malformed, match=r"needs pyarrow: pip install 'abound\[arrow\]'"):
        list(read_file(path))


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
    assert peak < 2**21
