import msgspec

from abound.state import schedule
from abound.state.snapshots import SnapshotParams
from tests.support.lab import Lab, events


async def test_a_snapshot_of_the_future_does_not_put_off_the_next_one(lab: Lab) -> None:
    """The store's clock was set back since."""
    await lab.append(*events(10))
    made, keys, params = await lab.snapshot(), (await lab.living()).keys, SnapshotParams(every_seconds=600.0)
    await lab.append(*events(10, 2))
    assert await schedule.why_due(lab.store, keys, made, params) is None
    later = msgspec.structs.replace(made, created=made.created + 3_600_000)
    assert await schedule.why_due(lab.store, keys, later, params) is not None
