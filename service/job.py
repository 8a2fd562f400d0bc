"""A job, as its record says: what was asked for, who is at it, and what came of it."""

from __future__ import annotations

import hashlib
import re
import secrets
from typing import Any, Literal

import msgspec

State = Literal["queued", "running", "succeeded", "failed", "cancelled"]
STATES: tuple[State, ...] = ("queued", "running", "succeeded", "failed", "cancelled")
ENDED = ("succeeded", "failed", "cancelled")

KINDS = ("fit", "rebuild")
"""Kinds of jobs; a worker does one of each at a time, so that what is short does not wait for what is long."""

JOBS = "abound:jobs"

_ID = re.compile(r"[0-9a-f]{20}")


class Job(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=False):
    """The record of a job.

    Attributes
    ----------
    id, state
    model, incarnation : str
        What it works on.
    method, kind : str
        What it does, and which workers do that.
    params : dict
        As the method's parameters were checked at the door, defaults and all.
    data : str
        ``history`` or the name of a data set.
    upload : str or None
        Which file of that name.
    activate : ``never`` | ``if_better``
    reason : str or None
        The user's.
    actor : str or None
        Id of the key that asked for it.
    progress : float
        0..1.
    stage : str or None
        What is being done, in words for people.
    attempt : int
        How often it was begun.
    due : float or None
        When it may be begun again at the earliest, in seconds since 1970.
    cancelling : bool
        It was told to stop and has not yet.
    committed : bool
        What it does can no longer be cancelled.
    kept : list of str
        Prefixes in the artifact store that are not the job's own any more: what was committed.
    holder : str or None
        Worker and process that are at it.
    data_range : dict or None
        ``after`` and ``until``: offsets between which events were read.
    metrics : dict
    outcome : dict
        What came of it, as the method says.
    version : str or None
        The version that it made.
    error : str or None
        Why it failed, or why it was cancelled; while it waits, why it has to be begun again.
    config : dict
        Of the model, when the job was asked for.
    gone : str or None
        Why its process gave it up although it is running: a worker sees to it.
    body : str or None
        Hash of the request that asked for it, where that came with an idempotency key.
    created, started, ended, heartbeat : float or None
        Seconds since 1970.
    """

    id: str
    state: State
    model: str
    incarnation: str
    method: str
    kind: str
    params: dict[str, Any] = {}
    data: str = "history"
    upload: str | None = None
    activate: str = "never"
    reason: str | None = None
    actor: str | None = None
    progress: float = 0.0
    stage: str | None = None
    attempt: int = 0
    due: float | None = None
    cancelling: bool = False
    committed: bool = False
    kept: list[str] = []
    holder: str | None = None
    data_range: dict[str, Any] | None = None
    metrics: dict[str, Any] = {}
    outcome: dict[str, Any] = {}
    version: str | None = None
    error: str | None = None
    config: dict[str, Any] = {}
    gone: str | None = None
    body: str | None = None
    created: float | None = None
    started: float | None = None
    ended: float | None = None
    heartbeat: float | None = None

    @property
    def has_ended(self) -> bool:
        """Whether nothing comes any more."""
        return self.state in ENDED


def job_key(job_id: str) -> str:
    """The key of a record."""
    return f"{JOBS}:job:{job_id}"


def new_id() -> str:
    """An id that no job has."""
    return secrets.token_hex(10)


def id_of_key(key: str) -> str:
    """The id of the job that is asked for under an idempotency key: so the record itself says that it came before."""
    return hashlib.blake2b(key.encode(), digest_size=10, person=b"abound job").hexdigest()


def is_id(text: str) -> bool:
    """Whether a job could have this id."""
    return _ID.fullmatch(text) is not None
