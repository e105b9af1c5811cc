"""Predictors of seconds learn what they are told, forget what is old, and never say what is no number."""

from __future__ import annotations

import numpy as np
import pytest

from timeloom.plan.schedule.overlap_times import (
    EXAMPLES,
    KINDS,
    LEAST_S,
    MOST_S,
    LinearTimes,
    MlpTimes,
    PhaseWork,
    Times,
    off_by,
)


def draw_works(rng: np.random.Generator, count: int) -> list[PhaseWork]:
    kinds = rng.integers(len(KINDS), size=count)
    sizes = np.exp(rng.uniform(4, 13, size=(count, 2))).astype(int)
    return [
        PhaseWork(
            kind=KINDS[kind], rows=int(rows), edges=0 if kind else int(edges), width=16,
            moved_bytes=int(rows) * 64 if kind == 1 else 0,
        )
        for kind, (rows, edges) in zip(kinds, sizes, strict=True)
    ]  # fmt: skip


def truth(works: list[PhaseWork], *, factor: float = 1.0) -> np.ndarray:
    """Return times of a machine: a constant, and so much of everything, by kind."""
    each = {"compute": (2e-5, 3e-8, 5e-9), "exchange": (2e-4, 1e-9, 0.0), "recur": (1e-5, 9e-8, 0.0)}
    each_P = [
        each[work.kind][0] + each[work.kind][1] * (work.moved_bytes or work.rows) + each[work.kind][2] * work.edges * 16
        for work in works
    ]
    return factor * np.array(each_P)


def taught(times: Times, *, rounds: int = 30, factor: float = 1.0, noise: float = 0.0) -> Times:
    rng = np.random.default_rng(3)
    for _ in range(rounds):
        works = draw_works(rng, 40)
        times.learn(works, truth(works, factor=factor) * np.exp(noise * rng.normal(size=40)))
    return times


@pytest.mark.parametrize("make", [LinearTimes, lambda: MlpTimes(seed=0)], ids=["linear", "mlp"])
def test_predictors_learn_a_machine_from_what_they_measure(make: type[LinearTimes]) -> None:
    works = draw_works(np.random.default_rng(4), 200)
    before = off_by(make(), works, truth(works))
    after = off_by(taught(make()), works, truth(works))
    assert before > 1.5
    assert after < 1.25
    assert off_by(taught(make(), noise=0.2), works, truth(works)) < 1.35


def test_a_linear_machine_is_learnt_exactly_by_the_linear_law() -> None:
    works = draw_works(np.random.default_rng(4), 200)
    assert off_by(taught(LinearTimes()), works, truth(works)) < 1.001


def test_the_network_follows_a_machine_that_has_become_slower() -> None:
    works = draw_works(np.random.default_rng(4), 200)
    times = taught(MlpTimes(seed=0))
    assert 2.0 < off_by(times, works, truth(works, factor=3.0)) < 4.0
    taught(times, factor=3.0)
    assert off_by(times, works, truth(works, factor=3.0)) < 1.3


def test_no_more_examples_are_kept_than_are_learnt_from() -> None:
    times = taught(MlpTimes(seed=0), rounds=40)
    assert len(times._y_B) == EXAMPLES < 40 * 40  # type: ignore[attr-defined]


@pytest.mark.parametrize("make", [LinearTimes, lambda: MlpTimes(seed=0)], ids=["linear", "mlp"])
def test_predictions_are_positive_numbers_whatever_was_measured(make: type[LinearTimes]) -> None:
    """A prediction that is no number would be another maximum on every rank."""
    times, rng = make(), np.random.default_rng(5)
    odd = [PhaseWork(kind="exchange", rows=0, width=0), PhaseWork(kind="compute", rows=2**40, edges=2**45, width=4096)]
    for seconds in (np.zeros(2), np.full(2, 1e9), np.array([0.0, 1e-3])):
        told = times.predict(odd)
        assert np.isfinite(told).all()
        assert ((told >= LEAST_S) & (told <= MOST_S)).all()
        times.learn(odd, seconds)
        times.learn(draw_works(rng, 3), np.ones(3))
    assert len(times.predict([])) == 0
    times.learn([], np.empty(0))


def test_one_seed_and_the_same_measurements_make_the_same_network() -> None:
    works = draw_works(np.random.default_rng(4), 20)
    told = [taught(MlpTimes(seed=seed), rounds=3).predict(works) for seed in (1, 1, 2)]
    assert (told[0] == told[1]).all()
    assert (told[0] != told[2]).any()


def test_phases_that_were_never_measured_are_told_apart_by_their_size() -> None:
    small, large = (PhaseWork(kind="compute", rows=rows, edges=rows, width=8) for rows in (10, 10**6))
    for times in (LinearTimes(), MlpTimes(seed=0)):
        told = times.predict([small, large])
        assert told[0] < told[1]
    partly = LinearTimes()
    partly.learn([PhaseWork(kind="recur", rows=5, width=8)], np.ones(1))
    assert partly.predict([small])[0] < partly.predict([large])[0]
