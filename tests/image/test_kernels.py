"""The kernels come compiled: a copy of what cannot be written, in a place that can, is all that a start needs."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from abound_core.model.live_model import warmup

ROOT = Path(__file__).parents[2]
SAVED = "data saved to"
"""What numba says, with NUMBA_DEBUG_CACHE, each time that it has compiled something."""

PROGRAM = "from abound_core.model.live_model import warmup; warmup()"


def started(compiled: Path, place: Path) -> str:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("NUMBA_")}
    environment |= {"COMPILED_KERNELS": str(compiled), "NUMBA_CACHE_DIR": str(place), "NUMBA_DEBUG_CACHE": "1"}
    words = ["sh", str(ROOT / "docker" / "entrypoint.sh"), sys.executable, "-c", PROGRAM]
    done = subprocess.run(words, capture_output=True, text=True, cwd=ROOT, env=environment, timeout=280)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.long
@pytest.mark.timeout(600)  # the first run on a machine compiles
def test_what_was_compiled_is_copied_and_nothing_is_compiled_again(tmp_path):
    warmup()
    compiled, place = Path(os.environ["NUMBA_CACHE_DIR"]), tmp_path / "tmpfs" / "kernels"
    said = started(compiled, place)
    assert "data loaded from" in said
    assert str(place) in said
    assert SAVED not in said
    # A second start finds the place as the first one left it.
    assert SAVED not in started(compiled, place)


def test_a_start_that_ended_while_it_copied_leaves_nothing_that_the_next_one_takes(tmp_path):
    compiled, place, programs = tmp_path / "compiled", tmp_path / "tmp" / "kernels", tmp_path / "programs"
    compiled.mkdir()
    (compiled / "one.nbi").write_text("whole")
    programs.mkdir()
    (programs / "cp").write_text(
        '#!/bin/sh\nfor to do :; done\nprintf wh > "$to/one.nbi"; printf 1 > "$to/gone"; exit 1\n'
    )
    (programs / "cp").chmod(0o755)
    environment = {"PATH": os.environ["PATH"], "COMPILED_KERNELS": str(compiled), "NUMBA_CACHE_DIR": str(place)}
    words = ["sh", str(ROOT / "docker" / "entrypoint.sh"), "true"]
    full = environment | {"PATH": f"{programs}:{environment['PATH']}"}
    assert subprocess.run(words, env=full).returncode != 0
    assert subprocess.run(words, env=environment).returncode == 0
    assert [(one.name, one.read_text()) for one in place.iterdir()] == [("one.nbi", "whole")]
    assert [one.name for one in place.parent.iterdir()] == ["kernels"]


def test_what_is_compiled_after_all_would_show(tmp_path):
    (tmp_path / "small.py").write_text("import numba\n\n\n@numba.njit(cache=True)\ndef same(x):\n    return x\n")
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path / "kernels"), "NUMBA_DEBUG_CACHE": "1"}
    words = [sys.executable, "-c", "import small; small.same(1)"]
    done = subprocess.run(words, capture_output=True, text=True, env=environment, cwd=tmp_path)
    assert SAVED in done.stdout, done.stderr


COMPILES = """
import importlib, pkgutil, typing
import numpy as np
import abound_core.numba
from abound_core.model.live_model import warmup
from abound_core.methods import fitted, registry, warmup as methods_warmup
from abound_core.methods.training.progress import no_progress

kernels = [
    value
    for module in pkgutil.walk_packages(abound_core.numba.__path__, "abound_core.numba.")
    for value in vars(importlib.import_module(module.name)).values()
    if hasattr(value, "signatures")
]

def compiled():
    return {(kernel.py_func.__qualname__, str(signature)) for kernel in kernels for signature in kernel.signatures}

warmup()
methods_warmup.warmup()
before = compiled()
assert before
data = methods_warmup.small_data_set()
for name, method in registry.METHODS.items():
    for field, kind in typing.get_type_hints(method.params).items():
        for value in typing.get_args(kind):
            if not isinstance(value, str):
                continue
            params = registry.params_of(name, {field: value})
            fitted.fit(name, data, params, np.random.default_rng(1), no_progress).model.rank(data.X[:2], 3)
            print("fitted", name, field, value)
            for kernel, signature in sorted(compiled() - before):
                print("compiled", kernel, signature)
"""
"""Fits every method with every choice of every parameter that names one, after what the image is built with."""


@pytest.mark.long
@pytest.mark.timeout(600)
def test_no_choice_of_a_parameter_needs_a_kernel_that_the_image_has_not():
    """Counted by what is compiled or loaded in one process, so whatever lies in the cache of this machine."""
    done = subprocess.run([sys.executable, "-c", COMPILES], capture_output=True, text=True, cwd=ROOT, timeout=580)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert {"fitted one_vs_rest kind perceptron", "fitted ogeec index lsh"} <= set(lines)
    assert [line for line in lines if line.startswith("compiled")] == []
