"""The configuration of a model: what earlier releases stored."""

import pytest

from abound_core.config import BEFORE, ModelConfig
from abound_core.errors import Conflict, InvalidInstance
from abound_core.instances.record import add_details, pack_labels
from abound_core.model.entry_application import Unit
from abound_core.model.live_model import LiveModel


def stored_before(**fields):
    return {name: value for name, value in ModelConfig(**fields).to_dict().items() if name not in BEFORE}


def test_a_stored_model_keeps_its_behaviour():
    for fields in ({}, {"update": "sls"}):
        config = ModelConfig.from_stored(stored_before(**fields))
        assert config == ModelConfig(numbers="raw", rerank=False, normalize=False, known=False, **fields)
        assert not {"numbers", "rerank", "normalize", "known", "recovery"} & set(config.changed_fields())
        assert ModelConfig.from_stored(config.to_dict()) == config
        assert ModelConfig.from_stored(ModelConfig(**fields).to_dict()) == ModelConfig(**fields)


def test_models_of_sls_rerank_unless_told_otherwise():
    assert ModelConfig(update="sls").rerank is None
    assert "rerank" not in ModelConfig(update="sls").changed_fields()
    assert ModelConfig().rerank is False
    for before in (ModelConfig(), ModelConfig.from_stored(stored_before())):
        assert before.with_changes({"update": "sls"}).rerank is None
        assert before.with_changes({"update": "sls", "rerank": False}).rerank is False
        assert before.with_changes({"margin": 1.0}).rerank is False
    assert ModelConfig(update="sls", rerank=False).with_changes({"margin": 1.0}).rerank is False
    assert ModelConfig.from_stored(ModelConfig(update="sls", rerank=False).to_dict()).rerank is False
    assert ModelConfig(update="sls", rerank=True).with_changes({"rerank": None}).rerank is None


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"numbers": "Scaled"}, "numbers must be exact, scaled or raw"),
        ({"numbers": ["raw"]}, "numbers must be exact, scaled or raw"),
        ({"codes": 5000}, "codes must be 4096 or 16384"),
        ({"codes": True}, "codes must be 4096 or 16384"),
        ({"update": "sls", "memory": 5.0}, "memory"),
        ({"update": "sls", "eta": 0}, "eta"),
        ({"update": "sls", "slots": 2000}, "slots"),
        ({"update": "sls", "idf": 1}, "idf"),
        ({"update": "sls", "rows": 1}, "rows"),
        ({"rerank": True}, "rerank is for update sls"),
        ({"w_min": 2}, "w_min"),
    ],
    ids=str,
)
def test_wrong_settings_are_named(wrong, message):
    with pytest.raises(InvalidInstance, match=message) as refused:
        ModelConfig.from_dict(wrong)
    assert refused.value.field == list(wrong)[-1]


def test_rows_are_for_models_with_sls_unless_told_otherwise():
    plain, own = ModelConfig(), ModelConfig(update="sls", rows=False)
    assert [ModelConfig.from_dict({"update": "sls"}).rows, plain.rows, own.rows] == [True, False, False]
    assert plain.with_changes({"update": "sls"}).rows
    assert not plain.with_changes({"update": "sls", "rows": False}).rows
    assert not own.with_changes({"update": "sls"}).rows
    assert own.with_changes({"update": "fsu"}).with_changes({"update": "sls"}).rows
    with pytest.raises(InvalidInstance, match="rows is for update sls"):
        plain.with_user_changes({"rows": True})
    for config in (plain, own, ModelConfig(update="sls")):
        assert ModelConfig.from_dict(config.to_dict()) == config


@pytest.mark.parametrize(
    ("before", "change", "kept"),
    [
        ({}, {"boolean": True, "margin": 0.5}, {"margin": 0.5}),
        ({"update": "sls"}, {"rows": False}, {}),
        ({"update": "sls", "rows": False}, {"update": "fsu"}, {}),
        ({"update": "sls", "codes": 16384}, {"codes": 4096}, {}),
    ],
    ids=["boolean", "rows", "update", "codes"],
)
@pytest.mark.parametrize("is_named", [False, True])
def test_what_is_fixed_once_something_was_learned(before, change, kept, is_named):
    """Such a change is refused; one that comes too late, out of a log, changes nothing else."""
    model = LiveModel(ModelConfig.from_dict(before), (1, 2))
    model.check_change(change)
    record = model.vectorizer.vectorize(None, "wheat") + pack_labels(["grain"], model.limits)
    model.begin(add_details(record, b"{}") if is_named else record, 1, [Unit(1)]).finish()
    with pytest.raises(Conflict):
        model.check_change(change)
    model.configure(change)
    assert model.config == ModelConfig.from_dict(before | kept)
