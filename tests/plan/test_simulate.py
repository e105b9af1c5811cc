"""The simulator tells what a schedule takes, and what an all-reduce adds."""

from __future__ import annotations

import numpy as np
import pytest

from timeloom.errors import BadConfig
from timeloom.graph.synth import SizesOptions, make_sizes
from timeloom.plan.machine import BUILT_IN
from timeloom.plan.picture import as_svg, as_text
from timeloom.plan.reuse import Encoding, GroupTimes, Way, changes_of_sizes, group_times
from timeloom.plan.schedule.best import best
from timeloom.plan.schedule.instance import instance
from timeloom.plan.schedule.plain import in_order, pair_consecutive
from timeloom.plan.schedule.schedule import schedule_of, solve
from timeloom.plan.simulate import Network, simulate, with_noise


def times(curve: str, count: int) -> GroupTimes:
    sizes = make_sizes(SizesOptions(curve=curve, num_snapshots=count, num_nodes=10_000, num_edges=50_000))
    ways: tuple[Way, ...] = ("full", "versions", "delta")
    return group_times(changes_of_sizes(sizes), length=4, stride=1, encoding=Encoding(), costs=BUILT_IN, ways=ways)


@pytest.mark.parametrize("curve", ["growing", "flat", "bursty"])
def test_ours_scales_the_furthest(curve: str) -> None:
    schedulers = {"in_order": in_order, "type_2": pair_consecutive, "best": best(moves=30_000)}
    rows = list(simulate(times(curve, 500), schedulers, [4, 32, 128], Network()))
    assert len(rows) == 9
    for first in range(0, 9, 3):
        plain, pairs, ours = (row.efficiency for row in rows[first : first + 3])
        assert 0 < max(plain, pairs) <= ours <= 1 + 1e-9


def test_an_epoch_is_the_sum_of_the_longest_loads_and_of_an_all_reduce_a_step() -> None:
    network = Network(bytes=1000, bytes_per_s=1e6, latency_s=0.25)
    assert network.all_reduce_s(1) == 0.0
    assert network.all_reduce_s(4) == pytest.approx(2 * 3 * (0.25 + 250 / 1e6))
    told = GroupTimes(np.array([3.0, 1.0, 2.0]), np.zeros(3), np.zeros((3, 0)))
    (row,) = simulate(told, {"psg": in_order}, [2], network)
    assert row.judged.seconds == pytest.approx(3 + 2 + 2 * network.all_reduce_s(2))
    assert row.efficiency == pytest.approx(6 / (2 * row.judged.seconds))
    with pytest.raises(BadConfig, match="-1 bytes"):
        Network(bytes=-1)


def test_times_that_were_told_wrong_make_epochs_longer() -> None:
    problem = instance([1.0] * 64, devices=8)
    told = solve(problem, best(moves=2000))
    noisy = with_noise(told, problem, share=0.05, seed=1)
    assert len(noisy) == 20
    assert noisy.mean() > told.seconds
    assert noisy.tolist() == with_noise(told, problem, share=0.05, seed=1).tolist()


def test_a_picture_shows_who_works_and_who_waits() -> None:
    problem = instance([4.0, 2.0, 4.0], devices=2)
    found = schedule_of([[(0,), (1,)], [(2,)]], 2)
    lines = as_text(found, problem, width=16)
    assert lines == ["device 0    ████████│███████", "device 1    ████····│·······"]
    drawn = as_svg(found, problem)
    assert drawn.count("<rect") == 3
    assert "step 1, device 0: groups 2, 4 s" in drawn
    assert as_text(found, problem, most_devices=1)[-1] == "... and 1 more devices"
