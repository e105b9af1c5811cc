"""What groups save together is what their union's chain saves, counted from what really changes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from timeloom.errors import BadConfig
from timeloom.graph.dynamic import DynamicGraph, open_graph
from timeloom.graph.sizes import sizes_of
from timeloom.graph.synth import Drift, synth
from timeloom.plan.cost import KERNELS, Costs, Law
from timeloom.plan.encoding import encoding_of, spreads_of
from timeloom.plan.machine import BUILT_IN
from timeloom.plan.reuse import (
    Changes,
    Encoding,
    GroupTimes,
    Spreads,
    Way,
    changes_of,
    changes_of_sizes,
    group_times,
    head_of,
    measured,
)


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> DynamicGraph:
    path: Path = tmp_path_factory.mktemp("graphs") / "drifting"
    synth(Drift(num_nodes=120, num_edges=400, num_snapshots=9, turnover=0.2, seed=4), path)
    return open_graph(path)


def rows(graph: DynamicGraph, t: int, spreads: Spreads, hops: int) -> list[tuple[object, ...]]:
    """Return what each node's row is made of after so many hops, as something that can be compared."""
    snapshot = graph.snapshot(t)
    sources, targets = snapshot.sources.tolist(), snapshot.targets.tolist()
    inward = np.bincount(snapshot.targets, snapshot.weights, graph.num_nodes)
    outward = np.bincount(snapshot.sources, snapshot.weights, graph.num_nodes)
    degrees = {"none": [], "in": [inward], "both": [inward, outward]}[spreads]
    told: list[tuple[object, ...]] = [(v, *(float(one[v]) for one in degrees)) for v in range(graph.num_nodes)]
    for _ in range(hops):
        heard: list[list[object]] = [[] for _ in range(graph.num_nodes)]
        for u, v, w in zip(sources, targets, snapshot.weights.tolist(), strict=True):
            heard[v].append((u, w, told[u]))
        told = [(told[v], tuple(sorted(map(repr, heard[v])))) for v in range(graph.num_nodes)]
    return told


@pytest.mark.parametrize("hops", [1, 2])
@pytest.mark.parametrize("spreads", ["none", "in", "both"])
def test_rows_that_change_are_those_that_are_made_of_something_else(
    graph: DynamicGraph, spreads: Spreads, hops: int
) -> None:
    """SPEC 3.5: the dirty rows, counted here from the deltas, there by comparing what every row is made of."""
    found = changes_of(graph, len(graph), spreads=spreads, hops=hops)
    before = rows(graph, 0, spreads, hops)
    assert found.rows_T[0] == graph.num_nodes
    for t in range(1, len(graph)):
        after = rows(graph, t, spreads, hops)
        dirty = [v for v in range(graph.num_nodes) if before[v] != after[v]]
        degrees = np.bincount(graph.snapshot(t).targets, minlength=graph.num_nodes)
        assert (found.rows_T[t], found.heard_T[t]) == (len(dirty), degrees[dirty].sum()), t
        before = after
    assert found.edges_T.tolist() == [len(graph.snapshot(t).keys) for t in range(len(graph))]


def test_only_a_part_of_a_graph_is_asked_for(graph: DynamicGraph) -> None:
    whole, part = (changes_of(graph, last, spreads="in") for last in (9, 5))
    for name in ("edges_T", "rows_T", "heard_T", "entries_T"):
        assert getattr(part, name).tolist() == getattr(whole, name)[:5].tolist()
    assert head_of(whole, 5).rows_T.tolist() == part.rows_T.tolist()


def made_up(count: int) -> Changes:
    rng = np.random.default_rng(0)
    edges = rng.integers(40_000, 60_000, count)
    changed = rng.integers(100, 900, count)
    changed[0] = 10_000
    return Changes(num_nodes=10_000, edges_T=edges, rows_T=changed, heard_T=5 * changed, entries_T=2 * changed)


@pytest.mark.parametrize(("length", "stride", "way"), [(4, 1, "versions"), (6, 2, "delta"), (5, 4, "versions")])
def test_what_a_pair_saves_is_what_its_unions_chain_saves(length: int, stride: int, way: Way) -> None:
    """SPEC section 5: t(i) + t(j) - t(union), the union being the same chain as one longer group."""
    changes, encoding = made_up(20), Encoding()
    times = group_times(changes, length=length, stride=stride, encoding=encoding, costs=BUILT_IN, ways=(way,))
    assert times.reuse_KB.shape == (len(range(0, 20 - length + 1, stride)), (length - 1) // stride)
    assert (times.reuse_KB[0] > 0).all()
    for d in range(1, times.reuse_KB.shape[1] + 1):
        longer = group_times(
            changes, length=length + d * stride, stride=stride, encoding=encoding, costs=BUILT_IN, ways=(way,)
        )
        for i in range(len(longer.shared_K)):
            union = times.shared_K[i] + times.shared_K[i + d] - times.reuse_KB[i, d - 1]
            assert union == pytest.approx(longer.shared_K[i])


def test_times_by_hand() -> None:
    """A row that is summed costs 1, an edge 10, a gathered row nothing; groups of two snapshots of 4 nodes.

    Whole, the snapshots cost (4 + 10 e) twice, forward and backward, with 3, 5 and 4 edges 68, 108 and 88; what
    changes 2 (1 + 10 * 2) = 42 and 2 (2 + 10 * 1) = 24. So groups take 68 + 42 and 108 + 24, together 68 + 42 + 24.
    """
    free = Law((0.0,) * 5, (0.0,) * 5)
    laws = {"sum": Law((0.0, 1.0, 0.0, 10.0, 0.0), (0.0,) * 5)}
    costs = Costs({kernel: laws.get(kernel, free) for kernel in KERNELS}, threads=1)
    changes = Changes(
        num_nodes=4, edges_T=np.array([3, 5, 4]), rows_T=np.array([4, 1, 2]), heard_T=np.array([3, 2, 1]),
        entries_T=np.array([3, 2, 1]),
    )  # fmt: skip
    told = group_times(changes, length=2, stride=1, encoding=Encoding(sum_widths=(8,)), costs=costs, ways=("versions",))
    assert told.seconds_K.tolist() == told.shared_K.tolist() == [110.0, 132.0]
    assert told.reuse_KB.tolist() == [[108.0], [0.0]]
    whole = group_times(changes, length=2, stride=1, encoding=Encoding(sum_widths=(8,)), costs=costs, ways=("full",))
    assert whole.seconds_K.tolist() == [176.0, 196.0]


def test_eq_17_of_real_is_right_for_neighbours_only() -> None:
    """Where every snapshot costs 1 to add and the first one 1 too, groups of 4 save 4 - d; Eq. 17 sums 3, 2, 1 from
    i + 1: the right number of snapshots, but not the common ones."""
    cost = np.array([1.0, 1.0, 1.0, 1.0, 100.0, 1.0])

    def eq_17(i: int, j: int, width: int = 4) -> float:
        return float(cost[i + 1 : i + width - (j - i) + 1].sum())

    def union(i: int, j: int, width: int = 4) -> float:
        return float(cost[j : i + width].sum())

    assert eq_17(1, 2) == union(1, 2) == 102
    assert eq_17(1, 3) == 2 != union(1, 3) == 101


def test_passes_share_nothing_and_the_cheapest_way_is_taken() -> None:
    changes = made_up(20)
    each = {
        way: group_times(changes, length=4, stride=1, encoding=Encoding(), costs=BUILT_IN, ways=(way,))
        for way in ("full", "versions", "delta")
    }  # type: dict[Way, GroupTimes]
    assert not each["full"].reuse_KB.any()
    both = group_times(changes, length=4, stride=1, encoding=Encoding(), costs=BUILT_IN, ways=("full", "versions"))
    assert both.shared_K == pytest.approx(np.minimum(each["full"].shared_K, each["versions"].shared_K))
    assert (both.seconds_K > both.shared_K).all()


def test_measured_times_replace_predicted_ones_and_scale_what_is_saved() -> None:
    times = GroupTimes(np.array([1.0, 1.0, 2.0]), np.array([0.5, 0.5, 1.0]), np.array([[0.4], [0.2], [0.0]]))
    told = measured(times, np.array([2.0, 4.0, 2.0]))
    assert told.seconds_K.tolist() == [2.0, 4.0, 2.0]
    assert told.reuse_KB.ravel() == pytest.approx([0.4 * 3.0, 0.2 * 2.5, 0.0])
    with pytest.raises(BadConfig, match="2 times were measured of 3"):
        measured(times, np.array([1.0, 1.0]))


def test_sizes_alone_give_an_estimate(graph: DynamicGraph) -> None:
    exact, estimate = changes_of(graph, len(graph), spreads="none"), changes_of_sizes(sizes_of(graph))
    assert estimate.edges_T.tolist() == exact.edges_T.tolist()
    assert estimate.rows_T[1:].sum() == pytest.approx(exact.rows_T[1:].sum(), rel=0.3)


def test_groups_longer_than_the_graph_are_refused() -> None:
    with pytest.raises(BadConfig, match=r"groups of 30 snapshots.*length of 1 to 20"):
        group_times(made_up(20), length=30, stride=1, encoding=Encoding(), costs=BUILT_IN)


def test_what_models_compute_is_told_roughly() -> None:
    attends = encoding_of("gat_lstm", num_features=8, hidden=16, layers=1, hops=2)
    assert (attends.sum_widths, attends.attended) == ((), (16,))
    one, two = (encoding_of("tgcn", num_features=8, hidden=16, layers=n, hops=2) for n in (1, 2))
    assert two.recur_flops > one.recur_flops > 0
    assert spreads_of("gat_lstm", "sym", degree_features=False) == "none"
    assert spreads_of("tgcn", "sym", degree_features=False) == "in"
    assert spreads_of("tgcn", "mean", degree_features=True) == "both"
