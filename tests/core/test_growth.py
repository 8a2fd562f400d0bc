"""Growth of arrays: in place, except for the copy that gets huge pages."""

import numpy as np
import pytest

from abound_core import growth
from abound_core.growth import longer


@pytest.mark.parametrize(("n", "is_same"), [(40, True), (128, False), (1000, False)])
def test_an_array_keeps_its_elements_and_ends_in_zeros(n, is_same, monkeypatch):
    monkeypatch.setattr(growth, "HUGE_PAGES_BYTES", 1024)
    array = np.arange(1, 31, dtype=np.uint64)
    grown = longer(array, n)
    assert (grown is array) == is_same
    assert grown.tolist() == [*range(1, 31), *[0] * (n - 30)]
    if not is_same:
        assert longer(grown, 2 * n) is grown
