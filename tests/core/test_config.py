"""The configuration of a model: what earlier releases stored."""

import pytest

from abound_core.config import BEFORE, ModelConfig
from abound_core.errors import InvalidInstance
from abound_core.model.live_model import LiveModel


def stored_before(**fields):
    """Return a configuration as a release before ``BEFORE`` stored it."""
    return {name: value for name, value in ModelConfig(**fields).to_dict().items() if name not in BEFORE}


def test_a_stored_model_keeps_its_behaviour():
    for fields in ({}, {"update": "sls"}):
        config = ModelConfig.from_stored(stored_before(**fields))
        assert config == ModelConfig(numbers="raw", rerank=False, **fields)
        assert not {"numbers", "rerank"} & set(config.changed_fields())
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


def test_new_models_scale_numbers():
    assert ModelConfig().numbers == ModelConfig.from_dict({}).numbers == "scaled"
    assert ModelConfig().changed_fields() == {"numbers": "scaled"}


def test_a_loaded_state_keeps_its_behaviour():
    model = LiveModel(ModelConfig(numbers="raw"), (1, 2))
    meta = model.meta()
    del meta["config"]["numbers"]
    loaded = LiveModel.from_arrays(meta, model.to_arrays(), (3, 4))
    assert (loaded.config, loaded.digest()) == (model.config, model.digest())
    loaded.configure({"d_max": 7})
    assert loaded.config.numbers == "raw"


@pytest.mark.parametrize("value", ["Scaled", "", None, True, 1, ["raw"]], ids=str)
def test_wrong_ways_of_numbers_are_refused(value):
    with pytest.raises(InvalidInstance, match="numbers must be scaled or raw") as refused:
        ModelConfig.from_dict({"numbers": value})
    assert refused.value.field == "numbers"
