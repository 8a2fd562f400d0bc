"""How much memory a fit may take: what the machine and its control group have left; and the refusal of more."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from abound.core.errors import NeedsMemory

_MEMINFO = Path("/proc/meminfo")
_GROUPS = (
    (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")),
    (Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"), Path("/sys/fs/cgroup/memory/memory.usage_in_bytes")),
)

SHARE = 0.8
"""Of the machine's memory that everything made of the models may take where nothing else is said."""

WORKER_SHARES = 4
"""What a worker takes, in times the model: twice to make a snapshot, and twice in the process that follows contests.

Each of them builds the model once more, beside the parts of a snapshot.
"""

STORE_SHARES = 3
"""What the store takes, likewise: three snapshots at most, each up to nine tenths of the model, and log."""


def memory_of_models(processes: int, *, worker: bool = False, store: bool = False) -> int | None:
    """Bytes that all models of one replica may take where no bound is set; None where the system does not tell.

    Parameters
    ----------
    processes : int
        Replicas on this machine; each has all models.
    worker, store : bool
        A worker, the store, run on this machine too.
    """
    whole = whole_memory()
    if whole is None:
        return None
    return int(SHARE * whole / (processes + WORKER_SHARES * worker + STORE_SHARES * store))


def whole_memory() -> int | None:
    """Bytes that the machine has, or its control group may take; None where the system does not tell."""
    whole = []
    if _MEMINFO.exists():
        fields = dict(line.split(":", 1) for line in _MEMINFO.read_text().splitlines())
        whole.append(int(fields["MemTotal"].split()[0]) * 1024)
    whole += [int(text) for most, _ in _GROUPS if most.exists() and (text := most.read_text().strip()).isdigit()]
    return min(whole) if whole else None


def free_memory() -> int | None:
    """Bytes that can still be taken without swapping; None where the system does not tell."""
    left = []
    if _MEMINFO.exists():
        fields = dict(line.split(":", 1) for line in _MEMINFO.read_text().splitlines())
        left.append(int(fields["MemAvailable"].split()[0]) * 1024)
    for most, used in _GROUPS:
        if most.exists() and used.exists() and most.read_text().strip().isdigit():
            left.append(int(most.read_text()) - int(used.read_text()))
    return max(0, min(left)) if left else None


def refuse_beyond(name: str, parts: Mapping[str, int], about: str, free: int, whose: str) -> None:
    """NeedsMemory when ``parts`` are more than ``free`` bytes in all, with the arithmetic.

    Parameters
    ----------
    name : str
        Of what needs it.
    about : str
        The sizes that the arithmetic is of.
    whose : str
        Whose memory it is.
    """
    needed = sum(parts.values())
    if needed > free:
        said = " + ".join(f"{what} {in_bytes(n)}" for what, n in parts.items())
        raise NeedsMemory(
            f"{name} would need {in_bytes(needed)} of memory ({said}; for {about}), and {whose} has {in_bytes(free)}"
        )


def in_bytes(n: int) -> str:
    """``1.5 GiB``."""
    size = float(n)
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "bytes" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"
