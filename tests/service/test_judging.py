"""Judging a version is divided among as many threads or machines as there are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from core.methods import fitted, rankings, registry
from core.methods.progress import quietly
from service.fitting import judged
from tests.core.methods.toy import made


@pytest.mark.parametrize("method", ["swnn", "ogeec"])
def test_the_newest_are_ranked_in_several_pieces(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    data = made(900, seed=0)
    params = registry.params_of(method, {"dim": 20} if method == "ogeec" else {})
    model = fitted.fit(method, data, params, np.random.default_rng(5), quietly)
    spread, counts = rankings.spread, list[int]()

    def counted(work: Any, pieces: Sequence[tuple[Any, ...]], told: Any = None) -> list[Any]:
        counts.append(len(pieces))
        return spread(work, pieces, told)

    monkeypatch.setattr(rankings, "spread", counted)
    judged(model, data, data, quietly)
    assert max(counts) >= 3
