"""Pieces of work run where the caller says."""

from abound_core.methods.training.parallel import executed_by, is_distributed, spread


class Backwards:
    """An executor that keeps what it was given, and runs the pieces from the last to the first."""

    shares_memory = False

    def __init__(self) -> None:
        self.pieces: list[tuple[int, ...]] = []

    def map(self, work, pieces, told):  # type: ignore[no-untyped-def]
        self.pieces += pieces
        return [work(*piece) for piece in reversed(pieces)][::-1]


def test_pieces_run_on_the_executor_of_the_caller_and_on_threads_otherwise():
    told: list[int] = []
    executor = Backwards()
    with executed_by(executor):
        assert is_distributed()
        assert spread(lambda a, b: a - b, [(1, 2), (5, 3)], told.append) == [-1, 2]
    assert executor.pieces == [(1, 2), (5, 3)]
    assert told == []
    assert not is_distributed()
    assert spread(lambda a, b: a - b, [(1, 2), (5, 3)], told.append) == [-1, 2]
    assert told == [0, 1]
    assert len(executor.pieces) == 2
