"""Hybrid batches are exact on their targets, drawn evenly, and the same wherever they are built (T24, T25)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import chisquare

from tests.plan.tiny import Listed, TinyModel, drawn, listed
from timeloom.config import build, merge, parse_sets
from timeloom.errors import BadConfig, TooLarge
from timeloom.graph.keys import Int64s
from timeloom.plan.batch.cutout import Cutout
from timeloom.plan.batch.hybrid import BatchMaker, HybridBatch, Work, evenly, make_cache, working_bytes
from timeloom.plan.batch.hybrid_settings import BatchSize, HybridSettings
from timeloom.plan.batch.neighbourhood import LayerReach, Sets
from timeloom.plan.tune.adjuster import Bandit, Fixed, Random
from timeloom.plan.tune.dqn import Dqn

TWO = (LayerReach(), LayerReach())
PLENTY = 1 << 40
NO_WORK = Work()


def cache_of(source: Listed, owned: Int64s, *, first: int = 0, sets: Sets = "causal", both: bool = False) -> Cutout:
    last = len(source.snapshots)
    return make_cache(
        source, owned, TWO, first=first, last=last, sets=sets, both=both, row_bytes=8, budget_bytes=PLENTY
    )


def maker_of(
    sizes: list[BatchSize], *, seed: int = 0, rank: int = 0, first: int = 0, work: Work = NO_WORK
) -> BatchMaker:
    owned = np.arange(1, 40, 2)
    source = drawn(5, num_nodes=40, num_snapshots=8, num_edges=60, weighted=True)
    cache = cache_of(source, owned, first=first)
    return BatchMaker(cache, TWO, "causal", sizes, evenly(owned), seed, rank, work=work)


def same(a: HybridBatch, b: HybridBatch) -> bool:
    def parts(batch: HybridBatch) -> list[list[float]]:
        cutout = batch.cutout
        arrays: list[NDArray[Any]] = [cutout.nodes_N, cutout.depth_TN.ravel()]
        arrays += [array for graph in cutout.graphs for array in (graph.starts_M, graph.neighbours_E)]
        return [[cutout.first, cutout.last], *(array.tolist() for array in arrays)]

    return parts(a) == parts(b)


@pytest.mark.parametrize("sets", ["union", "causal"])
@pytest.mark.parametrize("both", [False, True])
def test_a_hybrid_batch_is_exact_on_its_targets(sets: Sets, both: bool) -> None:
    """T24: batches of the maker, with state that starts at 0 in the batch's first snapshot."""
    source = drawn(11, num_nodes=40, num_snapshots=8, num_edges=50, weighted=True)
    owned, model = np.arange(0, 40, 3), TinyModel(TWO, both)
    cache = cache_of(source, owned, first=1, sets=sets, both=both)
    maker = BatchMaker(cache, TWO, sets, [BatchSize(3, 4), BatchSize(7, 14)], evenly(owned), 0, 0)
    x = [np.random.default_rng(t).normal(size=(40, 2)) for t in range(8)]
    for action, number in ((0, 0), (0, 1), (0, 2), (1, 0)):
        cutout = maker.hybrid(action, number).cutout
        span = range(cutout.first, cutout.last)
        expected = model.outputs([source.rows(t) for t in span], [x[t] for t in span])
        found = model.outputs(cutout.graphs, [x[t][cutout.nodes_N] for t in span])
        targets = cutout.nodes_N[: cutout.num_targets]
        assert set(targets.tolist()) <= set(owned.tolist())
        assert (cache.nodes_N[cutout.places_N] == cutout.nodes_N).all()
        for whole, part in zip(expected, found, strict=True):
            np.testing.assert_allclose(part[: cutout.num_targets], whole[targets], atol=1e-12)


def test_a_batch_depends_on_seed_rank_action_and_number_alone() -> None:
    sizes = [BatchSize(3, 5), BatchSize(2, 5)]
    batch = maker_of(sizes, seed=1).hybrid(0, 7)
    assert same(batch, maker_of(sizes, seed=1).hybrid(0, 7))
    others = [maker_of(sizes, seed=2).hybrid(0, 7), maker_of(sizes, seed=1, rank=1).hybrid(0, 7)]
    others += [maker_of(sizes, seed=1).hybrid(1, 7), maker_of(sizes, seed=1).hybrid(0, 8)]
    assert not any(same(batch, other) for other in others)


def test_windows_start_at_every_snapshot_that_leaves_room_and_equally_often() -> None:
    """T25: T - N_S + 1 starts, the last one among them."""
    maker = maker_of([BatchSize(3, 2)], first=2)
    starts = [maker.hybrid(0, number).cutout.first for number in range(400)]
    assert set(starts) == {2, 3, 4, 5}
    assert chisquare(np.bincount(starts)[2:]).pvalue > 1e-3
    whole = maker_of([BatchSize(6, 2)], first=2)
    assert {whole.hybrid(0, number).cutout.first for number in range(5)} == {2}


def test_all_nodes_of_a_rank_are_targets_equally_often() -> None:
    maker = maker_of([BatchSize(1, 5)])
    drawn_nodes = [maker.hybrid(0, number).cutout.nodes_N[:5] for number in range(400)]
    assert chisquare(np.bincount(np.concatenate(drawn_nodes))[1::2]).pvalue > 1e-3


def test_a_batch_of_all_nodes_is_the_cache_itself_over_its_window() -> None:
    maker = maker_of([BatchSize(3, 20), BatchSize(3, 2)])
    batch = maker.hybrid(0, 0)
    assert not batch.is_snapshot_batch
    assert batch.cutout.graphs[0] is maker.cache.rows(batch.cutout.first)
    stand_in = maker.snapshots(1, np.random.default_rng(0))
    assert stand_in.is_snapshot_batch
    assert (stand_in.action, len(stand_in.cutout), stand_in.cutout.num_targets) == (1, 3, 20)
    assert stand_in.cutout.nodes_N is maker.cache.nodes_N


def test_what_training_takes_is_predicted_to_the_byte() -> None:
    work = Work(row_bytes=24, layer_bytes=(100, 1000))
    maker = maker_of([BatchSize(3, 20)], work=work)
    cutout = maker.cache.between(2, 5)
    # The nodes' numbers are held once, whatever the window.
    shared = cutout.nodes_N.nbytes + cutout.places_N.nbytes + cutout.depth_TN.nbytes
    assert maker.bytes_of(2, 5) == working_bytes(cutout, TWO, work) - shared
    by_hand = sum(graph.num_bytes for graph in cutout.graphs)
    for depth_N in cutout.depth_TN:
        by_hand += int((depth_N >= 0).sum() * 24 + (depth_N >= 1).sum() * 100 + (depth_N >= 2).sum() * 1000)
    assert maker.bytes_of(2, 5) == by_hand


def test_a_cache_over_its_budget_is_refused_before_it_is_built() -> None:
    source = drawn(5, num_nodes=40, num_snapshots=8, num_edges=60)
    with pytest.raises(TooLarge, match=r"2-hop neighbourhood of 20 nodes takes \d+ bytes .* the budget is 1000"):
        make_cache(
            source, np.arange(20), TWO, first=0, last=8, sets="union", both=False, row_bytes=8, budget_bytes=1000
        )
    with pytest.raises(BadConfig, match="snapshots 3 to 3"):
        make_cache(source, np.arange(2), TWO, first=3, last=3, sets="union", both=False, row_bytes=8, budget_bytes=1)


def test_a_rank_s_own_nodes_may_come_in_any_order() -> None:
    source = listed(4, [(0, 1), (2, 3)])
    cache = cache_of(source, np.array([3, 1]))
    assert cache.nodes_N.tolist() == [1, 3, 0, 2]
    assert cache.num_targets == 2


def test_by_hand_the_sizes_of_the_published_actions() -> None:
    sizes = HybridSettings().sizes(40, 1000)
    assert sizes[:3] == (BatchSize(4, 10), BatchSize(4, 50), BatchSize(4, 100))
    assert sizes[6:] == (BatchSize(12, 10), BatchSize(12, 50), BatchSize(12, 100))
    assert HybridSettings().start == 4
    uneven = HybridSettings(snapshot_shares=(0.1, 0.2), node_shares=(0.01, 0.05, 0.1))
    assert uneven.sizes(40, 1000)[uneven.start] == BatchSize(8, 50)
    assert HybridSettings().sizes(2, 3) == (BatchSize(1, 1),) * 9
    assert HybridSettings().sizes(2, 0)[0] == BatchSize(1, 0)


def test_the_shape_of_full_batches_and_of_batches_of_nodes_or_snapshots_alone() -> None:
    whole = HybridSettings(snapshot_shares=(1.0,), node_shares=(1.0,), start_snapshots=1.0, start_nodes=1.0)
    assert whole.sizes(17, 23) == (BatchSize(17, 23),)


def test_every_adjuster_by_its_name() -> None:
    sizes = HybridSettings().sizes(40, 1000)
    found = {
        name: HybridSettings(adjuster=name).make_adjuster(sizes, seed=0)
        for name in ("dqn", "bandit", "random", "fixed")
    }
    kinds = [type(adjuster) for adjuster in found.values()]
    assert kinds == [Dqn, Bandit, Random, Fixed]
    assert {adjuster.action for adjuster in found.values()} == {4}


def test_settings_come_from_the_command_line() -> None:
    sets = ["node_shares=[0.5, 0.25]", "start_nodes=0.5", "adjuster=bandit", "dqn.reward=public"]
    found = build(HybridSettings, merge(parse_sets(sets)))
    assert found == HybridSettings(
        node_shares=(0.5, 0.25), start_nodes=0.5, adjuster="bandit", dqn=found.dqn
    )  # fmt: skip
    assert found.dqn.reward == "public"


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"snapshot_shares": ()}, r"hybrid.snapshot_shares=\[\] was asked for"),
        ({"node_shares": (0.05, 0.05)}, "different shares"),
        ({"node_shares": (0.05, 1.5)}, r"hybrid.node_shares=\[0.05, 1.5\].* up to 1"),
        ({"start_nodes": 0.2}, r"hybrid.start_nodes=0.2 is none of hybrid.node_shares=\[0.01, 0.05, 0.1\]"),
        ({"reuse_most": 1.1}, "reuse_most=1.1 is no probability"),
        ({"groups": 0}, "hybrid.groups=0 .* 1 or more"),
        ({"builders": -1}, "hybrid.builders=-1 .* 0 or more"),
        ({"builders": 65}, "hybrid.builders=65 threads"),
        ({"round_steps": 0}, "hybrid.round_steps=0"),
        ({"round_seconds": float("nan")}, "hybrid.round_seconds=nan"),
        ({"cache_mib": -1.0}, "hybrid.cache_mib=-1"),
    ],
)
def test_settings_that_cannot_be_are_refused(settings: dict[str, object], words: str) -> None:
    with pytest.raises(BadConfig, match=words):
        HybridSettings(**settings)  # type: ignore[arg-type]
