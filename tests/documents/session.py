"""A service and a shell for the commands of the documents."""

import gzip
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from abound.client.local_service import own_service
from tests.documents.blocks import ROOT, Block, Command
from tests.support.job_worker import until_worker

MARK = "@@@ the next command"
PATIENCE = 300


class Shell:
    """Runs the commands of a block in one shell, with the URL of a service in the place of port 8000."""

    def __init__(self, directory: Path, url: str, data_dir: Path) -> None:
        self._directory, self.url = directory, url
        programs = make_programs(directory)
        kept = {name: value for name, value in os.environ.items() if not name.startswith("ABOUND_")}
        self._environment = kept | {
            "PATH": f"{programs}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "ABOUND_URL": url,
            "ABOUND_DATA_DIR": str(data_dir),
            "COLUMNS": "120",
        }
        _make_data(directory)

    def run(self, block: Block) -> list[tuple[Command, str, str]]:
        """What each command printed, and what it complained; AssertionError when one fails."""
        words = ["set -o pipefail", f"cd {self._directory}"]
        for command in block.commands:
            words += [self._here(command.text), f'code=$?; echo "{MARK} $code"; echo "{MARK} $code" >&2']
        done = subprocess.run(
            ["bash", "-c", "\n".join(words)],
            capture_output=True,
            text=True,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            timeout=PATIENCE,
        )
        printed = re.split(rf"{MARK} (\d+)\n", done.stdout)
        complained = re.split(rf"{MARK} \d+\n", done.stderr)
        codes = [int(code) for code in printed[1::2]]
        results = []
        for command, code, out, err in zip(block.commands, codes, printed[::2], complained, strict=False):
            assert code == 0, f"{block}: {command.text}\nexit code {code}\n{out}{err}"
            results.append((command, out.replace(self._address, "localhost:8000"), err))
        assert len(results) == len(block.commands), done.stderr
        return results

    @property
    def _address(self) -> str:
        return self.url.removeprefix("http://")

    def _here(self, text: str) -> str:
        """A command as it is typed here."""
        text = re.sub(r"(localhost|127\.0\.0\.1):8000", self._address, text)
        return text.replace(". .venv/bin/activate", "true").replace(".venv/bin/", "")


def make_programs(directory: Path) -> Path:
    """A folder with the programs of this environment that the documents name, to be found before all others."""
    programs = directory / "bin"
    programs.mkdir()
    for name, words in {"abound": "-m abound", "dask": "-m dask", "python": ""}.items():
        (programs / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" {words} "$@"\n')
        (programs / name).chmod(0o755)
    return programs


@contextmanager
def session(directory: Path) -> Iterator[Shell]:
    """A shell beside a service with a worker, both ended at last."""
    data_dir = directory / "data"
    with own_service(data_dir=data_dir, worker=True) as url:
        until_worker(url)
        yield Shell(directory, url, data_dir)


def _make_data(directory: Path) -> None:
    """The files that the documents name."""
    (directory / "examples").symlink_to(ROOT / "examples")
    words = {"grain": "wheat corn barley", "crude": "oil barrel opec", "coffee": "beans roast brazil"}
    for name, n in (("train", 300), ("test", 60)):
        with gzip.open(directory / f"{name}.jsonl.gz", "wt") as file:
            for i in range(n):
                label = list(words)[i % 3]
                text = f"{words[label].split()[i // 3 % 3]} and {words[label].split()[(i // 3 + 1) % 3]} number {i % 7}"
                file.write(json.dumps({"text": text, "labels": [label]}) + "\n")
