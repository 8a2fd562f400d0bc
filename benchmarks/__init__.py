"""Programs that measure: run by hand, they print ratios."""

from service.kernel_cache import place

place()  # before numba is imported
