"""How much random tests try: a quarter in ``make test``, all of it in ``make long``."""

from hypothesis import settings

QUICK, THOROUGH = "quick", "thorough"

# The first call of a kernel compiles it, and the machine may be busy: no example has a deadline.
settings.register_profile(QUICK, max_examples=25, deadline=None)
settings.register_profile(THOROUGH, max_examples=100, deadline=None)


def examples(thorough: int) -> int:
    """Return how many examples a test tries that tries so many in ``make long``."""
    return max(5, thorough * settings().max_examples // 100)
