"""The pairs seen so far are the union of the snapshots' pairs, however they were added."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from timeloom.errors import TooLarge
from timeloom.graph.keys import Int64s, KeyLayout
from timeloom.graph.pairs import SeenPairs, find, gathered, merged, pair_keys
from timeloom.graph.snapshot import Snapshot

NUM_NODES = 9
PAIR = st.tuples(st.integers(0, NUM_NODES - 1), st.integers(0, NUM_NODES - 1))
PAIRS = st.sets(PAIR, max_size=20)


def keys_of(pairs: set[tuple[int, int]], num_nodes: int = NUM_NODES) -> Int64s:
    return np.array(sorted(u * num_nodes + v for u, v in pairs), np.int64)


def snapshot_of(edges: set[tuple[int, int, int]], layout: KeyLayout, num_nodes: int = NUM_NODES) -> Snapshot:
    columns = [np.array([edge[place] for edge in sorted(edges)], np.int64) for place in range(3)]
    keys = np.sort(layout.pack(columns[0], columns[1], columns[2]))
    return Snapshot(0, num_nodes, layout, keys, None, np.ones(num_nodes, np.bool_))


@given(st.sets(st.tuples(st.integers(0, 8), st.integers(0, 8), st.integers(0, 3))), st.booleans())
def test_a_snapshots_pairs_are_its_edges_without_types_by_source(edges: set[tuple[int, int, int]], typed: bool) -> None:
    layout = KeyLayout(node_bits=20, type_bits=8 if typed else 0)
    edges = edges if typed else {(u, v, 0) for u, v, _ in edges}
    assert pair_keys(snapshot_of(edges, layout)).tolist() == keys_of({(u, v) for u, v, _ in edges}).tolist()


@given(st.lists(PAIRS, max_size=12), st.booleans())
def test_seen_pairs_are_the_union_of_what_was_added(added: list[set[tuple[int, int]]], asked_each_time: bool) -> None:
    seen, expected = SeenPairs(NUM_NODES), set[tuple[int, int]]()
    everything = np.arange(NUM_NODES**2)[::-1]
    for pairs in added:
        seen.add(keys_of(pairs))
        expected |= pairs
        contained = seen.contains(everything)
        assert everything[contained][::-1].tolist() == keys_of(expected).tolist()
        if asked_each_time:
            assert len(seen) == len(expected)
    assert seen.keys.tolist() == keys_of(expected).tolist()
    assert len(seen) == len(expected)
    starts, ends = seen.of_source(np.arange(NUM_NODES))
    for u in range(NUM_NODES):
        targets = seen.keys[starts[u] : ends[u]] - u * NUM_NODES
        assert targets.tolist() == sorted(v for source, v in expected if source == u)


@given(PAIRS, PAIRS)
def test_merged_keys_are_the_union(a: set[tuple[int, int]], b: set[tuple[int, int]]) -> None:
    assert merged(keys_of(a), keys_of(b)).tolist() == keys_of(a | b).tolist()


@given(PAIRS, st.lists(st.integers(0, 80)))
def test_a_wanted_key_is_found_at_its_place(pairs: set[tuple[int, int]], wanted: list[int]) -> None:
    keys = keys_of(pairs)
    places, found = find(keys, np.array(wanted, np.int64))
    assert found.tolist() == [key in set(keys.tolist()) for key in wanted]
    assert keys[places[found]].tolist() == [key for key in wanted if key in set(keys.tolist())]


@given(st.lists(st.tuples(st.integers(0, 10), st.integers(0, 10)), max_size=5))
def test_gathered_ranges_follow_one_another(ranges: list[tuple[int, int]]) -> None:
    keys = np.arange(100, 110)
    bounds = np.array([sorted(each) for each in ranges], np.int64).reshape(-1, 2)
    expected = [key for low, high in bounds.tolist() for key in keys[low:high].tolist()]
    assert gathered(keys, bounds[:, 0], bounds[:, 1]).tolist() == expected


def test_what_was_added_is_left_as_it_was() -> None:
    first, second = np.array([1, 5]), np.array([2, 5])
    seen = SeenPairs(3)
    seen.add(first)
    seen.add(second)
    assert seen.keys.tolist() == [1, 2, 5]
    assert (first.tolist(), second.tolist()) == ([1, 5], [2, 5])


def test_many_small_snapshots_are_merged_a_logarithmic_number_of_times(monkeypatch: pytest.MonkeyPatch) -> None:
    moved: list[int] = []

    def counted(a: Int64s, b: Int64s) -> Int64s:
        moved.append(len(a) + len(b))
        return merged(a, b)

    monkeypatch.setattr("timeloom.graph.pairs.merged", counted)
    num_snapshots = 1023
    seen = SeenPairs(num_snapshots)
    rng = np.random.default_rng(0)
    for part in rng.permutation(num_snapshots**2).reshape(num_snapshots, -1)[:, :16]:
        seen.add(np.sort(part))
    assert len(seen) == 16 * num_snapshots
    # Ten doublings lead from 16 keys to all of them; asking for all merges what is left, at most twice as much again.
    assert sum(moved) <= 16 * num_snapshots * 12


def test_the_largest_keys_fit_and_more_nodes_are_refused() -> None:
    most = 2**31 - 1
    seen = SeenPairs(most)
    last = np.array([most**2 - 1])
    seen.add(last)
    assert seen.contains(last).all()
    assert [int(place[0]) for place in seen.of_source(np.array([most - 1]))] == [0, 1]
    layout = KeyLayout()
    keys = layout.pack(np.array([most - 1]), np.array([most - 1]))
    assert pair_keys(Snapshot(0, most, layout, keys, None, np.ones(1, np.bool_))).tolist() == last.tolist()
    with pytest.raises(TooLarge, match="2147483648 nodes do not fit"):
        SeenPairs(2**31)
    with pytest.raises(TooLarge, match="2147483648 nodes do not fit"):
        pair_keys(Snapshot(0, 2**31, layout, keys, None, np.ones(1, np.bool_)))


@pytest.mark.parametrize("keys", [[1, 1], [2, 1], [9], [-1, 3]])
def test_keys_that_are_no_sorted_pairs_of_this_graph_are_our_own_mistake(keys: list[int]) -> None:
    with pytest.raises(AssertionError):
        SeenPairs(3).add(np.array(keys))
