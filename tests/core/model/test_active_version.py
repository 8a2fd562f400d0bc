import msgspec

from abound_core.config import ModelConfig
from abound_core.model.active_version import LIVE, NEVER_ACTIVATED, ServingState
from abound_core.model.live_model import LiveModel
from abound_core.types import Offset

AT = Offset(5, 1, 0)


def test_an_activation_keeps_the_former_version():
    first = NEVER_ACTIVATED.after_activation("a", "one", "d1", AT)
    assert first == ServingState("one", "d1", LIVE, "", "a", "5-1.0")
    second = first.after_activation("b", "two", "d2", AT)
    assert (second.former, second.former_digest) == ("one", "d1")
    assert second.after_activation("c", LIVE, "", AT).is_live


def test_an_activation_that_came_already_is_passed_over():
    serving = NEVER_ACTIVATED.after_activation("a", "one", "d1", AT)
    assert serving.after_activation("a", "one", "d1", Offset(6, 0, 0)) is serving
    again = serving.after_activation("b", "one", "d1", Offset(6, 0, 0))
    assert again == msgspec.structs.replace(serving, activation="b")


def test_what_answers_is_in_the_digest_and_in_what_is_kept():
    model = LiveModel(ModelConfig(), (1, 2))
    plain = model.digest()
    assert model.meta()["serving"] == msgspec.to_builtins(NEVER_ACTIVATED)
    model.serving = model.serving.after_activation("a", "one", "d1", AT)
    activated = model.digest()
    assert activated != plain
    meta = msgspec.json.decode(msgspec.json.encode(model.meta()))
    loaded = LiveModel.from_arrays(meta, model.to_arrays(), (3, 4))
    assert loaded.serving == model.serving
    assert loaded.digest() == activated
