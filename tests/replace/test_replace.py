"""Replacing a model, and going back to an offset, as jobs do it."""

from typing import Any, cast

import numpy as np
import pytest

from abound.history.replay import replay
from abound.history.verify import verify
from abound.jobs.replace import RestoreParams, refit, restore
from abound.jobs.training_data import matrices_of_history
from abound.log.catalog import DEFAULT_MODEL, read_catalog
from abound.log.events import ConfigureEvent, LearnEvent
from abound.replace.copying import Copy, Past
from abound.replace.refit import RefitParams
from abound.replace.replace import Replacement, replace_model
from abound.versions.activation import activate, read_active
from abound_core.config import ModelConfig
from abound_core.errors import Cancelled, InvalidInstance, UnknownOffset
from abound_core.instances.record import EMPTY_VECTOR, add_details, pack_labels
from abound_core.instances.vectorizer import Vectorizer
from abound_core.limits import Limits
from abound_core.model.entry_application import Unit
from tests.support.lab import Context, Lab, digest_at, events, keyed, learning, model_of, replace_by
from tests.support.small_versions import fitted, place, write
from tests.support.streams import drafts


async def same_again(replacement: Replacement) -> Past:
    place = replacement.context
    model = await replay(place.store, replacement.living, replacement.after, artifacts=place.artifacts)
    return Past(model=model, source=replacement.living, tail_after=replacement.after)


async def test_a_replacement_that_fails_opens_the_log_again(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    one = await lab.replica()
    await lab.teach(*events(5, 1))

    async def fail(*_: Any) -> None:
        raise Cancelled("the job was told to stop")

    with monkeypatch.context() as patch:
        patch.setattr(Copy, "finish", fail)  # the log is closed by then
        with pytest.raises(Cancelled):
            await replace_by(lab, model_of(3, 5))
    await one.learn(DEFAULT_MODEL, drafts(2, 9))
    assert one.model(DEFAULT_MODEL).live.n_learned == 7


async def test_a_large_model_is_not_kept_for_an_undo(lab: Lab) -> None:
    await lab.teach(*events(20, 1))
    await replace_model(await lab.context(undo_bytes=10), same_again, "again")
    assert DEFAULT_MODEL not in (await read_catalog(lab.store)).former


async def test_history_is_linked_and_not_written_again(lab: Lab) -> None:
    await lab.replica()
    await lab.teach(*events(200, 1))
    await lab.archived()
    await lab.teach(*events(10, 2))
    before = await lab.living()
    files = {path.stat().st_ino for path in lab.folder.rglob("*.seg")}
    await lab.run(refit, RefitParams(search={}, passes=2), job="refit")
    own = {path.stat().st_ino for path in lab.folder.rglob(f"{(await lab.living()).keys.incarnation}/history/*.seg")}
    assert before.keys != (await lab.living()).keys
    assert files <= own
    assert len(own) == len(files) + 1  # what was in the log only
    learned = [event for event in await lab.events_of_history() if getattr(event, "units", None)]
    assert len(learned) == 210


async def test_a_job_that_was_done_is_not_done_again(lab: Lab) -> None:
    one = await lab.replica()
    early = await lab.teach(*events(20, 1))
    params = RestoreParams(to=str(early[9]), reason="r")
    context = Context(lab, await lab.living())
    await restore(cast("Any", context), params, context.progress)
    await lab.teach(*events(1, 3))
    again = Context(lab, await lab.living(), committed=True, outcome=context.job.outcome)
    await restore(cast("Any", again), params, again.progress)
    await digest_at(one, await lab.end())
    assert one.model(DEFAULT_MODEL).live.n_learned == 11


async def test_restore_past_the_log_or_before_history_is_refused(lab: Lab) -> None:
    await lab.teach(*events(5))
    with pytest.raises(InvalidInstance, match="ends at"):
        await lab.run(restore, RestoreParams(to=f"{2**50}-0.0", reason="r"))
    living = await lab.living()
    await lab.archived()
    await lab.store.client.delete(living.keys.key("history"))  # lost
    await lab.teach(*events(5))
    await lab.archived()
    contents = await lab.contents()
    with pytest.raises(UnknownOffset, match=str(contents.start)) as refused:
        await lab.run(restore, RestoreParams(to=str(lab.past[1][0]), reason="r"))
    assert refused.value.first == contents.start
    assert (await lab.living()).keys == living.keys
    one = await lab.replica()
    outcome = await lab.run(restore, RestoreParams(to=str(contents.start), reason="r"), job="first")
    assert outcome["learned"] == len([at for at, _ in lab.past if at <= contents.start])
    assert one.model(DEFAULT_MODEL).live.n_learned == outcome["learned"]
    assert (await verify(lab.store, DEFAULT_MODEL, artifacts=lab.artifacts)).good


async def test_a_restore_to_before_an_activation_keeps_what_is_active(lab: Lab) -> None:
    one = await lab.replica()
    early = await lab.teach(*events(5, 1))
    await lab.teach(*events(5, 2))
    card = await write(lab.artifacts, (await lab.living()).keys, fitted("v"))
    await activate(place(lab.store, lab.artifacts, (await lab.living()).keys), card.id, "a test")
    await lab.run(restore, RestoreParams(to=str(early[-1]), reason="r"))
    await digest_at(one, await lab.end())
    assert one.model(DEFAULT_MODEL).live.n_learned == 5
    assert one.model(DEFAULT_MODEL).live.serving.version == card.id
    one.model(DEFAULT_MODEL).check_serving()
    assert (await read_active(lab.store, (await lab.living()).keys)).version == card.id


def registrations(n: int, word: str, source: str | None = None, named: bool = True) -> list[LearnEvent]:
    vectorizer = Vectorizer(ModelConfig(), Limits())
    found = []
    for i in range(n):
        vector = vectorizer.vectorize(None, f"{word}{i}") if named else EMPTY_VECTOR
        record = add_details(vector + pack_labels([f"label {i}"], Limits()), b'{"name":"%b"}' % word.encode())
        found.append(LearnEvent(record, 1, [Unit(1, source=source)]))
    return found


async def test_refit_learns_all_again_with_the_chosen_setting(lab: Lab) -> None:
    one, other = await lab.replica(), await lab.replica()
    await lab.teach(*events(300, 1), *keyed(20, 2, "k"), *keyed(20, 2, "k"))
    before = await lab.replayed()
    async with learning(other):
        outcome = await lab.run(
            refit, RefitParams(passes=3, settings={"leak": False, "d_max": 12}, search={"margin": [0.0, 0.3]})
        )
    end = await lab.end()
    digest = await digest_at(one, end)
    assert await digest_at(other, end) == digest
    assert await (await lab.replayed()).compute_digest() == digest
    config = one.model(DEFAULT_MODEL).live.config
    assert (config.leak, config.d_max) == (False, 12)
    assert config.margin == outcome["setting"]["margin"]
    assert 1 <= outcome["passes"] <= 3
    assert 0 < outcome["metrics"]["MRR"] <= 1
    assert outcome["metrics"]["held_out"] >= 32
    assert len(one.model(DEFAULT_MODEL).live.receipts) == 20
    assert one.model(DEFAULT_MODEL).live.n_learned > before.live.n_learned == 320


@pytest.mark.parametrize(
    ("given", "margin", "tried"),
    [
        ({}, 0.0, [0.0, 0.1, 0.5]),
        ({}, 7.0, [0.0, 0.1, 0.5, 7.0]),
        ({"settings": {"margin": 0.3}}, 7.0, [0.3]),
        ({"settings": {"update": "sls"}}, 7.0, [None]),
        ({"search": {}}, 7.0, [None]),
        ({"search": {"margin": [1.0]}}, 7.0, [1.0]),
    ],
)
def test_what_a_refit_tries(given: dict[str, Any], margin: float, tried: list[float | None]) -> None:
    settings = RefitParams(**given).tried(ModelConfig(margin=margin))
    assert [setting.get("margin") for setting in settings] == tried
    assert all(setting.items() >= given.get("settings", {}).items() for setting in settings)


def test_a_field_has_one_value_or_several() -> None:
    with pytest.raises(ValueError, match="margin has a value in settings and others in search"):
        RefitParams(settings={"margin": 0.3}, search={"margin": [0.1]})


async def test_the_newest_events_are_held_out_after_an_import(lab: Lab) -> None:
    await lab.replica()
    await replace_by(lab, model_of(300, 9), "import")
    await lab.teach(*events(60, 1))
    outcome = await lab.run(refit, RefitParams(passes=2))
    assert outcome["metrics"]["held_out"] == 6
    assert outcome["metrics"]["MRR"] > 0
    assert "note" not in outcome


async def test_registrations_are_learned_and_not_held_out(lab: Lab) -> None:
    await lab.replica()
    await lab.teach(*registrations(100, "good"), *events(40, 1), *registrations(10, "late"))
    outcome = await lab.run(refit, RefitParams(passes=2))
    assert outcome["metrics"]["held_out"] == 4
    assert outcome["metrics"]["MRR"] > 0


async def test_a_second_refit_reads_what_the_first_one_read(lab: Lab) -> None:
    one = await lab.replica()
    await lab.teach(*events(40, 1))
    expected = await lab.replayed()
    await lab.run(refit, RefitParams(passes=3, search={}, held_out=0.0), job="first")
    await lab.archived()
    assert await digest_at(one, await lab.end()) != await expected.compute_digest()
    await lab.run(refit, RefitParams(passes=1, search={}), job="second")
    assert await digest_at(one, await lab.end()) == await expected.compute_digest()


@pytest.mark.parametrize("n_feedback", [0, 3])
async def test_a_refit_that_can_compare_nothing_keeps_the_margin_and_says_so(lab: Lab, n_feedback: int) -> None:
    one = await lab.replica()
    feedback = EMPTY_VECTOR + pack_labels([], Limits(), rejected=["label 1"])
    await lab.teach(ConfigureEvent({"margin": 0.4}), *events(9 + 8 * (n_feedback > 0), 1))
    await lab.teach(*[LearnEvent(feedback, 1, [Unit(1)])] * n_feedback)
    params = RefitParams(passes=2, settings={"leak": False}, search={"margin": [0.0, 0.3], "d_max": [12]})
    outcome = await lab.run(refit, params)
    assert (outcome["setting"], outcome["passes"]) == ({"leak": False, "d_max": 12}, 2)
    assert outcome["metrics"] == {"MRR": None, "held_out": 0}
    assert "nothing was compared" in outcome["note"]
    await digest_at(one, await lab.end())
    assert one.model(DEFAULT_MODEL).live.config.margin == 0.4


@pytest.mark.parametrize(
    ("wrong", "what"),
    [
        ({"settings": {"boolean": True}}, "stores normalised vectors"),
        ({"search": {"analyzer": [{}]}}, "not the original texts"),
        ({"settings": {"negative": "split"}}, "below 0"),
        ({"settings": {"d_max": 0}}, "d_max"),
        ({"search": {"margin": []}}, "at least one value"),
        ({"search": {"margin": list(range(20)), "d_max": list(range(1, 20))}}, "at most 100"),
        ({"search": {name: [1] * 1000 for name in ("margin", "d_max", "w_min")}}, "at most 100"),
        ({"passes": 0}, "passes"),
        ({"held_out": 0.0}, "held_out"),
        ({"held_out": 0.9}, "held_out"),
        ({"settings": {"nonsense": 1}}, "nonsense"),
    ],
)
def test_what_a_refit_cannot_do_is_refused_with_the_reason(wrong: dict[str, Any], what: str) -> None:
    with pytest.raises((ValueError, InvalidInstance), match=what):
        RefitParams(**wrong).check_config(ModelConfig())


async def test_batch_methods_learn_names_and_leave_out_bare_registrations(lab: Lab) -> None:
    await lab.replica()
    await lab.teach(*registrations(2, "good"), *registrations(3, "bare", named=False), *events(5, 1))
    await lab.archived()
    context = Context(lab, await lab.living())
    data = (await matrices_of_history(cast("Any", context), lambda stage, done: None)).data
    assert data.X.shape[0] == 7
    assert np.diff(data.X.indptr).min() > 0
