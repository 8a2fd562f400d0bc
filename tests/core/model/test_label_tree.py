"""Parents of labels: what lies below a label, and the parents that are dropped."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from abound_core.config import ModelConfig
from abound_core.errors import Corrupted
from abound_core.instances.record import EMPTY_VECTOR, add_details, pack_labels
from abound_core.limits import Limits
from abound_core.model.entry_application import Unit
from abound_core.model.label_tree import MAX_PATH, LabelTree
from abound_core.model.live_model import LiveModel

CHANGES = st.lists(st.tuples(st.integers(0, 12), st.integers(-1, 12)), max_size=40)


def ancestors(parents: dict[int, int], class_id: int) -> list[int]:
    found = [class_id]
    while found[-1] in parents:
        found.append(parents[found[-1]])
    return found


@settings(max_examples=200)
@given(CHANGES)
def test_a_subtree_is_what_a_walk_of_the_parents_finds(changes):
    tree, parents = LabelTree(), {}
    for class_id, parent in changes:
        tree.put(class_id, parent)
        parents.pop(class_id, None)
        if parent >= 0 and class_id not in ancestors(parents, parent):
            parents[class_id] = parent
        for one in (class_id, parent if parent >= 0 else 0):
            assert (
                sorted(tree.below(one).tolist()) == [i for i in range(13) if one in ancestors(parents, i)] or one > 12
            )
    assert len(tree) == len(parents)
    loaded = LabelTree.from_arrays(tree.to_arrays(13), 13)
    for one in range(13):
        assert tree.path(one) == loaded.path(one) == ancestors(parents, one)[::-1]
        assert loaded.below(one).tolist() == tree.below(one).tolist()
    assert loaded.digest_bytes(13) == tree.digest_bytes(13)


def test_long_chains_have_bounds():
    upwards, downwards = LabelTree(), LabelTree()
    for child in range(100_000):
        upwards.put(child, child + 1)
    for parent in range(2 * MAX_PATH):
        downwards.put(parent + 1, parent)
    assert len(upwards.below(100_000)) == 100_001
    assert upwards.path(0) == list(range(MAX_PATH))[::-1]
    upwards.put(100_000, 0)  # a cycle, longer than a path
    assert upwards.parent(100_000) == -1
    assert downwards.path(MAX_PATH - 1) == list(range(MAX_PATH))
    assert downwards.parent(MAX_PATH) == -1


def registered(live: LiveModel, *parents: tuple[str, str]) -> LiveModel:
    for label, parent in parents:
        details = b'{"parent":"%b"}' % parent.encode() if parent else b"{}"
        record = add_details(EMPTY_VECTOR + pack_labels([label], Limits()), details)
        live.begin(record, 1, [Unit(1)]).finish()
    return live


def test_a_parent_that_would_close_a_cycle_is_dropped_in_log_order():
    live = registered(LiveModel(ModelConfig(), (1, 2)), ("a", "b"), ("b", "c"), ("c", "a"), ("d", "b"), ("e", "e"))
    assert [live.label(i) for i in range(5)] == ["a", "b", "c", "d", "e"]
    below = {label: {live.label(i) for i in live.tree.below(live.labels.find(label.encode()))} for label in "abcde"}
    assert below == {"a": {"a"}, "b": {"a", "b", "d"}, "c": {"a", "b", "c", "d"}, "d": {"d"}, "e": {"e"}}
    loaded = LiveModel.from_arrays(live.meta(), live.to_arrays(), (3, 4))
    assert loaded.digest() == live.digest()
    below_c, none = ["c", "new"], live.with_those_below([])
    assert (live.with_those_below(below_c), none) == ({"a", "b", "c", "d", "new"}, [])
    assert live.with_those_below(["c", "new"]) is live.with_those_below(below_c)
    before = live.digest()
    registered(live, ("b", ""))
    assert live.with_those_below(below_c) == {"c", "new"}
    assert live.digest() != before
    assert live.tree.path(0) == [1, 0]


@pytest.mark.parametrize(
    "parents", [[1, 0, -1], [0, -1, -1], [-1, 5, -1], [-1] * 9], ids=["cycle", "itself", "unknown", "too many"]
)
def test_damaged_parents_are_refused(parents):
    with pytest.raises(Corrupted):
        LabelTree.from_arrays({"parents": np.array(parents, np.int32)}, 3)
