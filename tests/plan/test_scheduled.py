"""A plan carries out a schedule: each group once, steps in a keyed order, ranks with nothing to do named."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from timeloom.errors import BadConfig
from timeloom.plan.batch.scheduled import scheduled
from timeloom.plan.batch.windows import WindowSettings, training_windows
from timeloom.plan.check import problems, run_dry
from timeloom.plan.schedule.best import best
from timeloom.plan.schedule.instance import instance
from timeloom.plan.schedule.schedule import Schedule, schedule_of


def made(count: int, devices: int, limit: int = 2) -> tuple[list, Schedule]:  # type: ignore[type-arg]
    rng = np.random.default_rng(count)
    found = best(moves=500)(instance(rng.random(count) + 0.1, devices=devices, limit=limit))
    return training_windows(WindowSettings(length=3, state="zero"), count + 2), found


@settings(max_examples=30, deadline=None)
@given(count=st.integers(1, 30), devices=st.integers(1, 5), limit=st.integers(1, 3), epoch=st.integers(0, 3))
def test_each_group_comes_once_an_epoch_and_no_rank_has_too_many(
    count: int, devices: int, limit: int, epoch: int
) -> None:
    """T14."""
    units, found = made(count, devices, limit)
    steps = run_dry(scheduled(units, found, seed=1, epoch=epoch, shuffle=True))
    assert list(problems(steps, units)) == []
    assert all(set(step.units) == set(range(devices)) for step in steps)
    assert all(len(ours) <= limit for step in steps for ours in step.units.values())


def test_steps_come_in_another_order_in_every_epoch_and_stay_whole() -> None:
    """T9, as far as plans go: the steps of two epochs are the same sets of groups on the same ranks."""
    units, found = made(40, 2)

    def epoch(number: int, *, seed: int = 0, shuffle: bool = True) -> list[dict]:  # type: ignore[type-arg]
        return [dict(step.units) for step in run_dry(scheduled(units, found, seed=seed, epoch=number, shuffle=shuffle))]

    assert epoch(0) == epoch(0)
    assert epoch(0) != epoch(1) != epoch(2)
    assert epoch(0, seed=1) != epoch(0)
    assert sorted(map(str, epoch(0))) == sorted(map(str, epoch(1)))
    plain = epoch(5, shuffle=False)
    assert plain == [{r: tuple(units[g] for g in groups) for r, groups in enumerate(step)} for step in found.steps]


def test_a_schedule_of_other_windows_is_refused() -> None:
    units, found = made(10, 2)
    with pytest.raises(BadConfig, match="schedule of 10 groups cannot be trained on 9"):
        next(scheduled(units[:-1], found, seed=0, epoch=0, shuffle=True))
    inherits = training_windows(WindowSettings(length=2), 4)
    with pytest.raises(BadConfig, match=r"window\.state=zero"):
        next(scheduled(inherits, schedule_of([[(0,), (1,)]], 2), seed=0, epoch=0, shuffle=True))
