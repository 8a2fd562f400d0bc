"""The directory of compiled kernels: one for each version of the kernels' source.

To decide whether a compiled kernel is current, numba looks only at that kernel's own file, not at the files of
inlined kernels. After an upgrade it could mix old and new kernels that disagree on the memory layout. A directory
named after a digest of all sources makes that impossible.

``set_cache_dir`` must run before numba is imported, so every entry point calls it first. The scikit-learn classifier
may be imported later than numba; it then changes numba's own setting as well.
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

import abound_core
from abound.processes.runtime_dir import prepare_runtime_dir
from abound_core.errors import CannotStart

VARIABLE = "NUMBA_CACHE_DIR"

SOURCE = Path(abound_core.__path__[0])

# File that marks a cache with all groups of kernels. Each copy of the source has its own compiled kernels in the
# cache, and its own mark.
COMPLETE = f"complete-{hashlib.blake2b(os.fsencode(SOURCE), digest_size=8).hexdigest()}"

KEPT_SECONDS = 30 * 86_400  # for directories of other versions, since their last use


def set_cache_dir(environment: MutableMapping[str, str] = os.environ) -> Path:
    """Create the directory for this version of the kernels and name it in ``environment``.

    A directory that ``environment`` names already is left as it is. Otherwise the directory is below the user's cache
    directory, or below the temporary directory if the former is not writable. Raises CannotStart if neither is
    writable, or the one in the temporary directory is accessible to other users.
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
        # Cached code is executed, so other users must not be able to write to the directory.
        home = Path(tempfile.gettempdir(), f"abound-{os.getuid()}-cache")
        prepare_runtime_dir(home)
        path = home / name
        try:
            path.mkdir(exist_ok=True)
        except OSError as error:
            raise CannotStart(f"no directory for compiled kernels; set {VARIABLE} to a writable one: {error}") from None
    with contextlib.suppress(OSError):
        os.utime(path)
        _delete_unused(path)
    environment[VARIABLE] = str(path)
    return path


def is_complete() -> bool:
    """Return whether all groups are compiled for this processor and these versions of Python and numba."""
    try:
        return (set_cache_dir() / COMPLETE).read_text() == _compiled_for()
    except OSError:
        return False


def mark_complete() -> None:
    (set_cache_dir() / COMPLETE).write_text(_compiled_for())


@contextlib.contextmanager
def lock(name: str) -> Iterator[None]:
    """Hold a named lock among all processes that use the cache."""
    path = set_cache_dir()
    path.mkdir(parents=True, exist_ok=True)
    with open(path / f"{name}.lock", "wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _compiled_for() -> str:
    """Return the inputs of numba's own cache check: processor, versions, and the files of the kernels."""
    import numba
    from numba.core.registry import cpu_target

    stamps = [(str(file), file.stat().st_mtime, file.stat().st_size) for file in _kernel_files()]
    machine = cpu_target.target_context.codegen().magic_tuple()
    return repr((sys.version, numba.__version__, machine, stamps))


def _kernel_files() -> list[Path]:
    return sorted([*SOURCE.rglob("*_kernels.py"), *SOURCE.glob("numba/*.py")])


def _digest() -> str:
    digest = hashlib.blake2b(digest_size=8)
    for file in _kernel_files():
        content = file.read_bytes()
        digest.update(f"{file.relative_to(SOURCE)} {len(content)}\n".encode())
        digest.update(content)
    return digest.hexdigest()


def _delete_unused(path: Path) -> None:
    oldest = time.time() - KEPT_SECONDS
    for other in path.parent.glob("kernels-*"):
        if other != path and other.stat().st_mtime < oldest:
            shutil.rmtree(other, ignore_errors=True)
