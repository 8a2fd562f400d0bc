"""Compile every kernel that serving and jobs run, into ``NUMBA_CACHE_DIR``: while the image is built."""

from __future__ import annotations

from core.methods import warming
from service.kernels import load_all


def main() -> None:
    """Compile."""
    load_all()
    warming.warmup()


if __name__ == "__main__":
    main()
