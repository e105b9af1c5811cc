"""The search for the shape of windows finds the best one there is within the memory, and tries nothing twice (D7.6)."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.plan.flare import Scene, chosen_nodes, scenes
from timeloom.errors import BadConfig, TooLarge
from timeloom.plan.batch.flare import FlareSettings
from timeloom.plan.batch.order import chunk_order
from timeloom.plan.batch.trapezoid import trapezoids
from timeloom.plan.tune.memory import ChunkSizes, Load, MemoryLaw, chunk_sizes, shares_of_full_history
from timeloom.plan.tune.window import Choice, Search, Trial, TrialOutcome, TuneSettings, neighbours, tune

SIZES = ChunkSizes(np.arange(0, 2001, 20), np.tile((np.arange(101) ** 2)[None], (20, 1)))
"""100 chunks of 20 nodes; 20 snapshots of 10,000 edges, of which n chunks keep n * n."""
LAW = MemoryLaw(fixed=1e6, row=1000.0, edge=10.0)
FLARE = FlareSettings(chunks=100)
Judge = Callable[[FlareSettings], float]


def outcome(score: float, *, seconds: float = 2.0, peak_bytes: float = 1e6) -> TrialOutcome:
    """Return an outcome whose loss falls by ``score`` in a second."""
    return TrialOutcome(loss_before=9.0, loss_after=9.0 - score * seconds, seconds=seconds, peak_bytes=peak_bytes)


def run(search: Search, judge: Callable[[Trial], TrialOutcome]) -> tuple[Choice, list[Trial]]:
    """Take a search to its end; return the choice and all trials."""
    trials, trial = list[Trial](), next(search)
    while True:
        trials.append(trial)
        try:
            trial = search.send(judge(trial))
        except StopIteration as end:
            return end.value, trials


def hill(full: int, alpha: float) -> Judge:
    """Return a landscape with one top."""
    return lambda flare: 1.0 / (1.0 + abs(flare.full - full) + 10 * abs(flare.alpha - alpha))


@given(full=st.integers(1, 7), tenths=st.integers(1, 10), start=st.tuples(st.integers(1, 7), st.integers(1, 10)))
def test_a_search_climbs_to_the_top_wherever_it_is(full: int, tenths: int, start: tuple[int, int]) -> None:
    flare = FlareSettings(chunks=100, full=start[0], decayed=8 - start[0], alpha=start[1] / 10)
    judge, settings = hill(full, tenths / 10), TuneSettings(moves=20, least_gain=0.0, epochs=3)
    choice, trials = run(
        tune(flare, settings, sizes=SIZES, law=LAW), lambda trial: outcome(judge(trial.flare), seconds=3.0)
    )
    assert (choice.flare.full, choice.flare.alpha) == (full, tenths / 10)
    assert choice.score == pytest.approx(1.0)
    shapes = [(trial.flare.full, trial.flare.alpha) for trial in trials]
    assert len(set(shapes)) == len(shapes), "a shape was tried twice"
    assert shapes[0] == (start[0], start[1] / 10)
    assert all(trial.flare.length == 8 and trial.epochs == 3 for trial in trials)
    assert [trial for trial, _ in choice.trials] == trials
    moves = abs(full - start[0]) + abs(tenths - start[1])
    assert len(trials) <= 5 + 3 * moves


def test_what_counts_is_how_fast_the_loss_falls_not_how_far() -> None:
    def judge(trial: Trial) -> TrialOutcome:
        return outcome(1.0 / trial.flare.full, seconds=float(trial.flare.full) ** 2)

    choice, _ = run(tune(FLARE, TuneSettings(), sizes=SIZES, law=LAW), judge)
    assert choice.flare.full == 1


def test_a_gain_that_could_be_noise_moves_nowhere() -> None:
    def slightly_better(trial: Trial) -> TrialOutcome:
        return outcome(1.0 + 0.04 * (trial.flare.full - 2))

    stayed, trials = run(tune(FLARE, TuneSettings(), sizes=SIZES, law=LAW), slightly_better)
    assert (stayed.flare.full, stayed.flare.alpha, len(trials)) == (2, 0.1, 4)
    # 4 % more than 1.12 is still 3.5 % faster, than 1.16 it is not.
    moved, _ = run(tune(FLARE, TuneSettings(least_gain=0.035), sizes=SIZES, law=LAW), slightly_better)
    assert moved.flare.full == 6


def test_no_more_moves_are_made_than_allowed() -> None:
    judge = hill(7, 0.1)
    choice, trials = run(tune(FLARE, TuneSettings(moves=2), sizes=SIZES, law=LAW), lambda t: outcome(judge(t.flare)))
    assert choice.flare.full == 4
    assert max(trial.flare.full for trial in trials) == 4


def exact(trial: Trial) -> float:
    """Return the bytes that windows really take where the law is right."""
    return LAW.predict(SIZES.load(trial.flare)(LAW))


@pytest.mark.parametrize("budget", [8e6, 10e6, 14e6])
def test_what_is_predicted_not_to_fit_is_not_tried(budget: float) -> None:
    settings, judge = TuneSettings(budget_bytes=int(budget), moves=20), hill(8, 1.0)
    choice, trials = run(
        tune(FLARE, settings, sizes=SIZES, law=LAW),
        lambda trial: outcome(judge(trial.flare), peak_bytes=exact(trial)),
    )
    assert all(exact(trial) <= budget for trial in trials)
    assert all(trial.predicted_bytes == pytest.approx(exact(trial)) for trial in trials)
    shape = choice.flare.full, choice.flare.alpha
    larger = [one for one in neighbours(shape, 8, 0.1) if judge(choice_of(*one)) > judge(choice.flare)]
    assert larger, "the budget decides nothing in this test"
    assert all(LAW.predict(SIZES.load(choice_of(*one))(LAW)) > budget for one in larger)


def choice_of(full: int, alpha: float) -> FlareSettings:
    return FlareSettings(chunks=100, full=full, decayed=8 - full, alpha=alpha)


def test_what_turns_out_not_to_fit_is_not_chosen_and_the_law_learns_it() -> None:
    """Windows take three times what the law says: after the first trial the law knows."""
    settings, judge = TuneSettings(budget_bytes=25_000_000, moves=20), hill(8, 1.0)
    choice, trials = run(
        tune(FLARE, settings, sizes=SIZES, law=LAW),
        lambda trial: outcome(judge(trial.flare), peak_bytes=3 * exact(trial)),
    )
    assert 3 * LAW.predict(SIZES.load(choice.flare)(LAW)) <= 25e6
    over = [trial for trial in trials if 3 * exact(trial) > 25e6]
    assert len(over) <= 1
    assert trials[1].predicted_bytes == pytest.approx(3 * exact(trials[1]), rel=0.1)


def test_a_start_that_does_not_fit_gives_way_to_one_that_does_or_says_so() -> None:
    large = FlareSettings(chunks=100, full=7, decayed=1, alpha=1.0)
    _, trials = run(
        tune(large, TuneSettings(budget_bytes=9_000_000), sizes=SIZES, law=LAW), lambda _: outcome(1.0, peak_bytes=5e6)
    )
    assert trials[0].flare.full < 7
    assert trials[0].flare.length == 8
    with pytest.raises(
        TooLarge, match=r"flare.full=1, flare.decayed=7 and flare.alpha=0.1 need .* MiB, but .* 1.0 MiB"
    ):
        next(tune(FLARE, TuneSettings(budget_bytes=1 << 20), sizes=SIZES, law=LAW))
    with pytest.raises(TooLarge, match=r"need 95.4 MiB"):
        run(
            tune(FLARE, TuneSettings(budget_bytes=20_000_000), sizes=SIZES, law=LAW),
            lambda _: outcome(1.0, peak_bytes=100_000_000),
        )


def test_a_trial_that_diverges_is_never_chosen() -> None:
    def judge(trial: Trial) -> TrialOutcome:
        bad = trial.flare.full > 2
        return TrialOutcome(
            loss_before=1.0, loss_after=math.nan if bad else 0.9, seconds=0.0 if bad else 1.0, peak_bytes=1e6
        )

    choice, _ = run(tune(FLARE, TuneSettings(), sizes=SIZES, law=LAW), judge)
    assert choice.flare.full == 2
    # From a start that diverges the search leaves.
    start = FlareSettings(chunks=100, full=3, decayed=5)
    assert run(tune(start, TuneSettings(), sizes=SIZES, law=LAW), judge)[0].flare.full == 2


def test_windows_are_not_longer_than_the_sequence() -> None:
    sizes = ChunkSizes(SIZES.rows_C, SIZES.edges_TC[:3])
    judge = hill(8, 0.1)
    choice, _ = run(tune(FLARE, TuneSettings(), sizes=sizes, law=LAW), lambda trial: outcome(judge(trial.flare)))
    assert choice.flare.full == 3


@given(full=st.integers(1, 8), tenths=st.integers(1, 10))
def test_a_shape_is_its_neighbours_neighbour(full: int, tenths: int) -> None:
    shape = (full, tenths / 10)
    for other in neighbours(shape, 8, 0.1):
        assert 1 <= other[0] <= 8
        assert 0.0 < other[1] <= 1.0
        if other[0] < 8:
            assert shape in neighbours(other, 8, 0.1)
    assert len(neighbours(shape, 8, 0.1)) <= 4
    assert neighbours((8, 0.5), 8, 0.1) == [(7, 0.5)]
    assert neighbours((2, 0.5), 8, 0.1) == [(1, 0.5), (3, 0.5), (2, 0.4), (2, 0.6)]


def test_the_largest_window_is_found_by_the_law() -> None:
    """3 snapshots of 4 chunks: 1 row a chunk; the middle one has many edges, and rows count the other way."""
    sizes = ChunkSizes(np.arange(5), np.array([[0, 1, 1, 1, 1], [0, 5, 10, 20, 100], [0, 1, 1, 1, 1]]))
    flare = FlareSettings(full=1, decayed=1, chunks=4, decay="list", ratios=(0.5,))
    load = sizes.load(flare)
    assert load(MemoryLaw(0.0, 0.0, 1.0)) == Load(rows=6, edges=101)
    assert load(MemoryLaw(0.0, 1.0, 0.0)).rows == 6
    assert [unit.chunks for (unit,) in trapezoids(flare, 3)] == [(4,), (2, 4), (2, 4)]


@given(scene=scenes(), halo=st.booleans())
def test_sizes_of_chunks_are_those_of_the_busiest_rank(scene: Scene, halo: bool) -> None:
    order, chunking = chunk_order(scene.chunking, seed=scene.seed, epoch=scene.epoch), scene.chunking
    sizes = chunk_sizes([scene.snapshot, scene.snapshot], order, temporal_halo=halo)
    assert (sizes.edges_TC[0] == sizes.edges_TC[1]).all()
    pairs = list(zip(scene.snapshot.sources.tolist(), scene.snapshot.targets.tolist(), strict=True))
    for num_chunks in range(chunking.per_owner + 1):
        nodes, exchanges = chosen_nodes(order, num_chunks), halo or num_chunks == chunking.per_owner
        rows = [sum(chunking.owner_N[v] == owner for v in nodes) for owner in range(chunking.num_owners)]
        edges = [
            sum(
                u in nodes and v in nodes and chunking.owner_N[v] == owner
                and (exchanges or chunking.owner_N[u] == owner)
                for u, v in pairs
            )
            for owner in range(chunking.num_owners)
        ]  # fmt: skip
        assert sizes.rows_C[num_chunks] == max(rows)
        assert sizes.edges_TC[0, num_chunks] == max(edges)


def test_the_public_decay_takes_under_a_third_of_the_rows_of_full_history() -> None:
    """2 + (13 + 8 + 5 + 3 + 2 + 1) / 128 of 8 snapshots are 28 %; the paper's own decay leaves 49 %."""
    sizes = ChunkSizes(np.arange(0, 1281, 10), np.tile((np.arange(129) * 7)[None], (20, 1)))
    law = MemoryLaw(0.0, 1.0, 1.0)
    assert shares_of_full_history(sizes, FlareSettings(decay="public"), law).rows == pytest.approx(288 / 1024)
    assert shares_of_full_history(sizes, FlareSettings(), law).rows == pytest.approx(502 / 1024)
    assert shares_of_full_history(sizes, FlareSettings(), law).memory == pytest.approx(502 / 1024)
    assert shares_of_full_history(sizes, FlareSettings(history="full"), law).memory == 1.0


def test_a_law_learns_what_measurements_tell_apart() -> None:
    loads = [Load(1000, 10_000), Load(2000, 10_000), Load(2000, 50_000), Load(8000, 10_000)]
    right = MemoryLaw(fixed=5e5, row=800.0, edge=24.0)
    learnt = LAW.fitted(loads, [right.predict(load) for load in loads])
    for load in (*loads, Load(5000, 30_000)):
        assert learnt.predict(load) == pytest.approx(right.predict(load), rel=0.02)
    once = LAW.fitted(loads[:1], [2 * LAW.predict(loads[0])])
    assert once.predict(loads[0]) == pytest.approx(2 * LAW.predict(loads[0]), rel=0.01)
    assert LAW.fitted([], []) == LAW
    odd = LAW.fitted(loads[:2], [1e6, 1e3])
    assert min(odd.fixed, odd.row, odd.edge) >= 0.0


@pytest.mark.parametrize(
    ("given_", "sentence"),
    [
        ({"epochs": 0}, "tune.epochs=0"),
        ({"moves": 0}, "tune.moves=0"),
        ({"budget_bytes": -1}, "tune.budget_bytes=-1"),
        ({"least_gain": -0.1}, "tune.least_gain=-0.1"),
        ({"alpha_step": 0.0}, "tune.alpha_step=0 is no step"),
        ({"alpha_step": 1.0}, "tune.alpha_step=1 is no step"),
    ],
)
def test_settings_that_cannot_be_meant_are_refused(given_: dict[str, Any], sentence: str) -> None:
    with pytest.raises(BadConfig, match=sentence):
        TuneSettings(**given_)


@pytest.mark.parametrize(
    "flare", [FlareSettings(decay="list", decayed=1, ratios=(0.5,)), FlareSettings(history="recent")]
)
def test_windows_without_alpha_are_not_tuned(flare: FlareSettings) -> None:
    with pytest.raises(BadConfig, match=r"no alpha to tune: use --set flare.decay=paper"):
        next(tune(flare, TuneSettings(), sizes=SIZES, law=LAW))
