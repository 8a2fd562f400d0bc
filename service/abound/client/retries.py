"""The retry policy of the clients: which requests are repeated, and after which pause.

A request refused with 429 or 503, or one that never reached the service, was not processed and is sent again. An
interrupted request, or one refused with 502 or 504, may have been processed. It is sent again only if it is repeatable:
it only reads, is idempotent, or carries idempotency keys.
"""

from __future__ import annotations

from abound.client.errors import ClientError, Interrupted, Refused, Unreachable

ATTEMPTS = 6  # the last one fails the request
MAX_PAUSE = 10.0  # longest, in seconds, before another attempt, unless a rate is exceeded
MAX_WAIT = 120.0  # seconds of all pauses for a service that is not ready, or for a rate
MIN_WAIT = 0.25  # seconds of such a pause
RATE_EXCEEDED = 429
NOT_TAKEN = (RATE_EXCEEDED, 503)
NOT_READY = "/problems/not-ready"
OUTCOME_UNKNOWN = (502, 504)


class Attempts:
    """The attempts at one request. ``repeatable``: it may be processed twice. ``patient``: retry if nothing answers."""

    def __init__(self, repeatable: bool, patient: bool = True) -> None:
        self.repeatable = repeatable
        self.outcome_unknown = False  # an earlier attempt may have been processed, and its answer was lost
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
            # Wait as long as the service asks, or fail at once if that is too long.
            pause = max(requested_pause(error), MIN_WAIT)
            if pause > MAX_WAIT - self._waited:
                raise error
            self._waited += pause
            return pause
        self._failed += 1
        if self._failed >= ATTEMPTS or not self._is_retryable(error):
            if self.outcome_unknown and isinstance(error, Unreachable):
                # An earlier attempt may have been processed: Unreachable would deny it.
                raise Interrupted(str(error), [], 1) from error
            raise error
        self.outcome_unknown |= (
            error.status in OUTCOME_UNKNOWN if isinstance(error, Refused) else isinstance(error, Interrupted)
        )
        return requested_pause(error) if isinstance(error, Refused) else backoff(self._failed)

    def start_pause(self, error: ClientError) -> float | None:
        """Return the seconds to wait for a starting service. None if it is not starting, or takes too long."""
        # A start takes as long as there is log to replay, so the seconds are bounded, not the attempts.
        if not isinstance(error, Refused) or error.problem.get("type") != NOT_READY or self._waited >= MAX_WAIT:
            return None
        pause = max(requested_pause(error), MIN_WAIT)
        self._waited += pause
        return pause

    def _is_retryable(self, error: ClientError) -> bool:
        if isinstance(error, Refused):
            return is_retryable(error, self.repeatable)
        # Not patient: the service has never answered, and a wrong URL is more likely than a restart.
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
    return float(min(0.25 * 2**attempt, MAX_PAUSE))
