"""Every scheduler computes each group once, the published ones do what is printed, and ours is never worse."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.plan.schedule.problems import least_seconds, problems, steps, windows
from timeloom.errors import BadConfig, BadInput
from timeloom.plan.schedule.best import best, best_within, bins_of, start
from timeloom.plan.schedule.bounds import longest_bound, lower_bound, work_bound
from timeloom.plan.schedule.exact import exact
from timeloom.plan.schedule.greedy import dygnex_g, dygnex_g_of, real_g, real_g_of
from timeloom.plan.schedule.ilp import Attempt, dygnex_l, first_of, real_l
from timeloom.plan.schedule.instance import Instance, instance
from timeloom.plan.schedule.matching import heaviest_matching, most_saved
from timeloom.plan.schedule.plain import in_order, pair_consecutive
from timeloom.plan.schedule.schedule import (
    Scheduler,
    epoch_seconds,
    from_json,
    judge,
    loads_of,
    problem_of,
    schedule_of,
    solve_each,
)
from timeloom.plan.schedule.search import anneal, seconds_in
from timeloom.plan.schedule.starts import works_of
from timeloom.plan.schedule.thresholds import threshold_bound

QUICK = settings(max_examples=40, deadline=None)
ALL: list[Scheduler] = [
    in_order,
    pair_consecutive,
    dygnex_g,
    real_g,
    dygnex_g_of(3),
    real_g_of(3),
    start,
    best(moves=2000),
]
TOLERANCE = 1 + 1e-9


@QUICK
@given(problem=problems())
def test_every_scheduler_computes_each_group_once_and_keeps_the_limits(problem: Instance) -> None:
    """T14."""
    for scheduler in ALL:
        assert problem_of(scheduler(problem), problem) is None


@QUICK
@given(problem=problems())
def test_best_is_never_worse_than_any_other(problem: Instance) -> None:
    ours = epoch_seconds(best(moves=2000)(problem), problem)
    for other in (in_order, pair_consecutive, dygnex_g, real_g):
        assert ours <= epoch_seconds(other(problem), problem) * TOLERANCE


@pytest.mark.parametrize("kind", ["growing", "bursty"])
@pytest.mark.parametrize(("count", "devices"), [(400, 4), (600, 64), (600, 500)])
def test_best_is_never_worse_where_the_greedy_ones_are_no_start_of_it(kind: str, count: int, devices: int) -> None:
    problem = windows(kind, count, devices)
    ours = epoch_seconds(best(moves=100_000)(problem), problem)
    for other in (in_order, pair_consecutive, dygnex_g_of(40), real_g_of(40)):
        assert ours <= epoch_seconds(other(problem), problem) * TOLERANCE


@QUICK
@given(problem=problems(most_groups=6, most_devices=3, limits=(1, 2, 3)))
def test_bounds_are_below_the_best_of_all_and_no_schedule_is(problem: Instance) -> None:
    least = least_seconds(problem)
    near = loads_of(start(problem), problem).max(1)
    for bound in (work_bound(problem), longest_bound(problem), threshold_bound(problem, near, cells=4, thresholds=6)):
        assert bound <= least * TOLERANCE
    for scheduler in ALL:
        assert epoch_seconds(scheduler(problem), problem) >= least / TOLERANCE


@settings(max_examples=60, deadline=None, derandomize=True)
@given(problem=problems(most_groups=6, most_devices=3, limits=(1, 2)))
def test_search_finds_the_best_of_all_where_it_can_be_tried(problem: Instance) -> None:
    assert epoch_seconds(best(moves=20_000)(problem), problem) <= least_seconds(problem) * 1.01


@QUICK
@given(problem=problems())
def test_a_cold_search_only_ever_improves_and_keeps_its_books(problem: Instance) -> None:
    """So what a move is told to change is what it changes."""
    bins, _ = bins_of(problem, in_order(problem))
    state = np.array([7], np.uint64)
    before = seconds_in(problem, bins)
    for _ in range(300):
        anneal(problem, bins, moves=1, hot=1e-12, cold=1e-13, state=state)
        after = seconds_in(problem, bins)
        assert after <= before + 1e-9
        before = after
    works = works_of(problem, bins.groups_SL) / bins.speed_C[bins.class_S]
    assert bins.load_S == pytest.approx(works)
    for group, place in enumerate(bins.bin_K.tolist()):
        assert group in bins.groups_SL[place]
    for c, (first, last) in enumerate(itertools.pairwise(bins.first_C.tolist())):
        members = bins.order_S[first:last]
        assert (np.diff(bins.load_S[members]) <= 1e-12).all()
        assert bins.rank_S[members].tolist() == list(range(last - first))
        assert (bins.class_S[members] == c).all()


@settings(max_examples=10, deadline=None)
@given(problem=problems(most_groups=6, most_devices=3, limits=(1, 2)))
def test_exact_is_the_best_of_all_and_proves_it(problem: Instance) -> None:
    told = exact(problem, in_order(problem), limit_s=20.0)
    assert told.seconds == pytest.approx(least_seconds(problem), rel=1e-5)
    assert told.gap < 1e-4


@pytest.mark.parametrize("limit", [1, 2])
def test_exact_leaves_a_device_alone_that_is_too_slow_to_help(limit: int) -> None:
    problem = instance([1.0, 1.0, 1.0, 1.0], devices=2, limit=limit, alpha_s=0.01, speeds=[4.0, 0.1])
    told = exact(problem, in_order(problem), limit_s=20.0)
    assert told.seconds == pytest.approx(least_seconds(problem), rel=1e-5)
    assert told.bound_s <= least_seconds(problem) * TOLERANCE
    assert all(not step[1] for step in told.schedule.steps)


@settings(max_examples=10, deadline=None)
@given(problem=problems(most_groups=5, most_devices=2, limits=(2,), equal=True))
def test_the_integer_programs_as_printed_are_optimal_for_what_they_know(problem: Instance) -> None:
    problem = dataclasses.replace(problem, alpha_s=0.0)
    told = real_l(gap=0.0)(problem)
    assert told.converged
    assert told.schedule is not None
    assert epoch_seconds(told.schedule, problem) == pytest.approx(least_seconds(problem), rel=1e-4)
    blind = dataclasses.replace(problem, reuse_KB=np.zeros((len(problem), 0)))
    without = dygnex_l(gap=0.0)(problem)
    assert without.converged
    assert without.schedule is not None
    assert epoch_seconds(without.schedule, blind) == pytest.approx(least_seconds(blind), rel=1e-4)


@QUICK
@given(problem=problems(limits=(2,)), seed=st.integers(0, 100))
def test_the_time_of_an_epoch_does_not_depend_on_the_order_of_steps_or_of_equal_devices(
    problem: Instance, seed: int
) -> None:
    rng, found = np.random.default_rng(seed), best(moves=500)(problem)
    by_speed = np.lexsort((rng.random(problem.num_devices), problem.speeds_D))
    same = np.argsort(problem.speeds_D, kind="stable")
    to = dict(zip(same.tolist(), by_speed.tolist(), strict=True))
    shuffled = [found.steps[s] for s in rng.permutation(len(found.steps))]
    moved = [[step[to[device]] for device in range(problem.num_devices)] for step in shuffled]
    assert epoch_seconds(schedule_of(moved, problem.num_devices), problem) == pytest.approx(
        epoch_seconds(found, problem)
    )


def test_the_same_seed_and_moves_give_the_same_schedule() -> None:
    problem = windows("growing", 60, 4)
    assert best(moves=30_000, seed=3)(problem) == best(moves=30_000, seed=3)(problem)
    assert best(moves=30_000, seed=3)(problem) != best(moves=30_000, seed=4)(problem)


def test_more_search_is_better_and_a_tenth_of_a_second_already_beats_the_greedy_by_a_tenth() -> None:
    problem = windows("growing", 100, 8)
    greedy, first = (epoch_seconds(one(problem), problem) for one in (real_g, start))
    searched = epoch_seconds(best(moves=200_000)(problem), problem)
    assert searched < 0.98 * first
    assert searched < 0.9 * greedy
    assert epoch_seconds(best_within(0.1)(problem), problem) < 0.9 * greedy


def test_ten_thousand_groups_are_started_in_order_n_and_end_near_the_bound() -> None:
    problem = windows("growing", 10_000, 64)
    assert judge(start(problem), problem).gap < 0.02
    assert problem.reuse_KB.nbytes + problem.seconds_K.nbytes == 8 * 10_000 * 4, "memory is O(n w)"


# Hand-worked cases: times, devices, and what the printed algorithm does with them.


def test_psg_deals_groups_out_in_the_order_of_time() -> None:
    problem = instance([5, 1, 4, 2, 3], devices=2)
    found = in_order(problem)
    assert found == steps([(0,), (1,)], [(2,), (3,)], [(4,)], devices=2)
    assert epoch_seconds(found, problem) == 5 + 4 + 3


def test_type_2_puts_neighbours_together() -> None:
    problem = instance([5, 1, 4, 2, 3], devices=2, reuse=np.array([[1.0], [0.5], [2.0], [1.0], [0.0]]))
    found = pair_consecutive(problem)
    assert found == steps([(0, 1), (2, 3)], [(4,)], devices=2)
    assert epoch_seconds(found, problem) == max(5 + 1 - 1, 4 + 2 - 2) + 3


def test_dygnex_g_by_hand() -> None:
    """Six groups, two devices. The first target is 6, the longest alone.

    The search from both ends meets 0 + 5 = 5, too short, then 1 + 5 = 6: no waste, so that no other target is better.
    Of 2, 3 and 4 that are left, 4 alone is met by 3 at best (waste 1), 4 + 2 by 3 (waste 3), 4 + 3 by 2 (waste 5).
    """
    problem = instance([1, 2, 3, 4, 5, 6], devices=2)
    found = dygnex_g(problem)
    assert found == steps([(5,), (0, 4)], [(3,), (2,)], [(1,)], devices=2)
    assert epoch_seconds(found, problem) == 6 + 4 + 2


def test_real_g_by_hand_takes_the_saving_into_account() -> None:
    """Four groups, two devices; 0 and 1 save 2 together, so that they take 5, as long as 3 does alone.

    Sorted: 3 (group 0), 4 (group 1), 4.5 (group 2), 5 (group 3). Target 5, the longest alone, is met by 3 + 4 - 2
    from both ends: (0, 4.5) is 4.5 and too short, (3, 4.5) is 7.5, then (3, 4) is 5.
    """
    problem = instance([3, 4, 4.5, 5], devices=2, reuse=np.array([[2.0], [0.0], [0.0], [0.0]]))
    assert real_g(problem) == steps([(3,), (0, 1)], [(2,)], devices=2)
    assert dygnex_g(problem) != real_g(problem)


def test_the_zero_group_is_never_used_up() -> None:
    problem = instance([4, 4, 4, 4, 4], devices=3)
    assert dygnex_g(problem) == steps([(4,), (3,), (2,)], [(0,), (1,)], devices=3)


def test_first_of_takes_the_solver_only_if_it_converged() -> None:
    problem = instance([1, 2, 3], devices=2)
    found = schedule_of([[(0, 1), (2,)]], 2)

    def told(*, converged: bool) -> Callable[[Instance], Attempt]:
        return lambda problem: Attempt(found, converged=converged)

    assert first_of(told(converged=True), in_order)(problem) == found
    assert first_of(told(converged=False), in_order)(problem) == in_order(problem)
    assert first_of(lambda problem: Attempt(None, converged=True), in_order)(problem) == in_order(problem)


def test_a_solver_without_time_does_not_converge() -> None:
    assert not real_l(gap=0.0, limit_s=0.01)(windows("growing", 30, 4)).converged


def test_an_integer_program_stops_within_its_gap() -> None:
    problem = windows("growing", 8, 2)
    told = real_l(gap=0.10, limit_s=30.0)(problem)
    assert told.schedule is not None
    known = exact(problem, start(problem)).bound_s
    assert epoch_seconds(told.schedule, problem) <= known * 1.12


@QUICK
@given(problem=problems(most_groups=9, limits=(2,)))
def test_the_matching_saves_the_most(problem: Instance) -> None:
    partner, saved = heaviest_matching(problem)
    together = [(i, int(j)) for i, j in enumerate(partner) if i < j]
    assert saved == pytest.approx(sum(problem.saved(i, j) for i, j in together))

    def most(left: tuple[int, ...]) -> float:
        if len(left) < 2:
            return 0.0
        first, rest = left[0], left[1:]
        joined = (problem.saved(first, j) + most(tuple(k for k in rest if k != j)) for j in rest)
        return max(most(rest), *joined)

    assert saved == pytest.approx(most(tuple(range(len(problem)))))


def test_wide_bands_are_matched_and_bounded() -> None:
    rng = np.random.default_rng(0)
    problem = instance(np.ones(60), devices=4, reuse=rng.random((60, 14)))
    partner, saved = heaviest_matching(problem)
    assert all(partner[partner[i]] == i for i in range(60) if partner[i] >= 0)
    assert 0 < saved <= most_saved(problem)
    assert epoch_seconds(best(moves=5000)(problem), problem) >= lower_bound(problem)


def test_the_longest_groups_alone_bound_a_few_steps() -> None:
    problem = instance([9, 1, 1, 1], devices=2)
    assert longest_bound(problem) == 9
    assert work_bound(problem) == 6
    assert lower_bound(problem) == 9
    assert longest_bound(instance([9, 8, 7, 6, 5, 1], devices=1, alpha_s=0.5)) == 9 + 7 + 5 + 1.5


def test_the_threshold_bound_tells_more_than_the_quick_ones() -> None:
    problem = windows("growing", 30, 8)
    near = loads_of(best(moves=50_000)(problem), problem).max(1)
    told = threshold_bound(problem, near, cells=30, thresholds=20, limit_s=5.0)
    assert told > 1.1 * lower_bound(problem)
    assert told <= epoch_seconds(best(moves=50_000)(problem), problem)


def test_a_fast_device_gets_more() -> None:
    problem = instance([4, 4, 2, 2], devices=2, limit=1, speeds=[1.0, 2.0])
    found = best(moves=2000)(problem)
    assert epoch_seconds(found, problem) == 4
    assert {step[1] for step in found.steps} == {(0,), (1,)}


def test_a_group_of_a_third_of_a_bin_is_put_with_two_others() -> None:
    problem = instance([3, 1, 1, 1, 3, 1, 1, 1], devices=2, limit=3)
    assert epoch_seconds(best(moves=20_000)(problem), problem) == 6


def test_with_an_expensive_all_reduce_steps_are_few() -> None:
    problem = windows("growing", 40, 4)
    cheap, dear = (dataclasses.replace(problem, alpha_s=alpha) for alpha in (0.0, 100.0))
    assert len(best(moves=20_000)(dear).steps) == 5 <= len(best(moves=20_000)(cheap).steps)


def test_what_is_judged_is_what_it_says() -> None:
    problem = instance([4, 2, 3, 1], devices=2, alpha_s=0.5, reuse=np.array([[1.0], [0.0], [0.0], [0.0]]))
    found = schedule_of([[(0, 1), (2,)], [(3,)]], 2)
    told = judge(found, problem, bound_s=5.0)
    assert told.seconds == (5 + 1) + 2 * 0.5
    assert told.imbalance == pytest.approx(5 / 3), "of full steps alone"
    assert told.kept == pytest.approx(0.1)
    assert told.gap == pytest.approx(0.4)
    assert set(solve_each(problem, {"a": in_order, "b": best(moves=100)})) == {"a", "b"}


def test_bins_of_three_save_what_neighbours_save() -> None:
    problem = instance([4, 4, 4], devices=1, limit=3, reuse=np.array([[2.0, 1.0], [2.0, 0.0], [0.0, 0.0]]))
    assert problem.work([2, 0, 1]) == 12 - 2 - 2
    assert problem.work([0, 2]) == 8 - 1


def test_a_schedule_is_written_and_read() -> None:
    problem = windows("growing", 20, 3)
    found = best(moves=500)(problem)
    assert from_json(found.as_json(), problem) == found
    for broken in (None, [[["x"]]], [[[0]]], found.as_json()[:-1], [[[g, g] for g in range(20)]]):
        with pytest.raises(BadInput, match="schedule"):
            from_json(broken, problem)


def test_what_cannot_be_scheduled_is_refused() -> None:
    with pytest.raises(BadConfig, match=r"0 devices.*1 or more"):
        instance([1.0], devices=0)
    with pytest.raises(BadInput, match="none below 0"):
        instance([1.0, -1.0], devices=2)
    with pytest.raises(BadInput, match="times of 0 groups"):
        instance([], devices=2)
    with pytest.raises(BadConfig, match="3 speeds were given for 2"):
        instance([1.0], devices=2, speeds=[1, 1, 1])
    with pytest.raises(BadInput, match=r"groups 0 and 1 are said to save 3 s.*more than the shorter one takes \(1 s\)"):
        Instance(seconds_K=np.array([1.0, 2.0]), reuse_KB=np.array([[3.0], [0.0]]), speeds_D=np.ones(1))
    with pytest.raises(BadConfig, match="at most 100 groups"):
        exact(windows("growing", 101, 2), in_order(windows("growing", 101, 2)))
