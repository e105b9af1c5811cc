"""Batches are kept, used again and renewed, and training never waits for a builder that is at work (T27)."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.plan.test_hybrid import maker_of, same
from timeloom.errors import BadRun
from timeloom.plan.batch.feed import BatchFeed, Counts
from timeloom.plan.batch.hybrid import BatchMaker, HybridBatch
from timeloom.plan.batch.hybrid_settings import BatchSize, HybridSettings
from timeloom.plan.batch.reservoir import Reservoir, full_rings

# 8 snapshots of 20 nodes: rings of 160 / (2 * 4) / 2 = 10 and 160 / (4 * 5) / 2 = 4 batches.
SIZES = [BatchSize(2, 4), BatchSize(4, 5)]
ALONE = HybridSettings(snapshot_shares=(0.2,), node_shares=(0.05, 0.1), builders=0, snapshot_batch_mib=0.0)


def feed_of(
    settings: HybridSettings, sizes: list[BatchSize] = SIZES, clock: Callable[[], float] | None = None
) -> BatchFeed:
    return BatchFeed(maker_of(sizes), settings, clock)


def soon(holds: Callable[[], bool]) -> bool:
    """Say whether something becomes true within some seconds."""
    end = time.monotonic() + 20.0
    while not (found := holds()) and time.monotonic() < end:
        time.sleep(0.002)
    return found


class Slow(BatchMaker):
    """Builds only when it is let; counts who is at it."""

    let = threading.Semaphore(0)
    at_it = 0

    def hybrid(self, action: int, number: int) -> HybridBatch:
        type(self).at_it += 1
        assert Slow.let.acquire(timeout=20.0)
        return super().hybrid(action, number)


def slow_of(sizes: list[BatchSize]) -> Slow:
    maker = maker_of(sizes)
    Slow.let, Slow.at_it = threading.Semaphore(0), 0
    return Slow(maker.cache, maker.layers, maker.sets, sizes, maker.sample, maker.seed, maker.rank)


def test_by_hand_a_ring_is_full_with_its_share_of_the_cells() -> None:
    """Eq. 4: N T / (N_S N_V) / N_A, at least 1."""
    assert full_rings(SIZES, num_snapshots=8, num_nodes=20) == (10, 4)
    assert full_rings([BatchSize(8, 20)] * 3, num_snapshots=8, num_nodes=20) == (1, 1, 1)
    assert full_rings([BatchSize(1, 0)], num_snapshots=8, num_nodes=0) == (1,)


@given(st.lists(st.integers(1, 5), min_size=1, max_size=3), st.lists(st.integers(0, 2), max_size=30), st.floats(0, 1))
def test_the_probability_is_eq_4_and_never_above_its_cap(full: list[int], puts: list[int], most: float) -> None:
    """T27: p in [0, 1]."""
    batch = maker_of([BatchSize(2, 4)] * 3).hybrid(0, 0)
    reservoir = Reservoir(full, limit_bytes=1e12)
    for action in puts:
        reservoir.put(replace(batch, action=action % len(full)))
    for action, size in enumerate(full):
        count = min(sum(put % len(full) == action for put in puts), size)
        assert reservoir.reuse(action, most=most) == min(most, count / size)
        assert len(reservoir.kept(action)) == count


def test_the_oldest_batch_makes_room_and_every_kept_one_is_drawn() -> None:
    maker, reservoir = maker_of(SIZES), Reservoir((3, 2), limit_bytes=1e12)
    for number in range(5):
        reservoir.put(maker.hybrid(0, number))
    assert [batch.number for batch in reservoir.kept(0)] == [2, 3, 4]
    assert not reservoir.has_room(0)
    assert reservoir.has_room(1)
    rng = np.random.default_rng(0)
    assert {reservoir.draw(0, rng).number for _ in range(100)} == {2, 3, 4}
    assert reservoir.num_bytes == sum(batch.num_bytes for batch in reservoir.kept(0))
    reservoir.clear()
    assert (len(reservoir), reservoir.num_bytes, reservoir.has_room(0)) == (0, 0, True)


def test_a_ring_at_its_limit_of_bytes_counts_as_full_and_keeps_the_newest() -> None:
    maker = maker_of(SIZES)
    batches = [maker.hybrid(0, number) for number in range(6)]
    limit = 2 * sum(batch.num_bytes for batch in batches[:2])
    reservoir = Reservoir((10, 4), limit_bytes=limit)
    for batch in batches:
        reservoir.put(batch)
        assert reservoir.num_bytes <= limit / 2
    assert not reservoir.has_room(0)
    tiny = Reservoir((10, 4), limit_bytes=0.0)
    tiny.put(batches[0])
    assert len(tiny.kept(0)) == 1


def test_a_new_batch_that_was_built_ahead_is_given_out_once_the_oldest_first() -> None:
    maker, reservoir = maker_of(SIZES), Reservoir((3, 2), limit_bytes=1e12)
    assert reservoir.draw_unused(0) is None
    for number in range(4):
        reservoir.put(maker.hybrid(0, number), used=number == 2)
    assert reservoir.unused(0) == [1, 3], "0 made room, 2 was used before"
    first, second = reservoir.draw_unused(0), reservoir.draw_unused(0)
    assert first is not None
    assert second is not None
    assert (first.number, second.number, reservoir.draw_unused(0)) == (1, 3, None)
    assert [batch.number for batch in reservoir.kept(0)] == [1, 2, 3]
    reservoir.put(maker.hybrid(1, 0))
    reservoir.draw(1, np.random.default_rng(0))
    assert reservoir.draw_unused(1) is None


def test_where_no_batch_of_all_nodes_fits_training_waits_for_none_once_builders_are_ahead() -> None:
    settings = HybridSettings(snapshot_shares=(0.2,), node_shares=(0.05, 0.1), snapshot_batch_mib=0.0)
    with feed_of(settings) as feed:
        assert soon(lambda: len(feed.reservoir) == 14)
        for _ in range(200):
            # Training is at a step for as long as a batch takes.
            assert soon(lambda: bool(feed.reservoir.unused(0)))
            feed.next(0)
        assert feed.counts.built == 0
        assert feed.counts.unused > 5
        assert feed.counts.reused + feed.counts.unused == 200


def covered(settings: HybridSettings, draws: int) -> float:
    """Return the share of (node, snapshot) cells that hybrid batches of the first size brought."""
    seen = np.zeros((8, 40), np.bool_)
    with feed_of(settings, [BatchSize(2, 4)] * 9) as feed:
        for _ in range(draws):
            batch = feed.next(0)
            targets = batch.cutout.nodes_N[: batch.cutout.num_targets]
            seen[batch.cutout.first : batch.cutout.last, targets] = True
    return float(seen.sum()) / (8 * 20)


def test_fresh_batches_keep_coming_until_every_target_was_trained_on() -> None:
    """T27: coverage -> 1; as published (p up to 1, nothing renewed) it stays at a fraction (SPEC finding 8)."""
    shares = {"snapshot_shares": (0.2,), "node_shares": tuple(0.05 + 0.01 * place for place in range(9))}
    ours = HybridSettings(**shares, builders=0, snapshot_batch_mib=0.0)  # type: ignore[arg-type]
    published = replace(ours, reuse_most=1.0, renew_every=0)
    assert covered(published, 400) < 0.35
    assert covered(ours, 400) > 0.99
    assert covered(replace(ours, renew_every=0), 400) > 0.7, "the cap alone lets some through"


def test_without_builders_the_same_seed_gives_the_same_batches() -> None:
    courses = []
    for _ in range(2):
        with feed_of(ALONE) as feed:
            courses.append([(batch.action, batch.number, batch.cutout.first) for batch in map(feed.next, [0, 1] * 40)])
    assert courses[0] == courses[1]


def test_without_builders_a_feed_that_was_saved_goes_on_to_the_bit() -> None:
    with feed_of(ALONE) as feed:
        for action in [0, 1, 1] * 20:
            feed.next(action)
        saved = json.loads(json.dumps(feed.save()))
        expected = [feed.next(action) for action in [1, 0] * 20]
    again = feed_of(ALONE)
    again.load(saved)
    with again:
        assert all(same(again.next(action), batch) for action, batch in zip([1, 0] * 20, expected, strict=True))
        assert again.counts == feed.counts


def test_a_checkpoint_with_other_sizes_is_refused() -> None:
    saved = feed_of(ALONE).save()
    with pytest.raises(BadRun, match="batches of 2 sizes, this run has 3"):
        feed_of(ALONE, [*SIZES, BatchSize(1, 1)]).load(saved)


def test_without_a_reservoir_every_batch_is_built_anew() -> None:
    with feed_of(replace(ALONE, reservoir=False, builders=1)) as feed:
        assert [feed.next(0).number for _ in range(5)] == [0, 1, 2, 3, 4]
        assert feed.counts == Counts(built=5)


def test_a_miss_gives_all_nodes_where_they_fit_else_a_hybrid_batch_that_is_kept() -> None:
    """DynaHB 5.2: the stand-in; predicted bytes against the budget decide."""
    with feed_of(replace(ALONE, snapshot_batch_mib=100.0, renew_every=0)) as feed:
        first = feed.next(0)
        assert first.is_snapshot_batch
        assert (len(first.cutout), first.cutout.num_targets) == (2, 20)
        assert feed.counts == Counts(snapshots=1)
    maker = maker_of(SIZES)
    most = max(maker.bytes_of(first, first + 2) for first in range(7))
    with feed_of(replace(ALONE, snapshot_batch_mib=most / 2**20)) as feed:
        assert feed.next(0).is_snapshot_batch
    least = min(maker.bytes_of(first, first + 2) for first in range(7))
    with feed_of(replace(ALONE, snapshot_batch_mib=(least - 1) / 2**20)) as feed:
        batch = feed.next(0)
        assert (batch.is_snapshot_batch, batch.number) == (False, 0)
        assert any(kept is batch for kept in feed.reservoir.kept(0))


def test_builders_fill_what_is_trained_on_first_then_all_rings_then_renew_what_was_used() -> None:
    settings = HybridSettings(
        snapshot_shares=(0.2,), node_shares=(0.05, 0.1), start_nodes=0.1, snapshot_batch_mib=100.0
    )
    with feed_of(settings, clock=time.perf_counter) as feed:
        assert soon(lambda: len(feed.reservoir) == 14)
        log = feed.timeline().built
        assert [built.action for built in log] == [1] * 4 + [0] * 10
        assert {built.builder for built in log} == {0}
        assert all(built.began_s <= built.ended_s for built in log)
        time.sleep(0.05)
        assert feed.timeline().built == [], "full rings are left alone"
        while feed.counts.reused < 5:
            feed.next(1)
            assert soon(lambda: feed.owed == 0)
        time.sleep(0.05)
        assert [built.action for built in feed.timeline().built] == [1] * 5, "one for each use, and then none"


def test_training_gets_batches_while_a_builder_is_at_one() -> None:
    """No lock is held while building: the builder is stopped inside, and training goes on."""
    maker = slow_of(SIZES)
    settings = HybridSettings(snapshot_shares=(0.2,), node_shares=(0.05, 0.1), snapshot_batch_mib=100.0)
    try:
        with BatchFeed(maker, settings) as feed:
            assert soon(lambda: Slow.at_it == 1)
            assert all(feed.next(0).is_snapshot_batch for _ in range(50))
            assert Slow.at_it == 1
            Slow.let.release(100)
            assert soon(lambda: len(feed.reservoir) == 14)
    finally:
        Slow.let.release(100)


def test_two_builders_build_at_once_and_never_the_same_batch() -> None:
    maker = slow_of(SIZES)
    settings = HybridSettings(snapshot_shares=(0.2,), node_shares=(0.05, 0.1), builders=2)
    try:
        with BatchFeed(maker, settings, time.perf_counter) as feed:
            assert soon(lambda: Slow.at_it == 2)
            Slow.let.release(100)
            assert soon(lambda: len(feed.reservoir) == 14)
            log = feed.timeline().built
            assert len({(built.action, built.number) for built in log}) == len(log) == 14
    finally:
        Slow.let.release(100)


def test_no_two_builders_fill_the_same_ring() -> None:
    whole = [BatchSize(8, 19)] * 3
    maker = slow_of(whole)
    assert full_rings(whole, num_snapshots=8, num_nodes=20) == (1, 1, 1)
    settings = HybridSettings(snapshot_shares=(0.2,), node_shares=(0.05, 0.1), builders=3)
    try:
        with BatchFeed(maker, settings, time.perf_counter) as feed:
            assert soon(lambda: Slow.at_it == 3)
            Slow.let.release(100)
            assert soon(lambda: len(feed.reservoir) == 3)
            time.sleep(0.05)
            assert sorted(built.action for built in feed.timeline().built) == [0, 1, 2]
    finally:
        Slow.let.release(100)


def test_what_goes_wrong_in_a_builder_is_raised_in_training_and_the_feed_still_ends() -> None:
    maker = maker_of(SIZES)

    def broken(count: int, rng: np.random.Generator) -> np.ndarray:
        raise RuntimeError("no nodes today")

    settings = HybridSettings(snapshot_shares=(0.2,), node_shares=(0.05, 0.1), snapshot_batch_mib=100.0)

    def until_it_breaks() -> None:
        with BatchFeed(replace(maker, sample=broken), settings) as feed:
            end = time.monotonic() + 20.0
            while time.monotonic() < end:
                feed.next(0)

    with pytest.raises(RuntimeError, match="no nodes today"):
        until_it_breaks()


def test_after_the_graph_grew_no_batch_of_the_old_one_is_used() -> None:
    maker = slow_of(SIZES)
    settings = HybridSettings(snapshot_shares=(0.2,), node_shares=(0.05, 0.1), snapshot_batch_mib=100.0)
    try:
        with BatchFeed(maker, settings) as feed:
            Slow.let.release(3)
            assert soon(lambda: len(feed.reservoir) == 3 and Slow.at_it == 4)
            # One is being built of the old version now.
            feed.renew(replace(maker_of(SIZES, seed=9), version=1))
            assert len(feed.reservoir) == 0
            Slow.let.release(1)
            assert soon(lambda: len(feed.reservoir) == 14)
            kept = [batch for action in (0, 1) for batch in feed.reservoir.kept(action)]
            assert {batch.version for batch in kept} == {1}
    finally:
        Slow.let.release(100)
