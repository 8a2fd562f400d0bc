"""How long an answer may wait for other parts of the service.

The load balancer gives up on a classify after 20 seconds and on most other requests after 60, as clients do. So the
waits of one request stay below that in sum, also after ARRIVAL_SECONDS of ``replica/model_directory.py`` for a model
that this replica does not know yet: a classify waits for MIN_OFFSET_SECONDS then, a learn for APPLY_SECONDS.
"""

from __future__ import annotations

STORE_WAIT_SECONDS = 1.0  # for facts that only the store has; the rest of an answer is in memory
READ_WAIT_SECONDS = 1.0  # for what other replicas acknowledged, of a request that memory can answer
MIN_OFFSET_SECONDS = 5.0  # until the replica reaches ``min_offset``; a follower lags by milliseconds
APPLY_SECONDS = 10.0  # until the replica has applied what was appended, which is durable by then
