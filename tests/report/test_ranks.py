"""What the ranks did is counted right: worked out by hand, and against slow obvious versions."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from tests.report.fake import Fake
from timeloom.records import PHASES, Spans
from timeloom.report.log import Parts, read_log
from timeloom.report.ranks import busy_grid, excerpts, imbalance, lanes_of, loads, phase_seconds, spent, working

TWO = (
    Spans(
        rank=0, epoch=0, step=1, began=100.0,
        parts=(("encode", 0.0, 2.0), ("communicate", 1.0, 3.0), ("wait", 4.0, 1.0)),
    ),
    Spans(
        rank=1, epoch=0, step=1, began=100.5,
        parts=(("load", 0.0, 1.0), ("encode", 0.5, 1.5), ("backward", 2.0, 2.0)),
    ),
)  # fmt: skip


def parts_of(*records: Spans) -> Parts:
    parts = Parts()
    for record in records:
        parts.add(record)
    return parts


def test_ranks_are_put_on_one_clock() -> None:
    found = spent(parts_of(*reversed(TWO)))
    assert found.origin == 100.0
    assert found.rank_P.tolist() == [0, 0, 0, 1, 1, 1]
    assert found.start_P.tolist() == [0.0, 1.0, 4.0, 0.5, 1.0, 2.5]


def test_a_part_without_a_time_is_left_out() -> None:
    bad = Spans(rank=0, epoch=0, step=1, began=100.0, parts=(("encode", math.nan, 1.0), ("encode", 0.0, math.nan)))
    assert len(spent(parts_of(bad))) == 0
    assert len(spent(parts_of(*TWO, bad))) == 6


def test_what_is_done_at_the_same_time_is_work_once() -> None:
    work = working(spent(parts_of(*TWO)))
    assert work.seconds_P.tolist() == [2.0, 1.0, 1.0, 2.0], "encode began half way through load"
    steps, load = loads(spent(parts_of(*TWO)), [0, 1])
    assert steps.tolist() == [1]
    assert load.tolist() == [[2.0, 4.0]]
    assert imbalance(load).tolist() == [2.0]


def test_a_rank_with_nothing_to_do_is_infinitely_out_of_balance() -> None:
    assert imbalance(np.array([[1.0, 0.0], [1.0, 1.0]])).tolist() == [math.inf, 1.0]
    # A rank that told nothing of a step did nothing in it.
    alone = Spans(rank=0, epoch=0, step=2, began=110.0, parts=(("encode", 0.0, 1.0),))
    _, load = loads(spent(parts_of(*TWO, alone)), [0, 1])
    assert imbalance(load).tolist() == [2.0, math.inf]


def test_time_by_phase_is_all_time() -> None:
    seconds = phase_seconds(spent(parts_of(*TWO)), [0, 1])
    assert seconds.sum(axis=1).tolist() == [6.0, 4.5]
    assert seconds[0][PHASES.index("communicate")] == 3.0
    odd = Spans(rank=0, epoch=0, step=1, began=0.0, parts=(("think", 0.0, 1.0),))
    assert phase_seconds(spent(parts_of(odd)), [0])[0][PHASES.index("other")] == 1.0


def test_time_by_phase_is_without_the_step_that_compiles() -> None:
    later = Spans(rank=1, epoch=0, step=2, began=110.0, parts=(("recur", 0.0, 0.25),))
    seconds = phase_seconds(spent(parts_of(*TWO, later)), [0, 1])
    assert seconds.sum(axis=1).tolist() == [0.0, 0.25]


def test_the_grid_is_the_share_of_each_bin() -> None:
    width, grid = busy_grid(spent(parts_of(*TWO)), [0, 1], 5)
    assert width == 1.0
    assert grid.tolist() == [[1.0, 1.0, 0.0, 0.0, 0.0], [0.5, 1.0, 1.0, 1.0, 0.5]]


def test_time_that_nobody_told_of_is_neither_busy_nor_idle() -> None:
    late = Spans(rank=0, epoch=0, step=9, began=112.0, parts=(("encode", 0.0, 1.5), ("wait", 1.5, 0.5)))
    width, grid = busy_grid(spent(parts_of(*TWO, late)), [0, 1], 7)
    assert width == 2.0
    np.testing.assert_array_equal(grid[0], [1.0, 0.0, 0.0, np.nan, np.nan, np.nan, 0.75])
    # Of the third bin only the first half is in a step, and rank 1 worked in half of that.
    np.testing.assert_array_equal(grid[1], [0.75, 1.0, 0.5, np.nan, np.nan, np.nan, 0.0])


def test_a_stretch_ends_where_steps_were_left_out() -> None:
    steps = (3, 4, 10, 11, 12)
    told = [Spans(rank=0, epoch=0, step=step, began=float(step), parts=(("encode", 0.0, 0.5),)) for step in steps]
    assert [(one["first"], one["last"]) for one in excerpts(spent(parts_of(*told)), [0])] == [(3, 4), (10, 12)]


def test_the_grid_agrees_with_counting_milliseconds(tmp_path: Path) -> None:
    log = read_log(Fake(ranks=3, epochs=1, steps=4).make(tmp_path / "run"))
    found = spent(log.parts)
    width, grid = busy_grid(found, log.ranks, 7)
    for rank in log.ranks:
        busy = np.zeros(70_000, bool)
        fine = width * 7 / len(busy)
        for place in np.flatnonzero((found.rank_P == rank) & found.computes):
            start, stop = found.start_P[place], found.start_P[place] + found.seconds_P[place]
            busy[int(start / fine) : int(stop / fine)] = True
        np.testing.assert_allclose(grid[rank], busy.reshape(7, -1).mean(axis=1), atol=2e-3)


def test_what_overlaps_lies_in_lanes_of_its_own() -> None:
    assert lanes_of(np.array([0.0, 1.0, 4.0]), np.array([2.0, 3.0, 1.0])) == [0, 1, 0]
    assert lanes_of(np.array([0.0, 1.0]), np.array([1.0 + 1e-6, 1.0])) == [0, 0], "a microsecond is rounding"


@pytest.mark.parametrize("steps", [1, 5, 6, 7, 100])
def test_excerpts_are_whole_steps_from_the_first_to_the_last(tmp_path: Path, steps: int) -> None:
    log = read_log(Fake(epochs=1, steps=steps).make(tmp_path / "run"))
    found = spent(log.parts)
    shown = excerpts(found, log.ranks)
    assert shown[0]["first"] == 1
    assert shown[-1]["last"] == steps
    assert len(shown) <= 8
    for one in shown:
        for row in one["rows"]:
            told = sorted({span[4] for span in row["spans"]})
            assert told == list(range(one["first"], one["last"] + 1))
            assert len(row["spans"]) == 7 * len(told)
            assert all(
                start >= 0 and start + seconds <= one["seconds"] + 1e-5 for _, _, start, seconds, _ in row["spans"]
            )


def test_excerpts_of_many_ranks_stay_small(tmp_path: Path) -> None:
    log = read_log(Fake(ranks=200, epochs=1, steps=30).make(tmp_path / "run"))
    shown = excerpts(spent(log.parts), log.ranks)
    assert sum(len(row["spans"]) for row in shown[0]["rows"]) <= 4_000
    assert shown[0]["last"] - shown[0]["first"] + 1 == 2
