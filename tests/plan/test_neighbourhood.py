"""A neighbourhood holds all that its targets depend on, a causal one no more; cutting it changes no value (T24)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from tests.plan.tiny import Listed, TinyModel, drawn, edges_of, listed
from timeloom.errors import BadConfig, TooLarge
from timeloom.graph.keys import Float64s
from timeloom.plan.batch.cutout import Cutout, cut, cut_from, forecast
from timeloom.plan.batch.neighbourhood import (
    LayerReach,
    Neighbourhood,
    Sets,
    find_neighbourhood,
    refuse_if_integrated,
    refuse_over_budget,
    total_hops,
)
from timeloom.plan.batch.rows import Int32s, SnapshotRows

FORGETS = LayerReach(remembers=False)
STACKS = (
    (LayerReach(),),
    (LayerReach(), LayerReach()),
    (LayerReach(), LayerReach(), LayerReach()),
    (LayerReach(hops=2), LayerReach(hops=1)),
    (FORGETS, FORGETS),
    (LayerReach(), FORGETS, LayerReach(hops=2)),
    (LayerReach(hops=0),),
)
WAYS = [(layers, sets, both) for layers in STACKS for sets in ("union", "causal") for both in (False, True)]
WIDTH = 3


def rows(*numbers: int) -> Int32s:
    return np.array(numbers, np.int32)


def features(source: Listed, seed: int) -> list[Float64s]:
    rng = np.random.default_rng(seed)
    return [rng.normal(size=(source.num_nodes, WIDTH)) for _ in source.snapshots]


def only_read(cutout: Cutout, x: Sequence[Float64s]) -> list[Float64s]:
    """Return the features of a cutout's nodes, and NaN where it says that a row is not needed."""
    return [
        np.where(cutout.depth_TN[place][:, None] >= 0, x[cutout.first + place][cutout.nodes_N], np.nan)
        for place in range(len(cutout))
    ]


def whole(source: Listed, first: int, last: int) -> list[SnapshotRows]:
    return [source.rows(t) for t in range(first, last)]


def needed(source: Listed, found: Neighbourhood, layers: Sequence[LayerReach]) -> set[tuple[int, int, int]]:
    """Return (snapshot, node, depth) of all that is needed, by following each value to what it is made of."""
    targets = found.places_N[: found.num_targets].tolist()
    pending = [(t, v, len(layers), 0) for t in range(found.first, found.last) for v in targets]
    seen = set(pending)
    ends = np.cumsum([0, *(layer.hops for layer in layers)]).tolist()
    deep: set[tuple[int, int, int]] = set()
    hears = {t: hearing(source.rows(t), found.both) for t in range(found.first, found.last)}
    while pending:
        t, v, above, hop = pending.pop()
        deep.add((t, v, ends[above] - hop))
        if above == 0:
            continue
        layer = layers[above - 1]
        asks = {(t, u, above, hop + 1) for u in (hears[t][v] | {v})} if hop < layer.hops else {(t, v, above - 1, 0)}
        if hop == 0 and layer.remembers and t > found.first:
            asks.add((t - 1, v, above, 0))
        pending += asks - seen
        seen |= asks
    return deep


def hearing(graph: SnapshotRows, both: bool) -> list[set[int]]:
    heard: list[set[int]] = [set() for _ in range(graph.num_nodes)]
    for u, v, _ in zip(*edges_of(graph), strict=True):
        heard[v].add(int(u))
        if both:
            heard[u].add(int(v))
    return heard


@pytest.mark.parametrize(("layers", "sets", "both"), WAYS)
def test_targets_of_a_cutout_have_the_values_of_the_whole_graph(
    layers: tuple[LayerReach, ...], sets: Sets, both: bool
) -> None:
    """T24, values: a cache of some nodes and a batch cut from it, for one to three layers and both kinds of sets."""
    for seed in range(12):
        source = drawn(seed, num_nodes=24, num_snapshots=6, num_edges=20, weighted=seed % 2 == 0)
        model, x = TinyModel(layers, both), features(source, seed)
        owned = np.flatnonzero(np.random.default_rng(seed).random(24) < 0.4).astype(np.int32)
        cache = cut(source, find_neighbourhood(source, owned, layers, first=0, last=6, sets=sets, both=both))
        few = rows(*range(0, len(owned), 2))
        batch = cut_from(cache, few, layers, first=2, last=5, sets=sets, both=both)
        for cutout, targets in ((cache, owned), (batch, owned[few])):
            expected = model.outputs(whole(source, cutout.first, cutout.last), x[cutout.first : cutout.last])
            found = model.outputs(cutout.graphs, only_read(cutout, x))
            assert cutout.nodes_N[: cutout.num_targets].tolist() == targets.tolist()
            for place, values in enumerate(found):
                np.testing.assert_allclose(values[: len(targets)], expected[place][targets], atol=1e-12)


@pytest.mark.parametrize(("layers", "sets", "both"), WAYS)
def test_gradients_reach_the_features_as_they_do_in_the_whole_graph(
    layers: tuple[LayerReach, ...], sets: Sets, both: bool
) -> None:
    """T24, gradients: of the loss of the targets by each feature that is read, by differences; all others are 0."""
    source = drawn(3, num_nodes=7, num_snapshots=3, num_edges=9)
    model, x, targets = TinyModel(layers, both), features(source, 3), rows(1, 4)
    cutout = cut(source, find_neighbourhood(source, targets, layers, first=0, last=3, sets=sets, both=both))
    local = {int(node): row for row, node in enumerate(cutout.nodes_N)}
    x_cut = only_read(cutout, x)

    def slope(graphs: Sequence[SnapshotRows], inputs: list[Float64s], at: Sequence[int], t: int, row: int) -> float:
        sums = []
        for step in (1e-4, -1e-4):
            moved = [rows_NF.copy() for rows_NF in inputs]
            moved[t][row, 0] += step
            sums.append(sum(float((out[at] ** 2).sum()) for out in model.outputs(graphs, moved)))
        return (sums[0] - sums[1]) / 2e-4

    for t in range(3):
        for node in range(7):
            expected = slope(whole(source, 0, 3), x, targets.tolist(), t, node)
            is_read = node in local and cutout.depth_TN[t, local[node]] >= 0
            found = slope(cutout.graphs, x_cut, [0, 1], t, local[node]) if is_read else 0.0
            assert found == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize(("layers", "both"), [(layers, both) for layers in STACKS for both in (False, True)])
def test_a_causal_neighbourhood_is_exactly_what_is_needed(layers: tuple[LayerReach, ...], both: bool) -> None:
    for seed in range(15):
        source = drawn(seed, num_nodes=15, num_snapshots=5, num_edges=12)
        found = find_neighbourhood(source, rows(2, 7), layers, first=1, last=5, sets="causal", both=both)
        depths: dict[tuple[int, int], int] = {}
        for t, v, depth in needed(source, found, layers):
            depths[t, v] = max(depth, depths.get((t, v), 0))
        told = {
            (found.first + place, int(found.places_N[row])): int(found.depth_TN[place, row])
            for place, row in np.argwhere(found.depth_TN >= 0)
        }
        assert told == depths


def test_a_union_neighbourhood_is_the_iterated_one_in_all_snapshots_together() -> None:
    for seed in range(20):
        source = drawn(seed, num_nodes=20, num_snapshots=4, num_edges=12)
        found = find_neighbourhood(
            source, rows(0, 5), (LayerReach(), LayerReach()), first=0, last=4, sets="union", both=False
        )
        sets = [{0, 5}]
        for _ in range(2):
            heard = [hearing(source.rows(t), False) for t in range(4)]
            sets.append(sets[-1] | {u for t in range(4) for v in sets[-1] for u in heard[t][v]})
        for depth in (2, 1, 0):
            at_depth = found.places_N[found.depth_TN[0] == depth].tolist()
            assert at_depth == sorted(at_depth), "rows of one depth are ascending"
        for depth, nodes in zip((2, 1, 0), sets, strict=True):
            assert set(found.places_N[found.depth_TN[0] >= depth].tolist()) == nodes


def test_by_hand_a_path_that_turns_up_one_edge_at_a_time() -> None:
    # Node 0 hears 1 in snapshot 1 alone; 1 hears 2 in snapshot 0 alone: the state of 1 carries 2 to 0.
    source = listed(4, [(2, 1)], [(1, 0)], [(3, 2)])
    two = (LayerReach(), LayerReach())
    union = find_neighbourhood(source, rows(0), two, first=0, last=3, sets="union", both=False)
    assert union.places_N.tolist() == [0, 1, 2]
    assert union.depth_TN.tolist() == [[2, 1, 0]] * 3
    causal = find_neighbourhood(source, rows(0), two, first=0, last=3, sets="causal", both=False)
    assert causal.places_N.tolist() == [0, 1, 2]
    assert causal.depth_TN.tolist() == [[2, 1, 0], [2, 1, -1], [2, -1, -1]]
    forgetful = find_neighbourhood(source, rows(0), (FORGETS, FORGETS), first=0, last=3, sets="causal", both=False)
    assert forgetful.depth_TN.tolist() == [[2, -1], [2, 1], [2, -1]]
    batch = cut(source, causal)
    assert [sorted(zip(*(part.tolist() for part in edges_of(g)[:2]), strict=True)) for g in batch.graphs] == [
        [(2, 1)], [(1, 0)], [],
    ]  # fmt: skip


def test_degrees_are_those_of_the_whole_snapshot() -> None:
    source = listed(5, [(1, 0), (2, 0), (3, 1), (4, 1), (0, 1)])
    batch = cut(source, find_neighbourhood(source, rows(0), (LayerReach(),), first=0, last=1, sets="union", both=False))
    assert batch.nodes_N.tolist() == [0, 1, 2]
    assert len(batch.graphs[0]) == 2
    assert batch.graphs[0].into_degree_N.tolist() == [2.0, 3.0, 0.0]
    assert batch.graphs[0].out_degree_N.tolist() == [1.0, 1.0, 1.0]


def test_the_edges_by_source_are_the_edges_by_target() -> None:
    for seed in range(10):
        source = drawn(seed, num_nodes=20, num_snapshots=3, num_edges=30, weighted=True)
        for both in (False, True):
            found = find_neighbourhood(
                source, rows(1, 2), (LayerReach(), LayerReach()), first=0, last=3, sets="causal", both=both
            )
            for graph in cut(source, found).graphs:
                sources, targets, _ = edges_of(graph)
                by_source = np.repeat(np.arange(graph.num_nodes), np.diff(graph.out_starts_M))
                assert sorted(graph.out_order_E.tolist()) == list(range(len(graph)))
                assert (sources[graph.out_order_E] == by_source).all()
                assert (targets[graph.out_order_E] == graph.out_neighbours_E).all()


def test_no_edge_is_there_twice() -> None:
    for seed in range(10):
        source = drawn(seed, num_nodes=12, num_snapshots=2, num_edges=40)
        found = find_neighbourhood(source, rows(0, 1), (LayerReach(),), first=0, last=2, sets="union", both=True)
        for graph in cut(source, found).graphs:
            pairs = list(zip(*(part.tolist() for part in edges_of(graph)[:2]), strict=True))
            assert len(pairs) == len(set(pairs))


@pytest.mark.parametrize("sets", ["union", "causal"])
@pytest.mark.parametrize("weighted", [False, True])
def test_the_forecast_is_the_bytes_that_are_then_held(sets: Sets, weighted: bool) -> None:
    for seed in range(6):
        source = drawn(seed, num_nodes=30, num_snapshots=5, num_edges=25, weighted=weighted)
        found = find_neighbourhood(
            source, rows(3, 4, 9), (LayerReach(), LayerReach()), first=0, last=5, sets=sets, both=seed % 2 == 0
        )
        told, held = forecast(source, found), cut(source, found)
        assert told.graph_bytes == held.num_bytes
        assert (told.num_nodes, told.num_edges, told.rows_read) == (held.num_nodes, held.num_edges, held.rows_read)
        assert told.total_bytes(100) == held.num_bytes + 100 * held.rows_read


def test_a_cache_over_the_budget_is_refused_with_both_numbers_and_what_would_do() -> None:
    source = drawn(0, num_nodes=30, num_snapshots=4, num_edges=40)
    found = find_neighbourhood(source, rows(0, 1), (LayerReach(),), first=0, last=4, sets="union", both=False)
    told = forecast(source, found)
    asked = told.total_bytes(8)
    refuse_over_budget(told, row_bytes=8, budget_bytes=asked, hops=1)
    with pytest.raises(
        TooLarge, match=f"takes {asked} bytes .* budget is {asked - 1}: use --system vertex or --system"
    ):
        refuse_over_budget(told, row_bytes=8, budget_bytes=asked - 1, hops=1)


def test_a_model_that_no_neighbourhood_serves_is_refused() -> None:
    """T24: convolution inside the recurrence."""
    refuse_if_integrated("tgcn", mixes_states=False, sees_all=False)
    with pytest.raises(BadConfig, match=r"'dcrnn' convolves its state.*--system vertex or --system flare"):
        refuse_if_integrated("dcrnn", mixes_states=True, sees_all=False)
    with pytest.raises(BadConfig, match=r"'evolvegcn_h' reads all nodes .*--system vertex or --system flare"):
        refuse_if_integrated("evolvegcn_h", mixes_states=False, sees_all=True)


def test_layers_that_cannot_be_are_refused() -> None:
    with pytest.raises(BadConfig, match="-1 hops"):
        LayerReach(hops=-1)
    with pytest.raises(BadConfig, match=r"101 hops .* at most 100"):
        total_hops((LayerReach(hops=101),))


@pytest.mark.parametrize("sets", ["union", "causal"])
def test_no_targets_and_no_edges_give_an_empty_cutout(sets: Sets) -> None:
    source = listed(3, [], [(0, 1)])
    for targets, count in ((rows(), 0), (rows(1), 2)):
        found = find_neighbourhood(source, targets, (LayerReach(),), first=0, last=2, sets=sets, both=True)
        held = cut(source, found)
        assert (held.num_nodes, len(held), held.num_targets) == (count, 2, len(targets))


def test_fewer_snapshots_of_a_cutout_share_its_arrays() -> None:
    source = drawn(1, num_nodes=20, num_snapshots=5, num_edges=20)
    held = cut(
        source, find_neighbourhood(source, rows(1, 2), (LayerReach(),), first=0, last=5, sets="union", both=False)
    )
    some = held.between(1, 3)
    assert (some.first, some.last, some.nodes_N is held.nodes_N) == (1, 3, True)
    assert [a is b for a, b in zip(some.graphs, held.graphs[1:3], strict=True)] == [True, True]
    assert some.deep(2, 1).tolist() == [0, 1]
