"""What is tried again, and after which pause.

* Refused with 429 or 503, or never reached the service: nothing was taken, so it is sent again.
* Interrupted, or refused with 502 or 504: nobody knows what became of it. It is sent again only if it may be taken
  twice: it only reads, says the same however often it is said, or carries idempotency keys. An interrupted learn
  without keys is never sent twice.
* Once that has happened, a later attempt that never arrives does not end as Unreachable but as Interrupted.
* Streams, and whoever follows a job, wait for a service that says that it is starting: that takes as long as there is
  to load and to replay, so the seconds are bounded, not the attempts.
* A single request to a service that has never answered is given up at once: more likely than a restart is that there
  is none at this URL.
"""

from __future__ import annotations

from abound.service.client.errors import Answer, ClientError, Interrupted, Refused, Unreachable

ATTEMPTS = 6
"""How often a request is sent before it counts as failed."""

MAX_PAUSE = 10.0
"""Longest pause before another attempt, in seconds."""

START_SECONDS = 120.0
"""How long a service is waited for, in pauses together, that says that it is not ready."""

NOT_TAKEN = (429, 503)
NOT_READY = "/problems/not-ready"
UNKNOWN = (502, 504)


class Attempts:
    """The attempts at one request.

    Parameters
    ----------
    repeatable : bool
        Whether taking it twice does no harm.
    patient : bool
        Whether a service that cannot be reached is waited for.

    Attributes
    ----------
    unknown : bool
        Nobody knows what became of an attempt that another one followed: something may have been taken.
    """

    def __init__(self, repeatable: bool, patient: bool = True) -> None:
        self.repeatable = repeatable
        self.unknown = False
        self._patient = patient
        self._failed = 0
        self._waited = 0.0

    def progress(self) -> None:
        """Something came of it: count anew."""
        self._failed = 0
        self._waited = 0.0

    def pause_after(self, error: ClientError) -> float:
        """Seconds to wait before the next attempt; raises the error where there is to be none."""
        self._failed += 1
        if self._failed >= ATTEMPTS or not self._may_be_sent_again(error):
            if self.unknown and isinstance(error, Unreachable):
                raise Interrupted(str(error), [], 1) from error
            raise error
        self.unknown |= error.status in UNKNOWN if isinstance(error, Refused) else isinstance(error, Interrupted)
        return pause_of(error.problem) if isinstance(error, Refused) else backoff(self._failed)

    def start_pause(self, error: ClientError) -> float | None:
        """Seconds to wait for a service that is starting; None where it is not that, or has taken too long."""
        if not isinstance(error, Refused) or error.problem.get("type") != NOT_READY or self._waited >= START_SECONDS:
            return None
        pause = max(pause_of(error.problem), 0.25)
        self._waited += pause
        return pause

    def _may_be_sent_again(self, error: ClientError) -> bool:
        if isinstance(error, Refused):
            return may_be_sent_again(error, self.repeatable)
        return self._patient if isinstance(error, Unreachable) else self.repeatable


def may_be_sent_again(refused: Refused, repeatable: bool) -> bool:
    """Whether another attempt may fare better and does no harm."""
    return refused.status in NOT_TAKEN or (repeatable and refused.status in UNKNOWN)


def pause_of(problem: Answer) -> float:
    """Seconds that the service asked for, bounded."""
    asked = problem.get("retry_after")
    return float(min(asked, MAX_PAUSE)) if isinstance(asked, (int, float)) and asked >= 0 else 1.0


def backoff(attempt: int) -> float:
    """Seconds before another attempt when nobody said how long."""
    return float(min(0.25 * 2**attempt, MAX_PAUSE))
