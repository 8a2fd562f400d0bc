"""The runtime directory: sockets and other files that need not outlive the service.

It has mode 0700. Its name contains the user and a digest of the real path of the data directory, so that all
spellings of that path lead to the same runtime directory. The name is short, because the path of a unix socket is
limited to about 100 bytes.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

from abound_core.errors import CannotStart

LONGEST_PATH = 60  # bytes; leaves space for the socket's name in an address (104 bytes on macOS)


def runtime_dir(data_dir: Path) -> Path:
    """Return the runtime directory of ``data_dir``, without creating it."""
    owned = f"{os.getuid()}:{os.path.realpath(data_dir)}".encode(errors="surrogateescape")
    name = f"abound-{os.getuid()}-{hashlib.sha256(owned).hexdigest()[:12]}"
    given = os.environ.get("XDG_RUNTIME_DIR", "")
    for base in (given, tempfile.gettempdir(), "/tmp"):  # noqa: S108 - the directory in it is 0700 and checked
        path = Path(base) / name
        if path.is_absolute() and os.access(base, os.W_OK | os.X_OK) and len(bytes(path)) <= LONGEST_PATH:
            return path
    raise CannotStart("no directory for sockets: set XDG_RUNTIME_DIR or TMPDIR to a writable one with a short path")


def prepare_runtime_dir(path: Path) -> None:
    """Create ``path`` with mode 0700; raise CannotStart if it exists and other users own it or can access it."""
    with cannot_start_on_os_error(f"cannot make the runtime directory {path}"), contextlib.suppress(FileExistsError):
        path.mkdir(mode=0o700)
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise CannotStart(f"{path} must be a directory of this user with mode 0700; remove it and start again")


@contextlib.contextmanager
def cannot_start_on_os_error(what: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise CannotStart(f"{what}: {error.strerror or error}") from error
