"""How a replica does, in one value."""

from __future__ import annotations

from typing import Literal, NamedTuple


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
    """

    stage: str
    progress: float
    ready: bool
    reason: str | None
    log: Literal["connected", "cut off"]
    since: float | None
    lag: int | None
