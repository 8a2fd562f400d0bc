"""Memory of the machine: total and free bytes, the default bound for models, and the limit of a process."""

from __future__ import annotations

import resource
from pathlib import Path

_MEMINFO = Path("/proc/meminfo")
_GROUPS = (
    (Path("/sys/fs/cgroup"), "memory.max", "memory.current", "inactive_file"),
    (Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)
"""Directory of the control group, its files of the limit and the usage, and the field of ``memory.stat`` with the
bytes of cached files that the kernel reclaims first."""

SHARE = 0.8  # of the machine's memory, for the models of all processes, if no bound is set

WORKER_SHARES = 4
"""Memory of a worker, in multiples of the model.

Making a snapshot takes twice the model, and so does the process that evaluates challengers: each builds the model
once more, beside the parts of a snapshot.
"""

STORE_SHARES = 3
"""Memory of the store, in multiples of the model: three snapshots at most, each up to nine tenths of the model, and
log.
"""


def default_models_memory(processes: int, *, worker: bool = False, store: bool = False) -> int | None:
    """Return the default bound in bytes for all models of one replica; None if the total memory is unknown.

    Each of the ``processes`` replicas on this machine has all models. ``worker``, ``store``: run on this machine too.
    """
    whole = total_memory()
    if whole is None:
        return None
    return int(SHARE * whole / (processes + WORKER_SHARES * worker + STORE_SHARES * store))


def total_memory() -> int | None:
    """Return the bytes of the machine, or of its control group; None if the system does not report them."""
    whole = []
    if _MEMINFO.exists():
        fields = dict(line.split(":", 1) for line in _MEMINFO.read_text().splitlines())
        whole.append(int(fields["MemTotal"].split()[0]) * 1024)
    whole += [limit for group, most, *_ in _GROUPS if (limit := _limit(group / most)) is not None]
    return min(whole) if whole else None


def free_memory() -> int | None:
    """Return the bytes that can be allocated without swapping; None if the system does not report them.

    In a control group, the cache of files not used lately counts as free, as in the working set of Kubernetes.
    """
    left = []
    if _MEMINFO.exists():
        fields = dict(line.split(":", 1) for line in _MEMINFO.read_text().splitlines())
        left.append(int(fields["MemAvailable"].split()[0]) * 1024)
    for group, most, used, cache in _GROUPS:
        if (limit := _limit(group / most)) is not None and (group / used).exists():
            stat = group / "memory.stat"
            fields = dict(line.split() for line in stat.read_text().splitlines()) if stat.exists() else {}
            left.append(limit - max(0, int((group / used).read_text()) - int(fields.get(cache, 0))))
    return max(0, min(left)) if left else None


def _limit(path: Path) -> int | None:
    return int(text) if path.exists() and (text := path.read_text().strip()).isdigit() else None


def limit_memory(room: int | None) -> None:
    """Limit this process to ``room`` bytes of private memory more than it has; None: to the hard limit.

    Beyond it, Python and numpy raise MemoryError. ``RLIMIT_DATA`` counts the heap and private anonymous mappings, so
    also the arrays and the stacks of threads, but no mapped files. Does nothing on systems other than Linux.
    """
    statm = Path("/proc/self/statm")
    if statm.exists():
        hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
        soft = hard
        if room is not None:
            soft = room + int(statm.read_text().split()[5]) * resource.getpagesize()
            soft = soft if hard == resource.RLIM_INFINITY else min(soft, hard)
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def format_bytes(n: int) -> str:
    size = float(n)
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "bytes" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"
