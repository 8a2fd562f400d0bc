"""Registered labels: replicas agree after a restart, a forget and a refit, and batch methods learn the names."""

from __future__ import annotations

from typing import Any, cast

import numpy as np

from abound.jobs.replace import forget, refit
from abound.jobs.training_data import matrices_of_history
from abound.log.catalog import DEFAULT_MODEL
from abound.log.events import ConfigureEvent, LearnEvent
from abound.replace.forget import ForgetParams
from abound.replace.refit import RefitParams
from abound_core.config import ModelConfig
from abound_core.instances.record import EMPTY_VECTOR, add_details, pack_labels
from abound_core.instances.vectorizer import Vectorizer
from abound_core.limits import Limits
from abound_core.model.entry_application import Unit
from tests.support.lab import Context, Lab, digest_at, digest_of, events


def registrations(n: int, word: str, source: str | None = None, named: bool = True) -> list[LearnEvent]:
    """Registrations of a label each, with a name and details, or with details alone."""
    vectorizer = Vectorizer(ModelConfig(), Limits())
    found = []
    for i in range(n):
        vector = vectorizer.vectorize(None, f"{word}{i}") if named else EMPTY_VECTOR
        record = add_details(vector + pack_labels([f"label {i}"], Limits()), b'{"name":"%b"}' % word.encode())
        found.append(LearnEvent(record, 1, [Unit(1, source=source)]))
    return found


async def test_replicas_agree_after_a_restart_a_forget_and_a_refit(lab: Lab) -> None:
    one, other = await lab.replica(), await lab.replica()
    await lab.teach(ConfigureEvent({"calibrate": True}), *registrations(4, "good"), *events(20, 1))
    await lab.teach(*registrations(12, "bad", "bad"), *registrations(3, "bare", "bad", named=False))
    await lab.archived()
    await lab.teach(*registrations(2, "bad", "bad"), *events(5, 2), *registrations(3, "later"))
    live = one.model(DEFAULT_MODEL).live
    await digest_at(one, lab.past[-1][0])
    assert len(live.details) == len(live.labels) == 12
    outcome = await lab.run(forget, ForgetParams(source="bad", reason="asked for"))
    assert outcome["forgotten"] == {"requests": 17, "instances": 17}
    await lab.teach(*events(5, 3))
    expected = await lab.without(lambda unit, at: unit.source == "bad")
    assert (len(expected.details), expected.n_learned) == (4, 30)
    await lab.same(one, expected)
    offset, digest = await lab.end(), await digest_of(expected)
    assert await digest_at(other, offset) == digest
    assert await digest_at(await lab.replica(), offset) == digest
    await lab.run(refit, RefitParams(search={}, passes=3), job="refit")
    end = await lab.end()
    assert len({await digest_at(replica, end) for replica in (one, other, await lab.replica())}) == 1
    live = one.model(DEFAULT_MODEL).live
    assert [live.details.get(live.labels.find(b"label %d" % i)) for i in (0, 3, 4)] == [
        b'{"name":"later"}',
        b'{"name":"good"}',
        b"",
    ]


async def test_batch_methods_learn_names_and_leave_out_bare_registrations(lab: Lab) -> None:
    await lab.replica()
    await lab.teach(*registrations(2, "good"), *registrations(3, "bare", named=False), *events(5, 1))
    await lab.archived()
    context = Context(lab, await lab.living())
    data = (await matrices_of_history(cast("Any", context), lambda stage, done: None)).data
    assert data.X.shape[0] == 7
    assert np.diff(data.X.indptr).min() > 0
