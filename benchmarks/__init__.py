"""Programs that measure: run by hand, they print ratios."""

from abound.service.processes.kernel_cache import place

place()  # before numba is imported
