"""What is said of an edge over time equals what its events say, window by window, in blocks of any size."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from timeloom.graph.ingest.history import Changes, Contributions, Follower, Policy, keeps_tail
from timeloom.graph.ingest.order import sort_rows
from timeloom.graph.ingest.spill import Columns

WEIGHTS = st.sampled_from([1.0, 2.0, -1.0, 0.0, 4.0, -3.0])
EVENTS = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 7), WEIGHTS), max_size=24)
END = 8


def rows_of(events: list[tuple[int, int, float]], *, first: int = 0) -> Columns:
    rows: Columns = {
        "key": np.array([key for key, _, _ in events], np.int64),
        "window": np.array([window for _, window, _ in events], np.int32),
        "time": np.array([100 * window + place for place, (_, window, _) in enumerate(events)], np.int64),
        "weight": np.array([weight for _, _, weight in events], np.float64),
    }
    return sort_rows(rows, ["key", "time"])


def follow(follower: Follower, rows: Columns, cuts: list[int]) -> list[tuple[int, int, float, float]]:
    """Return all changes as (t, key, old, new), the rows given in blocks cut at ``cuts``."""
    parts: list[Changes] = []
    bounds = sorted({0, len(rows["key"]), *(cut for cut in cuts if cut < len(rows["key"]))})
    for low, high in pairwise(bounds):
        parts.append(follower.follow({name: column[low:high] for name, column in rows.items()}))
    parts.append(follower.end())
    found = [change for part in parts for change in zip(*(column.tolist() for column in part), strict=True)]
    assert [(key, t) for t, key, _, _ in found] == sorted((key, t) for t, key, _, _ in found), "not in order of edge"
    return found


def weight_at(t: int, events: list[tuple[int, float]], life: int, policy: Policy) -> float:
    """Return the weight of an edge at t from its (window, weight) events in order of time."""
    counting = [weight for window, weight in events if window <= t and (life == 0 or window > t - life)]
    if not counting:
        return 0.0
    value = {
        Policy.sum: sum(counting), Policy.count: float(len(counting)), Policy.last: counting[-1],
        Policy.mean: sum(counting) / len(counting), Policy.max: max(counting),
    }  # fmt: skip
    return value[policy]


def changes_of(
    events: list[tuple[int, int, float]], life: int, policy: Policy, first: int = 0
) -> list[tuple[int, int, float, float]]:
    found = []
    for key in sorted({key for key, _, _ in events}):
        mine = sorted(((100 * w + place, w, x) for place, (k, w, x) in enumerate(events) if k == key))
        pairs = [(window, weight) for _, window, weight in mine]
        before = weight_at(first - 1, pairs, life, policy)
        for t in range(first, END):
            now = weight_at(t, pairs, life, policy)
            if now != before:
                found.append((t, key, before, now))
            before = now
    return found


@given(EVENTS, st.sampled_from([0, 1, 2, 3, 20]), st.sampled_from(Policy), st.lists(st.integers(0, 24), max_size=4))
def test_changes_equal_the_weights_counted_one_by_one(
    events: list[tuple[int, int, float]], life: int, policy: Policy, cuts: list[int]
) -> None:
    follower = Follower(policy, life=life, operations=False, first=0, end=END)
    assert follow(follower, rows_of(events), cuts) == changes_of(events, life, policy)
    assert follower.counts.groups == len({(key, window) for key, window, _ in events})


@given(
    EVENTS,
    st.sampled_from([0, 1, 2, 3, 20]),
    st.sampled_from(Policy),
    st.integers(1, 7),
    st.lists(st.integers(0, 24), max_size=3),
)
def test_going_on_from_the_tail_equals_never_having_stopped(
    events: list[tuple[int, int, float]], life: int, policy: Policy, stop: int, cuts: list[int]
) -> None:
    early = [event for event in events if event[1] < stop]
    first = Follower(policy, life=life, operations=False, first=0, end=stop)
    follow(first, rows_of(early), cuts)
    tail = first.take_kept() if keeps_tail(policy, life, False) else _tail_of(early, stop, life, policy)
    late = [(key, window, weight) for key, window, weight in events if window >= stop]
    follower = Follower(policy, life=life, operations=False, first=stop, end=END, tail=tail)
    # Both parts keep their order of time, so rows_of numbers them alike.
    found = follow(follower, rows_of(late), cuts)
    assert found == changes_of(early + late, life, policy, stop)


def _tail_of(early: list[tuple[int, int, float]], stop: int, life: int, policy: Policy) -> Contributions:
    """Return the last snapshot as contributions, which is all that a life of one window, or most endless ones, need."""
    in_order = sorted(early, key=lambda event: event[1])
    weights = {
        key: weight_at(stop - 1, [(w, x) for k, w, x in in_order if k == key], life, policy) for key, _, _ in early
    }
    keys = sorted(key for key, weight in weights.items() if weight)
    value = np.array([weights[key] for key in keys], np.float64)
    return Contributions(
        np.array(keys, np.int64), np.full(len(keys), stop - 1 if life else -1), value, np.ones(len(keys), np.int64)
    )


@given(EVENTS, st.lists(st.integers(0, 24), max_size=4))
def test_operations_set_and_remove_edges_in_order_of_time(
    events: list[tuple[int, int, float]], cuts: list[int]
) -> None:
    follower = Follower(Policy.last, life=0, operations=True, first=0, end=END)
    assert follow(follower, rows_of(events), cuts) == changes_of(events, 0, Policy.last)
    idle = moved = vanished = 0
    for key in range(4):
        now = 0.0
        for window in range(END):
            opened, changed = now, False
            for k, w, weight in events:
                if (k, w) == (key, window):
                    idle, moved, changed = idle + (weight == now), moved + (weight != now), changed or weight != now
                    now = weight
            vanished += changed and now == opened
    assert (follower.counts.idle, follower.counts.moved, follower.counts.vanished) == (idle, moved, vanished)


def test_the_order_of_rows_decides_between_events_of_one_time_and_that_is_counted() -> None:
    rows: Columns = {
        "key": np.zeros(3, np.int64), "window": np.zeros(3, np.int32), "time": np.array([5, 5, 5]),
        "weight": np.array([1.0, 3.0, 2.0]),
    }  # fmt: skip
    follower = Follower(Policy.last, life=1, operations=False, first=0, end=1)
    follower.follow(rows)
    assert follower.end().new.tolist() == [2.0]
    assert follower.counts.ties == 2


@pytest.mark.parametrize("cut", [1, 2, 3])
def test_a_window_cut_by_the_end_of_a_block_is_one_contribution(cut: int) -> None:
    rows: Columns = {
        "key": np.zeros(4, np.int64), "window": np.zeros(4, np.int32), "weight": np.array([1.0, 2.0, 3.0, 5.0])
    }  # fmt: skip
    for policy, expected in ((Policy.sum, 11.0), (Policy.count, 4.0), (Policy.mean, 2.75), (Policy.max, 5.0)):
        follower = Follower(policy, life=1, operations=False, first=0, end=1)
        assert follow(follower, rows, [cut]) == [(0, 0, 0.0, expected)]
        assert follower.counts.groups == 1
