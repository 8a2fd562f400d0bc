"""Tests of the service, in a package for each package of the product."""

from abound.processes.kernel_cache import set_cache_dir

set_cache_dir()  # before numba is imported
