"""Where compiled kernels are kept: one directory for each version of the kernels' source.

numba looks only at the file of a kernel itself when it decides whether a compiled one is still good, not at the files
of the kernels that are inlined into it. After an upgrade it could so mix old and new ones, which would disagree on the
layout of memory. A directory named after all of the source makes that impossible.

``place`` must run before numba is imported; every entry point calls it first.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, MutableMapping
from pathlib import Path

from abound.core.errors import CannotStart
from abound.service.processes.runtime_dir import prepare_runtime_dir

VARIABLE = "NUMBA_CACHE_DIR"

SOURCE = Path(__file__).parents[2] / "core" / "kernels"

COMPLETE = "complete"
"""The file that says that every group is compiled."""

KEPT_SECONDS = 30 * 86_400
"""Directories of other versions go when they have not been used for so long."""


def place(environment: MutableMapping[str, str] = os.environ) -> Path:
    """Make the directory for this version of the kernels and name it in ``environment``, unless one is named there.

    It is below the user's cache directory, or below the temporary one where that cannot be written.

    Raises
    ------
    CannotStart
        Neither can be written, or the one in the temporary directory is not ours alone.
    """
    if given := environment.get(VARIABLE):
        return Path(given)
    name = f"kernels-{_digest()}"
    kept = environment.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    path = Path(kept, "abound", name)
    try:
        path.mkdir(parents=True, exist_ok=True)
        if not path.is_absolute() or not os.access(path, os.W_OK | os.X_OK):
            raise PermissionError(path)
    except OSError:
        # What is compiled is also run: the directory must not be one that others can write.
        home = Path(tempfile.gettempdir(), f"abound-{os.getuid()}-cache")
        prepare_runtime_dir(home)
        path = home / name
        try:
            path.mkdir(exist_ok=True)
        except OSError as error:
            raise CannotStart(f"no place for compiled kernels, set {VARIABLE}: {error}") from None
    with contextlib.suppress(OSError):
        os.utime(path)
        _forget_others(path)
    environment[VARIABLE] = str(path)
    return path


def is_complete() -> bool:
    """Return whether all groups are compiled: by these versions of Python and numba, for this processor."""
    try:
        return (place() / COMPLETE).read_text() == _compiled_for()
    except OSError:
        return False


def complete() -> None:
    """Note in the cache that every group of kernels is in it."""
    (place() / COMPLETE).write_text(_compiled_for())


@contextlib.contextmanager
def lock(name: str) -> Iterator[None]:
    """Hold a lock of this name among all processes that use the cache."""
    path = place()
    path.mkdir(parents=True, exist_ok=True)
    with open(path / f"{name}.lock", "wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _compiled_for() -> str:
    """What numba asks before it takes a kernel from the cache: processor, versions, and the files of the kernels."""
    import numba
    from numba.core.registry import cpu_target

    stamps = [(str(file), file.stat().st_mtime, file.stat().st_size) for file in sorted(SOURCE.rglob("*.py"))]
    machine = cpu_target.target_context.codegen().magic_tuple()
    return repr((sys.version, numba.__version__, machine, stamps))


def _digest() -> str:
    digest = hashlib.blake2b(digest_size=8)
    for file in sorted(SOURCE.rglob("*.py")):
        content = file.read_bytes()
        digest.update(f"{file.relative_to(SOURCE)} {len(content)}\n".encode())
        digest.update(content)
    return digest.hexdigest()


def _forget_others(path: Path) -> None:
    oldest = time.time() - KEPT_SECONDS
    for other in path.parent.glob("kernels-*"):
        if other != path and other.stat().st_mtime < oldest:
            shutil.rmtree(other, ignore_errors=True)
