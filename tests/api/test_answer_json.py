import gc
import weakref

import numpy as np

from abound.api.answer_json import AnswerEncoder
from abound.api.schemas.learn_classify import ClassifyRequest, encoder
from abound_core.config import ModelConfig
from abound_core.instances.record import pack_labels
from abound_core.model.entry_application import Unit
from abound_core.model.live_model import LiveModel
from abound_core.types import START, Offset, Ranking

ODD = ["plain", 'quo"te', "back\\slash", "\n\t\x00\x1f", "é", "\U0001f600", "</script>", "%b{}", "x" * 512]


def model_of(labels: list[str]) -> LiveModel:
    model = LiveModel(ModelConfig(), (3, 4))
    for label in labels:
        record = model.vectorizer.vectorize(b'{"f": 1}', None) + pack_labels([label], model.limits)
        model.begin(record, 1, [Unit(1)]).finish()
    return model


def test_an_answer_made_of_bytes_is_the_one_made_of_values() -> None:
    model = model_of(ODD)
    answers = AnswerEncoder()
    some = np.array([1.0, 0.1, 1 / 3, 5e-324, 1e22, 123456789.125, 1e-7, 0.30000000000000004, 2.5, 1e16])
    for n in (0, 1, 2, len(ODD)):
        ranking = Ranking(np.arange(n, dtype=np.int32)[::-1], some[:n])
        for offset in (START, Offset(1763600000000, 0, 3), Offset(1763600000000, 0, 4)):
            plain = answers.plain(model, ranking, offset)
            assert plain == encoder.encode(answers.explained(model, b"", ranking, offset, ClassifyRequest()))


def test_models_do_not_share_labels_and_are_let_go() -> None:
    answers = AnswerEncoder()
    one, other = model_of(["one"]), model_of(["other"])
    ranking = Ranking(np.zeros(1, np.int32), np.ones(1))
    for _ in range(2):
        assert b'"one"' in answers.plain(one, ranking, START)
        assert b'"other"' in answers.plain(other, ranking, START)
    left = [weakref.ref(one), weakref.ref(other)]
    del one, other
    gc.collect()
    assert [model() for model in left] == [None, None]
