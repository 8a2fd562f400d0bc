from __future__ import annotations

import msgspec
import pytest

from abound.core.config import ModelConfig
from abound.core.errors import Corrupted
from abound.core.model.active_version import EVEN_WEIGHTS, LIVE, NEVER_ACTIVATED, ServingState
from abound.core.model.live_model import LiveModel
from abound.core.types import Offset

AT = Offset(5, 1, 0)


def test_an_activation_keeps_the_former_version_and_starts_with_even_weights() -> None:
    first = NEVER_ACTIVATED.after_activation("a", "one", "d1", AT).with_weights("one", (0.25, 0.75))
    assert first == ServingState("one", "d1", LIVE, "", "a", "5-1.0", (0.25, 0.75))
    second = first.after_activation("b", "two", "d2", AT)
    assert (second.former, second.former_digest, second.weights) == ("one", "d1", EVEN_WEIGHTS)
    assert second.after_activation("c", LIVE, "", AT).is_live


def test_an_activation_that_came_already_is_passed_over() -> None:
    serving = NEVER_ACTIVATED.after_activation("a", "one", "d1", AT).with_weights("one", (0.5, 1.0))
    assert serving.after_activation("a", "one", "d1", Offset(6, 0, 0)) is serving
    again = serving.after_activation("b", "one", "d1", Offset(6, 0, 0))
    assert again == msgspec.structs.replace(serving, activation="b")


def test_weights_of_another_version_than_the_active_one_change_nothing() -> None:
    serving = NEVER_ACTIVATED.after_activation("a", "one", "d1", AT)
    assert serving.with_weights("two", (0.5, 0.1)) is serving


def test_what_answers_is_in_the_digest_and_in_what_is_kept() -> None:
    model = LiveModel(ModelConfig(), (1, 2))
    plain = model.digest()
    assert model.meta()["serving"] == msgspec.to_builtins(NEVER_ACTIVATED)
    model.serving = model.serving.after_activation("a", "one", "d1", AT)
    activated = model.digest()
    assert activated != plain
    model.serving = model.serving.with_weights("one", (0.5, 0.25))
    weighed = model.digest()
    assert weighed not in (plain, activated)
    meta = msgspec.json.decode(msgspec.json.encode(model.meta()))
    loaded = LiveModel.from_arrays(meta, model.to_arrays(), (3, 4))
    assert loaded.serving == model.serving
    assert loaded.digest() == weighed


@pytest.mark.parametrize("serving", [{"version": 3}, {"weights": [1.0]}, "live", []])
def test_what_can_be_no_serving_state_is_damaged(serving: object) -> None:
    model = LiveModel(ModelConfig(), (1, 2))
    with pytest.raises(Corrupted):
        LiveModel.from_arrays(model.meta() | {"serving": serving}, model.to_arrays(), (3, 4))
