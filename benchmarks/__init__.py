"""Programs that measure: run by hand, they print ratios."""

from abound.processes.kernel_cache import set_cache_dir

set_cache_dir()  # before numba is imported
