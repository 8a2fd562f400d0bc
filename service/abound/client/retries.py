"""The retry policy of the clients: which requests are repeated, and after which pause.

* A request refused with 429 or 503, or one that never reached the service, was not processed. It is sent again.
* An interrupted request, or one refused with 502 or 504, may have been processed. It is sent again only if it is
  repeatable: it only reads, is idempotent, or carries idempotency keys. An interrupted learn request without keys is
  never sent twice.
* After such an attempt, a later attempt that never reaches the service ends as Interrupted, not as Unreachable.
* Streams and followed jobs wait for a service that reports that it is starting. Its start takes as long as it has
  state to load and log to replay, so the seconds of waiting are bounded, not the attempts.
* A request over a rate (429) waits as long as the service asks, and the seconds are bounded as well. It fails at once
  if the service asks for more.
* A single request to a service that has never answered fails at once: a wrong URL is more likely than a restart.
"""

from __future__ import annotations

from abound.client.errors import ClientError, Interrupted, Refused, Unreachable

ATTEMPTS = 6
"""Number of attempts after which a request has failed."""

MAX_PAUSE = 10.0
"""Longest pause before another attempt, in seconds, unless a rate is exceeded."""

MAX_WAIT = 120.0
"""Longest wait for a service that reports that it is not ready, or for a rate, as the sum of the pauses."""

MIN_WAIT = 0.25
"""Shortest pause of such a wait, in seconds."""

RATE_EXCEEDED = 429
NOT_TAKEN = (RATE_EXCEEDED, 503)
NOT_READY = "/problems/not-ready"
OUTCOME_UNKNOWN = (502, 504)


class Attempts:
    """The attempts at one request.

    Parameters
    ----------
    repeatable : bool
        Whether the request may be processed twice.
    patient : bool
        Whether to retry while the service cannot be reached.

    Attributes
    ----------
    outcome_unknown : bool
        An earlier attempt may have been processed; its answer was lost.
    """

    def __init__(self, repeatable: bool, patient: bool = True) -> None:
        self.repeatable = repeatable
        self.outcome_unknown = False
        self._patient = patient
        self._failed = 0
        self._waited = 0.0

    def reset(self) -> None:
        """Reset the counters, since part of the request was answered."""
        self._failed = 0
        self._waited = 0.0

    def pause_after(self, error: ClientError) -> float:
        """Return the seconds to wait before the next attempt, or raise the error if there is none left."""
        if isinstance(error, Refused) and error.status == RATE_EXCEEDED:
            pause = max(requested_pause(error), MIN_WAIT)
            if pause > MAX_WAIT - self._waited:
                raise error
            self._waited += pause
            return pause
        self._failed += 1
        if self._failed >= ATTEMPTS or not self._is_retryable(error):
            if self.outcome_unknown and isinstance(error, Unreachable):
                raise Interrupted(str(error), [], 1) from error
            raise error
        self.outcome_unknown |= (
            error.status in OUTCOME_UNKNOWN if isinstance(error, Refused) else isinstance(error, Interrupted)
        )
        return requested_pause(error) if isinstance(error, Refused) else backoff(self._failed)

    def start_pause(self, error: ClientError) -> float | None:
        """Return the seconds to wait for a starting service. None if it is not starting, or takes too long."""
        if not isinstance(error, Refused) or error.problem.get("type") != NOT_READY or self._waited >= MAX_WAIT:
            return None
        pause = max(requested_pause(error), MIN_WAIT)
        self._waited += pause
        return pause

    def _is_retryable(self, error: ClientError) -> bool:
        if isinstance(error, Refused):
            return is_retryable(error, self.repeatable)
        return self._patient if isinstance(error, Unreachable) else self.repeatable


def is_retryable(refused: Refused, repeatable: bool) -> bool:
    """Return whether a refused request can succeed later and is safe to repeat."""
    return refused.status in NOT_TAKEN or (repeatable and refused.status in OUTCOME_UNKNOWN)


def requested_pause(error: Refused) -> float:
    """Return the pause that the service asks for, in seconds, at most ``MAX_PAUSE`` unless a rate is exceeded."""
    asked = error.problem.get("retry_after")
    pause = asked if isinstance(asked, (int, float)) and asked >= 0 else 1.0
    return pause if error.status == RATE_EXCEEDED else min(pause, MAX_PAUSE)


def backoff(attempt: int) -> float:
    """Return the exponential pause before the next attempt, in seconds, at most ``MAX_PAUSE``."""
    return float(min(0.25 * 2**attempt, MAX_PAUSE))
