"""An artifact whose arrays do not fit together is refused when it is loaded, and never ends the process."""

import subprocess
import sys

import pytest

from abound_core.errors import Corrupted
from abound_core.methods import registry
from abound_core.methods.fitted import FittedMethod
from tests.core.methods.toy import RAW, SECRET, fit, made

METHODS = sorted(registry.METHODS)


def test_corrupted_arrays_are_refused_or_rank_as_well():
    """One process for all methods: where it ends before its end, the method that is not in its output did it."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.core.methods.corrupting", *METHODS], capture_output=True, text=True, timeout=300
    )
    rows = [line.split() for line in done.stdout.splitlines()]
    assert [row[0] for row in rows] == METHODS, done.stderr[-2000:]
    assert done.returncode == 0, done.stderr[-2000:]
    assert [row for row in rows if int(row[1]) <= 10] == []


@pytest.mark.parametrize("method", METHODS)
def test_a_model_of_other_labels_is_refused(method):
    model = fit(method, made(80, seed=0), **RAW.get(method, {}))
    arrays = model.to_arrays()
    first = int(arrays["labels/lengths"][0])
    fewer = {"labels/lengths": arrays["labels/lengths"][1:], "labels/bytes": arrays["labels/bytes"][first:]}
    with pytest.raises(Corrupted):
        FittedMethod.from_arrays(model.meta(), arrays | fewer, SECRET)
