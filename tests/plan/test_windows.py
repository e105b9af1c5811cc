"""Windows cover what they must, in an order that is keyed, and the check of plans finds what is wrong with one."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any, Literal

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from timeloom.errors import BadConfig
from timeloom.plan.batch.windows import WindowSettings, in_epochs, scoring_windows, steps_of, training_windows
from timeloom.plan.check import problems, run_dry
from timeloom.plan.types import Step, Unit

TARGETS: tuple[Literal["all", "last"], ...] = ("all", "last")


@st.composite
def inheriting(draw: st.DrawFn) -> WindowSettings:
    length = draw(st.integers(1, 9))
    return WindowSettings(length=length, stride=draw(st.integers(0, length)), targets=draw(st.sampled_from(TARGETS)))


@st.composite
def from_zero(draw: st.DrawFn) -> WindowSettings:
    return WindowSettings(
        length=draw(st.integers(1, 9)), stride=draw(st.integers(0, 12)), targets=draw(st.sampled_from(TARGETS)),
        state="zero",
    )  # fmt: skip


def epoch_of(
    units: list[Unit], *, groups: int = 1, seed: int = 0, epoch: int = 0, shuffle: bool = False
) -> list[Step]:  # fmt: skip
    return run_dry(in_epochs(units, groups=groups, seed=seed, epoch=epoch, shuffle=shuffle))


def planned(steps: list[Step]) -> list[Unit]:
    """Return the units of rank 0 in order, after checking that no other rank has any and a step has one."""
    assert all(set(step.units) == {0} and len(step.units[0]) == 1 for step in steps)
    return [step.units[0][0] for step in steps]


@given(settings=inheriting(), count=st.integers(1, 40))
def test_windows_that_inherit_cover_every_snapshot_and_follow_each_other(settings: WindowSettings, count: int) -> None:
    units = training_windows(settings, count)
    assert list(problems(epoch_of(units), units)) == []
    assert {t for unit in units for t in range(unit.first, unit.last)} == set(range(count))
    assert units[0].fresh
    assert not any(unit.fresh for unit in units[1:])
    for before, unit in itertools.pairwise(units):
        assert before.last - before.first == settings.length
        assert unit.first - before.first == settings.step == (settings.stride or settings.length)
        assert before.keep == unit.first - 1
        assert unit.last > before.last, "no window is without a new snapshot"
    assert units[-1].last == count


@given(settings=from_zero(), count=st.integers(1, 40))
def test_windows_from_zero_are_whole_and_as_many_as_fit(settings: WindowSettings, count: int) -> None:
    if count < settings.length:
        with pytest.raises(BadConfig, match=rf"window.length={settings.length} needs.*window.length={count}, or"):
            training_windows(settings, count)
        return
    units = training_windows(settings, count)
    assert list(problems(epoch_of(units), units)) == []
    assert all(unit.fresh and unit.last - unit.first == settings.length and unit.keep == -1 for unit in units)
    step = settings.stride or 1
    assert [unit.first for unit in units] == [
        first for first in range(0, count, step) if first + units[0].last <= count
    ]


@given(settings=inheriting() | from_zero(), count=st.integers(9, 40))
def test_a_window_is_learnt_from_all_its_snapshots_or_from_the_last(settings: WindowSettings, count: int) -> None:
    for unit in training_windows(settings, count):
        whole = tuple(range(unit.first, unit.last))
        assert unit.targets == (whole if settings.targets == "all" else whole[-1:])


@given(settings=inheriting(), ends=st.tuples(st.integers(0, 30), st.integers(1, 20)), restarts=st.booleans())
def test_every_snapshot_is_scored_once_after_all_that_came_before_it(
    settings: WindowSettings, ends: tuple[int, int], restarts: bool
) -> None:
    first, last = ends[0], sum(ends)
    units = scoring_windows(settings, first, last, restarts=restarts)
    assert list(problems(epoch_of(units), units)) == []
    assert [t for unit in units for t in unit.targets] == list(range(first, last))
    assert {t for unit in units for t in range(unit.first, unit.last)} == set(range(last))
    assert [unit.fresh for unit in units] == [True] + [False] * (len(units) - 1)
    if restarts:
        trained = training_windows(settings, last)
        assert [(unit.first, unit.last, unit.keep) for unit in units] == [(u.first, u.last, u.keep) for u in trained]
    else:
        assert all(unit.last - unit.first == 1 for unit in units)


@given(settings=from_zero(), ends=st.tuples(st.integers(0, 30), st.integers(1, 20)), restarts=st.booleans())
def test_where_windows_start_from_zero_each_scored_snapshot_ends_one_of_its_own(
    settings: WindowSettings, ends: tuple[int, int], restarts: bool
) -> None:
    units = scoring_windows(settings, ends[0], sum(ends), restarts=restarts)
    assert list(problems(epoch_of(units), units)) == []
    assert [unit.targets for unit in units] == [(t,) for t in range(ends[0], sum(ends))]
    for unit in units:
        (t,) = unit.targets
        assert (unit.fresh, unit.last, unit.last - unit.first) == (True, t + 1, min(settings.length, t + 1))


@given(settings=inheriting(), count=st.integers(2, 40), restarts=st.booleans())
def test_the_score_of_a_snapshot_needs_no_later_one(settings: WindowSettings, count: int, restarts: bool) -> None:
    """Whatever comes after it, a snapshot is reached over the same windows."""

    def places(last: int) -> dict[int, int]:
        units = scoring_windows(settings, 0, last, restarts=restarts)
        return {t: unit.first for unit in units for t in unit.targets}

    whole = places(count)
    for last in range(1, count):
        assert places(last).items() <= whole.items()


@given(
    settings=from_zero(), count=st.integers(9, 40), seed=st.integers(0, 2**63 - 1), epoch=st.integers(0, 10**6),
)  # fmt: skip
def test_an_epoch_has_every_unit_once_in_an_order_that_seed_and_epoch_tell(
    settings: WindowSettings, count: int, seed: int, epoch: int
) -> None:
    units = training_windows(settings, count)
    steps = epoch_of(units, seed=seed, epoch=epoch, shuffle=True)
    assert list(problems(steps, units)) == []
    assert sorted(planned(steps), key=lambda unit: unit.first) == units
    assert [step.ends_epoch for step in steps] == [False] * (len(units) - 1) + [True]
    assert epoch_of(units, seed=seed, epoch=epoch, shuffle=True) == steps
    assert planned(epoch_of(units, seed=seed, epoch=epoch, shuffle=False)) == units


@given(seed=st.integers(0, 2**62), epoch=st.integers(0, 10**6))
def test_another_epoch_or_another_seed_has_another_order(seed: int, epoch: int) -> None:
    units = training_windows(WindowSettings(length=1, state="zero"), 40)
    orders = [
        planned(epoch_of(units, seed=s, epoch=e, shuffle=True))
        for s, e in ((seed, epoch), (seed, epoch + 1), (seed + 1, epoch))
    ]  # fmt: skip
    assert orders[0] != orders[1]
    assert orders[0] != orders[2]
    assert orders[0] != units


def test_settings_that_contradict_each_other_are_refused() -> None:
    for given_, sentence in (
        ({"length": 0}, "window.length=0 is too short"),
        ({"stride": -1}, "window.stride=-1 goes back in time"),
        ({"length": 3, "stride": 4}, "window.stride=4 leaves out snapshots .* use a stride of 3 or less"),
    ):
        with pytest.raises(BadConfig, match=sentence):
            WindowSettings(**given_)  # type: ignore[arg-type]
    assert WindowSettings(length=3, stride=4, state="zero").step == 4
    assert WindowSettings(length=3, state="zero").step == 1
    assert WindowSettings(length=3).step == 3


CHAIN = training_windows(WindowSettings(length=4, stride=2), 11)


def changed(number: int, **changes: object) -> list[Unit]:
    """Return the chain with one unit altered."""
    units = list(CHAIN)
    units[number] = dataclasses.replace(units[number], **changes)  # type: ignore[arg-type]
    return units


def found(units: list[Unit], wanted: list[Unit]) -> list[str]:
    return list(problems(epoch_of(units), wanted))


def test_a_unit_that_is_planned_twice_or_not_at_all_is_found() -> None:
    assert found(CHAIN, CHAIN) == []
    twice = [*CHAIN, dataclasses.replace(CHAIN[0])]
    assert any("is planned 2 times, not 1" in told for told in found(twice, CHAIN))
    assert any("is planned 0 times, not 1" in told for told in found(CHAIN[:-1], CHAIN))
    assert any("is planned 1 times, not 2" in told for told in found(CHAIN, [*CHAIN, CHAIN[0]]))
    assert any("no unit of the epoch" in told for told in found(changed(0, targets=(1,)), CHAIN))


@pytest.mark.parametrize("targets", [(1,), (2, 6), (-1, 3)])
def test_targets_outside_their_snapshots_are_found(targets: tuple[int, ...]) -> None:
    units = changed(1, targets=targets)
    assert (units[1].first, units[1].last) == (2, 6)
    assert ["targets outside" in told for told in found(units, units)] == [True]


def test_a_unit_without_snapshots_is_found() -> None:
    units = changed(1, last=2, targets=(), keep=-1)
    assert any("outside" in told for told in found(units, units))


def test_a_broken_chain_of_states_is_found() -> None:
    for number, changes in ((1, {"keep": 4}), (1, {"keep": -1}), (0, {"keep": -1}), (2, {"first": 3})):
        units = changed(number, **changes)
        assert any("goes on after snapshot" in told for told in found(units, units)), (number, changes)
    assert any("kept was None" in told for told in found(CHAIN[1:], CHAIN[1:]))
    swapped = [CHAIN[0], CHAIN[2], CHAIN[1], *CHAIN[3:]]
    assert any("goes on after snapshot 3, kept was 1" in told for told in found(swapped, CHAIN))
    # What another rank kept is of no use.
    steps = epoch_of(CHAIN)
    steps[1] = Step(units={1: steps[1].units[0]}, ends_epoch=False)
    assert any("step 1" in told and "kept was None" in told for told in problems(steps, CHAIN))


def test_a_state_that_is_kept_of_a_snapshot_outside_the_unit_is_found() -> None:
    units = [
        Unit(first=0, last=2, targets=(1,), fresh=True, keep=5),
        Unit(first=6, last=8, targets=(7,), fresh=False),
    ]
    assert ["keeps the state of a snapshot outside" in told for told in found(units, units)] == [True]


@given(st.data())
def test_any_swap_of_units_that_inherit_is_found(data: st.DataObject) -> None:
    one, other = data.draw(st.integers(0, len(CHAIN) - 1)), data.draw(st.integers(0, len(CHAIN) - 1))
    assume(one != other)
    units = list(CHAIN)
    units[one], units[other] = units[other], units[one]
    assert found(units, CHAIN)


def test_an_epoch_that_ends_at_another_step_than_the_last_is_found() -> None:
    steps = epoch_of(CHAIN)
    early = [dataclasses.replace(step, ends_epoch=number == 1) for number, step in enumerate(steps)]
    assert [told.split(" says")[0] for told in problems(early, CHAIN)] == ["step 1 of 5", "step 4 of 5"]
    never = [dataclasses.replace(step, ends_epoch=False) for step in steps]
    assert list(problems(never, CHAIN)) == ["step 4 of 5 says ends_epoch=False"]


@given(count=st.integers(1, 30), groups=st.integers(1, 5), epoch=st.integers(0, 3))
def test_a_step_has_so_many_windows_that_follow_each_other(count: int, groups: int, epoch: int) -> None:
    settings = WindowSettings(length=3, state="zero", groups=groups)
    units = training_windows(settings, count + 2)
    steps = epoch_of(units, groups=groups, epoch=epoch, shuffle=True)
    assert list(problems(steps, units)) == []
    assert len(steps) == steps_of(settings, count + 2)
    for step in steps:
        firsts = [unit.first for unit in step.units[0]]
        assert firsts == list(range(firsts[0], firsts[0] + len(firsts)))
        assert firsts[0] % groups == 0
        assert len(firsts) == min(groups, count - firsts[0])


@pytest.mark.parametrize(("groups", "state"), [(0, "zero"), (2, "inherit")])
def test_several_windows_of_a_step_start_from_zero(groups: int, state: Any) -> None:
    with pytest.raises(BadConfig, match=r"window.groups=\d: give 1 or more"):
        WindowSettings(groups=groups, state=state)
