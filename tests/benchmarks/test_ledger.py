"""The reckoning of `python -m benchmarks.faults` finds nothing where nothing is wrong, and everything else."""

import dataclasses

from abound.log.append_group import LearnDraft
from benchmarks.faults.clients import Acknowledged
from benchmarks.faults.ledger import LostTail, examine
from tests.support.fixtures import StartReplica
from tests.support.streams import record
from tests.support.valkey import Server

EVENTS = 30


async def told(server: Server, start_replica: StartReplica) -> dict[str, Acknowledged]:
    replica = await start_replica(server)
    said = {}
    for i in range(EVENTS):
        label = f"event/{i}"
        draft = LearnDraft(record(f'{{"a{i % 7}": 1, "{label}": 1}}', f"label {i % 3}", label), 1, label, b"body")
        [one] = await replica.learn("default", [draft])
        said[label] = Acknowledged(label, str(one.offset), one.ranks[0] or None, one.updated[0], "log", i, i + 0.5)
    return said


async def test_the_ledger_agrees_with_a_service_that_keeps_its_word(server, start_replica):
    findings = await examine(server.url, await told(server, start_replica), [])
    assert findings.good
    assert (findings.learned, findings.repeated) == (EVENTS, 0)


async def test_the_ledger_notices_what_is_lost_doubled_or_told_otherwise(server, start_replica):
    said = await told(server, start_replica)
    replica = await start_replica(server)
    again = LearnDraft(record('{"event/3": 1}', "label 0", "event/3"), 1, "another key", b"body")
    await replica.learn("default", [again])
    said["event/5"] = dataclasses.replace(said["event/5"], rank=17)
    said["event/6"] = dataclasses.replace(said["event/6"], offset=said["event/7"].offset)
    log = replica.model("default").keys.log
    await replica.store.client.xdel(log, said["event/9"].offset.partition(".")[0])
    findings = await examine(server.url, said, [])
    assert [line.partition(":")[0] for line in findings.lost] == ["event/9"]
    assert [line.partition(":")[0] for line in findings.twice] == ["event/3"]
    assert [line.partition(":")[0] for line in findings.otherwise][:2] == ["event/5", "event/6"]
    assert not findings.good
    tail = LostTail(said["event/8"].offset.partition(".")[0], 20.0)
    excused = await examine(server.url, said, [tail])
    assert (excused.lost, excused.excused) == ([], 1)
    early = LostTail(said["event/8"].offset.partition(".")[0], 5.0)
    assert len((await examine(server.url, said, [early])).lost) == 1
