"""The appenders of a replica: each model has one from when it comes until it goes.

By the origin, and a count over all models, the follower's entries are known again as this process's own.
"""

from __future__ import annotations

import itertools
import secrets

from core.types import Offset
from service.appender import Appender
from service.line import Line
from service.log import LogParams
from service.model_replica import Applied, ModelReplica
from service.store import Store


class Appenders:
    """Gives the models of a replica their ways to append.

    Parameters
    ----------
    line : Line
        Shared by all of them; for what is to be confirmed each has one more, to the same servers.
    """

    def __init__(self, store: Store, params: LogParams, line: Line) -> None:
        self._store = store
        self._params = params
        self._line = line
        self._origin = secrets.token_bytes(8)
        self._sequences = itertools.count(1)

    def came(self, model: ModelReplica) -> None:
        """A new model can be appended to."""
        model.appender = Appender(
            model.keys.log,
            self._origin,
            self._sequences,
            self._line,
            Line(
                self._store,
                f"careful-{model.name}",
                2 * self._params.wait_store_seconds,  # what it asks comes behind WAITAOF and WAIT
                self._line.knows,
            ),
            self._params,
            self._store.params.reply_seconds,
            lambda: model.held_bytes,
        )

    def sighted(self, model: ModelReplica, applied: Applied) -> None:
        """Hand what came of an own entry to its requests."""
        entry, (milliseconds, sequence, _), applying = applied
        if entry.origin == self._origin:
            appender_of(model).sighted(entry.sequence, Offset(milliseconds, sequence, 0), applying)


def appender_of(model: ModelReplica) -> Appender:
    """The way to append to a model of a replica, which has one."""
    if model.appender is None:
        raise AssertionError("a model of a replica has an appender")
    return model.appender
