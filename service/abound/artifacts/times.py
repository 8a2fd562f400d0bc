"""Times of the artifact store, which relate to one another.

A request to a silent store is refused within 2 * PATIENCE_SECONDS. A process that can work without the store waits
less: JOIN_SECONDS < PATIENCE_SECONDS. A write mark is renewed ten times before it expires, and it has expired long
before the unfinished file of a dead writer is deleted: WRITING_SECONDS < UNFINISHED_SECONDS.
"""

from __future__ import annotations

JOIN_SECONDS = 3.0  # longest wait for one attempt to reach the store
PATIENCE_SECONDS = 5.0  # timeout in processes that answer requests or serve many models; a silent store takes two of it
WRITING_SECONDS = 600.0  # expiry of a write mark
UNFINISHED_SECONDS = 3600.0  # an unfinished file of this age has no writer any more
