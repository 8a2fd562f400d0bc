"""Drift marks: found where the score changes, seldom elsewhere, and not lost when the detector is made anew."""

import msgspec
import numpy as np

from abound.service.versions.promotion.drift import BLOCK_SIZE, LONGEST, MARKS, Detector, Drift


def feed(detector: Detector, n: int, chance: float, seed: int, first: int = 0) -> None:
    ranks = np.where(np.random.default_rng(seed).random(n) < chance, 1, 3)
    for i, rank in enumerate(ranks.tolist(), first + 1):
        detector.note(rank, f"{i}-0.0", i)


def test_marks_a_fall_soon_and_says_how_far() -> None:
    detector = Detector(Drift())
    feed(detector, 8000, 0.7, 1)
    assert detector.drift.marks == []
    feed(detector, 4000, 0.3, 2, 8000)
    first = {mark.measure: mark for mark in reversed(detector.drift.marks)}
    assert set(first) == {"R@1", "MRR"}
    assert 8000 < first["R@1"].learned < 8700
    assert first["R@1"].offset == f"{first['R@1'].learned}-0.0"
    assert 0.6 < first["R@1"].before < 0.8
    assert first["R@1"].after < first["R@1"].before - 0.1


def test_a_fall_after_a_restore_is_no_part_of_one_before_it() -> None:
    detector = Detector(Drift())
    feed(detector, 8000, 0.8, 1, 20_000)
    feed(detector, 3000, 0.5, 2, 28_000)
    before = detector.drift.marks
    assert before
    feed(detector, 6000, 0.5, 3, 10_000)  # restored: so many had been learned there
    feed(detector, 3000, 0.2, 4, 16_000)
    assert detector.drift.marks[: len(before)] == before
    assert {mark.measure for mark in detector.drift.marks[len(before) :] if mark.learned > 16_000} == {"R@1", "MRR"}


def test_seldom_marks_what_does_not_change() -> None:
    marks = 0
    for seed in range(10):
        detector = Detector(Drift())
        feed(detector, 10_000, 0.5, 100 + seed)
        marks += len(detector.drift.marks)
    assert marks <= 1


def test_made_anew_it_goes_on_as_if_it_had_never_stopped() -> None:
    whole, parts = Detector(Drift()), Detector(Drift())
    for i, chance in enumerate((0.3, 0.6, 0.6, 0.2, 0.2, 0.7)):
        feed(whole, 1500, chance, i, 1500 * i)
        feed(parts, 1500, chance, i, 1500 * i)
        parts = Detector(msgspec.json.decode(msgspec.json.encode(parts.drift), type=Drift))
    assert whole.drift.marks
    assert parts.drift == whole.drift


def test_is_bounded() -> None:
    detector = Detector(Drift())
    for i in range(2 * LONGEST + 10):
        detector._feed("MRR", detector.drift.measures["MRR"], 0.5, "0-0.0", i * BLOCK_SIZE)
    assert len(detector.drift.measures["MRR"].fed) <= LONGEST
    for i in range(4 * MARKS):
        feed(detector, 400, 0.05 if i % 2 else 0.95, i, 5000 * i)
    assert len(detector.drift.marks) == MARKS
