"""T1: applying a delta gives the next snapshot, and composed deltas do what they do in turn."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from timeloom.graph.delta import Delta, apply, compose_all, diff, ones_if_none
from timeloom.graph.keys import Float64s, Int64s, KeyLayout

LAYOUT = KeyLayout()
WEIGHTS = st.sampled_from([1.0, 2.0, -1.5, 0.25, 1e300])
SNAPSHOT = st.dictionaries(st.integers(0, 12) | st.integers(0, 2**62), WEIGHTS, max_size=14)


def arrays(edges: dict[int, float], *, plain: bool = False) -> tuple[Int64s, Float64s | None]:
    keys = np.array(sorted(edges), np.int64)
    return keys, None if plain else np.array([edges[key] for key in sorted(edges)])


def as_dict(keys: Int64s, weights: Float64s | None) -> dict[int, float]:
    return dict(zip(keys.tolist(), ones_if_none(keys, weights).tolist(), strict=True))


def changes(delta: Delta) -> dict[int, tuple[float, float]]:
    return dict(zip(delta.keys.tolist(), zip(delta.old.tolist(), delta.new.tolist(), strict=True), strict=True))


@given(SNAPSHOT, SNAPSHOT)
def test_a_delta_makes_the_next_snapshot_of_the_one_before(a: dict[int, float], b: dict[int, float]) -> None:
    delta = diff(*arrays(a), *arrays(b), LAYOUT)
    assert as_dict(*apply(*arrays(a), delta)) == b
    expected = {k: (a.get(k, 0.0), b.get(k, 0.0)) for k in a.keys() | b.keys() if a.get(k) != b.get(k)}
    assert changes(delta) == expected
    assert (np.diff(delta.keys) > 0).all()


@given(SNAPSHOT, SNAPSHOT)
def test_snapshots_without_weights_need_none(a: dict[int, float], b: dict[int, float]) -> None:
    plain_a, plain_b = dict.fromkeys(a, 1.0), dict.fromkeys(b, 1.0)
    delta = diff(*arrays(a, plain=True), *arrays(b, plain=True), LAYOUT)
    assert changes(delta) == changes(diff(*arrays(plain_a), *arrays(plain_b), LAYOUT))
    keys, weights = apply(*arrays(a, plain=True), delta)
    assert weights is None
    assert set(keys.tolist()) == set(b)


@given(st.lists(SNAPSHOT, min_size=1, max_size=6))
def test_composed_deltas_are_the_difference_of_first_and_last(chain: list[dict[int, float]]) -> None:
    deltas = [diff(*arrays(a), *arrays(b), LAYOUT) for a, b in pairwise(chain)]
    assert changes(compose_all(deltas, LAYOUT)) == changes(diff(*arrays(chain[0]), *arrays(chain[-1]), LAYOUT))


def test_a_delta_larger_than_an_eighth_of_the_snapshots_is_found_whole() -> None:
    a, b = np.arange(0, 40_000, 2), np.arange(1, 40_000, 2)
    assert len(diff(a, None, b, None, LAYOUT)) == 40_000
    assert len(diff(a, np.ones(len(a)), b, np.ones(len(b)), LAYOUT)) == 40_000


def test_a_delta_names_the_ends_of_its_edges() -> None:
    layout = KeyLayout(node_bits=20, type_bits=8)
    keys = layout.pack(np.array([3]), np.array([7]), np.array([5]))
    delta = Delta(layout, keys, np.zeros(1), np.ones(1))
    assert (delta.sources[0], delta.targets[0], delta.types[0], len(delta)) == (3, 7, 5, 1)
