"""Before any test imports numba: compiled kernels are kept by the version of their source."""

from service.kernel_cache import place

place()
