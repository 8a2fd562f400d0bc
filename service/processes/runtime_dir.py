"""The runtime directory: sockets and other files that need not outlive the service.

Mode 0700, named after the user and the real path of the data directory, so that every way of writing one data directory
leads to one runtime directory; and short, because the path of a unix socket is bounded at about 100 bytes.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

from abound.core.errors import CannotStart

LONGEST_PATH = 60
"""Bytes; leaves room for the socket's name within what a socket address holds (104 bytes on macOS)."""


def runtime_dir(data_dir: Path) -> Path:
    """Where the short-lived files for ``data_dir`` belong. Makes nothing; CannotStart when no place is fit."""
    owned = f"{os.getuid()}:{os.path.realpath(data_dir)}".encode(errors="surrogateescape")
    name = f"abound-{os.getuid()}-{hashlib.sha256(owned).hexdigest()[:12]}"
    given = os.environ.get("XDG_RUNTIME_DIR", "")
    for base in (given, tempfile.gettempdir(), "/tmp"):  # noqa: S108 - the directory in it is 0700 and checked
        path = Path(base) / name
        if path.is_absolute() and os.access(base, os.W_OK | os.X_OK) and len(bytes(path)) <= LONGEST_PATH:
            return path
    raise CannotStart("no directory for sockets: set XDG_RUNTIME_DIR or TMPDIR to a writable one with a short path")


def prepare_runtime_dir(path: Path) -> None:
    """Make ``path`` with mode 0700; CannotStart when it is there and somebody else's or open to others."""
    with refusing(f"cannot make the runtime directory {path}"), contextlib.suppress(FileExistsError):
        path.mkdir(mode=0o700)
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise CannotStart(f"{path} must be a directory of this user with mode 0700; remove it and start again")


@contextlib.contextmanager
def refusing(what: str) -> Iterator[None]:
    """Turn an OSError inside into CannotStart with ``what`` in front."""
    try:
        yield
    except OSError as error:
        raise CannotStart(f"{what}: {error.strerror or error}") from error
