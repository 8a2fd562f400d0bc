"""Compile every kernel that serving and jobs run, into ``NUMBA_CACHE_DIR`` or the user's cache."""

from __future__ import annotations

from abound.processes.kernel_cache import set_cache_dir


def main() -> None:
    """Compile."""
    set_cache_dir()  # before numba is imported
    from abound.processes.kernel_compiler import load_all

    load_all()


if __name__ == "__main__":
    main()
