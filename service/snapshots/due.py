"""When a snapshot of a model is due.

* One was requested (key ``snapshot-wanted``, ``service/snapshots/requests.py``), or
* the log has grown by ``every_bytes`` since the newest one, or
* the newest one is ``every_seconds`` old and the log has new entries. Without a snapshot, the model's creation counts.
"""

from __future__ import annotations

from abound.service.log.stream import Trim, trimmed_key
from abound.service.model import replica_status
from abound.service.snapshots import requests
from abound.service.snapshots.snapshots import SnapshotParams
from abound.service.snapshots.state_image import StateManifest
from abound.service.store.client import Store, store_errors
from abound.service.store.keys import ModelKeys


async def why_due(store: Store, keys: ModelKeys, newest: StateManifest | None, params: SnapshotParams) -> str | None:
    """Return why a snapshot is due, given the newest one; None if none is. One round trip while nothing is learned."""
    async with store.client.pipeline(transaction=False) as pipe:
        pipe.get(keys.key("snapshot-wanted"))
        pipe.xlen(keys.log)
        pipe.get(trimmed_key(keys.log))
        pipe.time()
        with store_errors():
            text, n_held, trimmed, (seconds, _) = await pipe.execute()
    asked = requests.parse(text)
    if asked is not None and (newest is None or newest.position.offset < asked):
        return "requested"
    if n_held + Trim.parse(trimmed).n_entries <= (newest.n_entries if newest else 0):
        return None
    made = newest.created if newest else int(keys.incarnation.partition("-")[0])
    age = seconds - made / 1000
    if age > params.every_seconds or age < -1.0:  # negative: the store's clock was set back
        return "the newest is too old"
    sizes = [replica.log_bytes for replica in await replica_status.live_replicas(store, keys)]
    grown = max(sizes, default=0) - (newest.log_bytes if newest else 0)
    return "the log has grown" if grown > params.every_bytes else None
