"""How many classes a model takes: ``max_classes``, and what its index can hold."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from core.config import ModelConfig
from core.errors import Conflict
from core.index import Index
from core.index_params import IndexParams
from core.live import LiveModel
from service.intake import NewClasses


def model(live: LiveModel) -> Any:
    return cast("Any", SimpleNamespace(live=live))


@pytest.mark.parametrize("update", ["fsu", "sls"])
def test_an_index_learns_the_last_class_that_it_says_it_can_hold(update: str) -> None:
    index = Index(IndexParams.of(ModelConfig(update=cast("Any", update))))
    most = index.most_classes or 2**24
    ids, values = np.zeros(1, np.int32), np.ones(1, np.float32)
    for class_id, connections in ((most - 1, 1), (most, 1 if index.most_classes is None else 0)):
        before = index.n_connections
        index.learn(ids, values, np.array([class_id], np.int32))
        assert index.n_connections - before == connections


@pytest.mark.parametrize(("update", "max_classes", "refused"), [("sls", None, 4), ("sls", 3, 3), ("fsu", None, None)])
def test_a_class_that_the_index_could_not_learn_is_refused(
    update: str, max_classes: int | None, refused: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("core.kernels.postings.CLASS_MASK", np.uint64(3))  # read where it is asked, compiled elsewhere
    new = NewClasses(model(LiveModel(ModelConfig(update=cast("Any", update), max_classes=max_classes), (1, 2))))
    for n, label in enumerate("abcdefg"):
        if n == refused:
            with pytest.raises(Conflict, match=f"of at most {refused}: '{label}' is new"):
                new.check([label])
            break
        new.check([label])
    else:
        assert refused is None
