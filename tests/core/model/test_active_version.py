import msgspec

from abound_core.config import ModelConfig
from abound_core.model.active_version import LIVE, NEVER_ACTIVATED, ServingState
from abound_core.model.live_model import LiveModel
from abound_core.types import Offset

AT = Offset(5, 1, 0)


def test_an_activation_keeps_the_former_version_and_is_passed_over_if_it_came_already():
    first = NEVER_ACTIVATED.after_activation("a", "one", "d1", AT)
    assert first == ServingState("one", "d1", LIVE, "", "a", "5-1.0")
    assert first.after_activation("a", "one", "d1", Offset(6, 0, 0)) is first
    again = first.after_activation("b", "one", "d1", Offset(6, 0, 0))
    assert again == msgspec.structs.replace(first, activation="b")
    second = first.after_activation("b", "two", "d2", AT)
    assert (second.former, second.former_digest) == ("one", "d1")
    assert second.after_activation("c", LIVE, "", AT).is_live


def test_what_answers_is_in_the_digest_and_in_what_is_kept():
    model = LiveModel(ModelConfig(), (1, 2))
    plain = model.digest()
    model.serving = model.serving.after_activation("a", "one", "d1", AT)
    assert model.digest() != plain
    loaded = LiveModel.from_arrays(msgspec.json.decode(msgspec.json.encode(model.meta())), model.to_arrays(), (3, 4))
    assert (loaded.serving, loaded.digest()) == (model.serving, model.digest())
