"""Whom a follower tells what happens to the models that it follows."""

from __future__ import annotations

from typing import Protocol

from service.model_replica import Applied, ModelReplica, NotLoaded, NotPrepared


class Watcher(Protocol):
    """A replica is one."""

    def came(self, model: ModelReplica) -> None:
        """A model is followed from here on."""

    def gone(self, model: ModelReplica) -> None:
        """A model is no more."""

    def sighted(self, model: ModelReplica, applied: Applied) -> None:
        """An entry was applied."""

    async def marked(self, model: ModelReplica, token: str) -> None:
        """A mark was applied; the next entry waits until this returns."""

    def prepared(self, model: ModelReplica) -> None:
        """An index is about to be adopted, or a version to be activated."""

    def halted(self, model: ModelReplica, missing: NotPrepared | NotLoaded) -> None:
        """A model cannot go on without its shadow, or a version. Sets ``halted``, and later ``resumes``."""
