"""How much random tests try.

``make test`` tries a quarter, the same examples in every run: it fails for what was changed and for nothing else.
``make long`` tries all, other examples each time.
"""

from hypothesis import settings

QUICK, THOROUGH = "quick", "thorough"

# The first call of a kernel compiles it, and the machine may be busy: no example has a deadline.
settings.register_profile(QUICK, max_examples=25, deadline=None, derandomize=True)
settings.register_profile(THOROUGH, max_examples=100, deadline=None)


def examples(thorough: int) -> int:
    """Return how many examples a test tries that tries so many in ``make long``."""
    return max(5, thorough * settings().max_examples // 100)
