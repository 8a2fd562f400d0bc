"""Build the public data sets of the benchmarks, in the layout that ``ABOUND_DATA`` names.

    python -m benchmarks.data --list
    python -m benchmarks.data clinc150 bibtex [--to DIR]

What is downloaded is kept and not downloaded again. docs/data-sets.md describes the sets.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import os
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

from benchmarks import data_sources
from benchmarks.sets import default_folder

GITHUB = "https://github.com/"
MAX_BYTES = 50_000_000
"""Most bytes of a download that is not Git's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSet:
    """A public set; data_sets.toml explains the fields."""

    task: str
    licence: str
    split: str
    load: str
    sizes: dict[str, int]
    git: Sequence[Sequence[str]] = ()
    archive: Sequence[str] = ()
    train_sha256: str | None = None


SETS = {
    name: DataSet(**fields)
    for name, fields in tomllib.loads(Path(__file__).with_name("data_sets.toml").read_text()).items()
}


NOT_THE_SAME = "same sizes as the set that was measured, but another order or text; expect figures that differ a little"


def download(url: str, sha256: str, cache: Path, client: httpx.Client) -> Path:
    """Return the path of the file in the cache; download it if it is not there."""
    path = cache / sha256
    if path.exists():
        return path
    cache.mkdir(parents=True, exist_ok=True)
    part, digest = path.with_suffix(".part"), hashlib.sha256()
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
    try:
        with client.stream("GET", url) as response, Progress(*columns) as progress, part.open("wb") as file:
            response.raise_for_status()
            length = response.headers.get("content-length")
            bar = progress.add_task(url, total=int(length) if length else None)
            for chunk in response.iter_bytes():
                file.write(chunk)
                digest.update(chunk)
                progress.advance(bar, len(chunk))
                if file.tell() > MAX_BYTES:
                    raise SystemExit(f"{url} is over {MAX_BYTES:,} bytes: the source has changed")
    except httpx.HTTPError as error:
        raise SystemExit(f"cannot download {url}: {error}") from None
    if digest.hexdigest() != sha256:
        raise SystemExit(f"{url} has sha256 {digest.hexdigest()}, not {sha256}: the source has changed")
    return part.rename(path)


def check_out(url: str, commit: str, patterns: Sequence[str], cache: Path) -> list[Path]:
    """Return the files that the patterns name, in their order; without patterns, the folder of the repository.

    The id of the commit is the checksum. Git downloads only the files that are wanted, of one commit, or the history
    without any file.
    """
    folder = cache / f"{url.rsplit('/', 1)[-1]}-{commit[:12]}-{hashlib.sha256(repr(patterns).encode()).hexdigest()[:6]}"
    if not (folder / "complete").exists():
        folder.mkdir(parents=True, exist_ok=True)
        git(folder, "init", "--quiet")
        git(folder, "config", "remote.origin.url", url)
        git(folder, "config", "remote.origin.promisor", "true")
        depth = ["--depth=1"] if patterns else []
        git(folder, "fetch", "--progress", "--filter=blob:none", *depth, "origin", commit)
        if patterns:
            git(folder, "sparse-checkout", "set", "--no-cone", *(f"/{pattern}" for pattern in patterns))
            git(folder, "checkout", "--progress", "--detach", commit)
        (folder / "complete").touch()
    return [path for pattern in patterns for path in sorted(folder.glob(pattern))] or [folder]


def git(folder: Path, *arguments: str) -> None:
    try:
        subprocess.run(["git", *arguments], cwd=folder, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise SystemExit(
            f"git {arguments[0]} failed in {folder} ({type(error).__name__}); run it again to go on"
        ) from None


def build(name: str, to: Path, cache: Path, client: httpx.Client) -> bool:
    """Build a set. Return whether its training part is the one of the published results, byte for byte.

    Nothing is written if a file has another size than it must have.
    """
    wanted = SETS[name]
    paths: list[Path] = []
    if wanted.archive:
        url, sha256 = wanted.archive
        paths.append(download(url, sha256, cache, client))
    for repository, commit, *patterns in wanted.git:
        paths += check_out(GITHUB + repository, commit, patterns, cache)
    files: data_sources.Files = getattr(data_sources, wanted.load)(paths)
    for file, size in wanted.sizes.items():
        has_head = file in ("train.txt", "test.txt")
        if len(files[file]) - has_head != size:
            raise SystemExit(f"{name}: {file} has {len(files[file]) - has_head:,} lines, not {size:,}")
    folder = to / name
    folder.mkdir(parents=True, exist_ok=True)
    contents = {file: "".join(f"{line}\n" for line in lines).encode() for file, lines in files.items()}
    for file, content in contents.items():
        part = folder / f"{file}.part"
        part.write_bytes(gzip.compress(content, 6, mtime=0))
        part.rename(folder / f"{file}.gz")
    [train] = [content for file, content in contents.items() if file.startswith("train.")]
    return hashlib.sha256(train).hexdigest() == wanted.train_sha256


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.data", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="sets to build; see --list")
    parser.add_argument("--list", action="store_true", help="print the sets and their tasks")
    parser.add_argument("--to", type=Path, help="folder to build into; without it ABOUND_DATA, else a temporary folder")
    parser.add_argument("--cache", type=Path, default=default_folder() / "downloads", help="keep downloads here")
    options = parser.parse_args()
    if options.list or not options.names:
        for name, one in SETS.items():
            print(f"{name:<20}{one.task}")
        return 0
    if unknown := [name for name in options.names if name not in SETS]:
        parser.error(f"there is no set {unknown[0]}; --list prints the sets")
    to = options.to or Path(os.environ.get("ABOUND_DATA") or default_folder() / "data")
    with httpx.Client(follow_redirects=True, timeout=60) as client:
        for name in options.names:
            same = build(name, to, options.cache, client)
            print(f"{name}: built, " + ("byte for byte the set that was measured" if same else NOT_THE_SAME))
    print(f"export ABOUND_DATA={to.resolve()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
