"""How a replica does, in one value."""

from __future__ import annotations

from typing import Literal, NamedTuple


class Durability(NamedTuple):
    """What the store promises of an event that it has in its log.

    Attributes
    ----------
    appendfsync : ``always`` | ``everysec`` | ``no``, or None
        None when it does not tell, or keeps no file.
    levels : tuple of str
        The levels that a request can ask for here, least first.
    warning : str or None
        What may be lost, and what mends it.
    """

    appendfsync: str | None
    levels: tuple[str, ...]
    warning: str | None


class Status(NamedTuple):
    """How a replica does.

    Attributes
    ----------
    stage : ``connecting`` | ``loading snapshot of ...`` | ``replaying ...`` | ``warming`` | ``ready`` | ``draining``
    progress : float, 0 to 1
        Of the stage.
    ready : bool
        It answers from a state that it trusts.
    reason : str or None
        Why it is not ready.
    log : ``connected`` | ``cut off``
    since : float or None
        Seconds that it has been cut off.
    lag : int or None
        Entries behind, over all models; None when not known.
    durability : Durability or None
        As the store said last; None before the first connection.
    history : str or None
        Why there is none, and what mends it; None while it is kept.
    """

    stage: str
    progress: float
    ready: bool
    reason: str | None
    log: Literal["connected", "cut off"]
    since: float | None
    lag: int | None
    durability: Durability | None
    history: str | None = None
