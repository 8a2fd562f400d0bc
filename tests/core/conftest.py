"""The first call of a kernel compiles it, so no example has a deadline."""

from hypothesis import settings

settings.register_profile("kernels", deadline=None)
settings.load_profile("kernels")
