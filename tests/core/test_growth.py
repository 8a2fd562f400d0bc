"""Growth of arrays: in place, except for the copy that gets huge pages."""

import numpy as np
import pytest

from abound_core import growth
from abound_core.growth import longer
from tests.core.model.test_live_model import learned


@pytest.mark.parametrize(("n", "is_same"), [(40, True), (128, False), (1000, False)])
def test_an_array_keeps_its_elements_and_ends_in_zeros(n, is_same, monkeypatch):
    monkeypatch.setattr(growth, "HUGE_PAGES_BYTES", 1024)
    array = np.arange(1, 31, dtype=np.uint64)
    grown = longer(array, n)
    assert (grown is array) == is_same
    assert grown.tolist() == [*range(1, 31), *[0] * (n - 30)]
    if not is_same:
        assert longer(grown, 2 * n) is grown


@pytest.mark.parametrize("update", ["fsu", "sls"])
def test_a_model_whose_arrays_were_copied_is_the_same(update, monkeypatch):
    stream = [([f"k{i % 700}", f"k{i * 7 % 1000}"], [f"c{i % 90}"]) for i in range(3000)]
    in_place = learned(stream, update=update)
    monkeypatch.setattr(growth, "HUGE_PAGES_BYTES", 4096)
    copied = learned(stream, update=update)
    assert copied.digest() == in_place.digest()
