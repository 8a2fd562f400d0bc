"""A model whose history has a state that a refit made."""

from __future__ import annotations

from abound.history.history import Base, History
from abound.history.replay import replay
from abound.replace.copying import Past
from abound.replace.replace import Replacement, replace_model
from abound_core.model.live_model import LiveModel
from tests.support.lab import Lab


async def refitted(lab: Lab, live: LiveModel, record: str = "refit") -> Base:
    """Replace the model as a refit does that made ``live`` of its events; return the state in the new history."""

    async def make(replacement: Replacement) -> Past:
        model = await replay(lab.store, replacement.living, replacement.after, artifacts=lab.artifacts)
        live.serving = model.live.serving
        model.live = live
        return Past(model=model, source=replacement.living, tail_after=replacement.after, is_refitted=True)

    assert await replace_model(await lab.context(record), make, "a test") is not None
    contents = await History(lab.store, lab.artifacts, (await lab.living()).keys).manifest()
    assert contents is not None
    assert contents.refitted is not None
    return contents.refitted
