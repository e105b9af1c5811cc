"""Windows of FlareDTDG are nested, go on from what was kept, and are plain where nothing shrinks (T17, T18, T21)."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.plan.flare import Scene, flare_settings, scenes
from timeloom.errors import BadConfig
from timeloom.plan.batch.flare import FlareSettings
from timeloom.plan.batch.kept import NOT_READ, kept_after, kept_before, out_of_step, state_rows
from timeloom.plan.batch.order import chunk_order
from timeloom.plan.batch.trapezoid import cut_of, exchanging, in_trapezoids, trapezoids, trapezoids_of_epoch
from timeloom.plan.batch.windows import WindowSettings, training_windows
from timeloom.plan.check import problems, run_dry
from timeloom.plan.types import Step, Unit


def flat(steps: list[tuple[Unit, ...]]) -> list[Unit]:
    return [unit for units in steps for unit in units]


@given(settings=flare_settings())
def test_counts_never_rise_with_age_and_a_block_has_a_chunk(settings: FlareSettings) -> None:
    """T17: n_1 >= ... >= n_m >= 1, and the full snapshots are whole."""
    counts = settings.counts
    assert len(counts) == settings.length
    assert counts[: settings.full] == (settings.chunks,) * settings.full
    assert all(newer >= older >= 1 for newer, older in itertools.pairwise(counts))


@pytest.mark.parametrize(
    ("decay", "counts"), [("paper", (87, 59, 40, 28, 19, 13)), ("public", (13, 8, 5, 3, 2, 1))]
)  # fmt: skip
def test_counts_of_128_chunks_are_those_of_the_paper_and_of_the_public_code(
    decay: Any, counts: tuple[int, ...]
) -> None:
    assert FlareSettings(decay=decay).counts == (128, 128, *counts)
    assert FlareSettings(decay=decay, history="full").counts == (128,) * 8
    assert FlareSettings(decay=decay, history="recent").counts == (128, 128)


def test_few_chunks_never_come_to_none() -> None:
    assert FlareSettings(chunks=16, decayed=6).counts == (16, 16, 11, 7, 5, 3, 2, 2)
    assert FlareSettings(chunks=2, decayed=3, decay="public").counts == (2, 2, 1, 1, 1)
    assert FlareSettings(chunks=10, decayed=2, decay="list", ratios=(0.5, 0.01)).counts == (10, 10, 5, 1)
    assert FlareSettings(decayed=1, decay="public").counts == (128, 128, 13)


def test_a_tiny_epoch_by_hand() -> None:
    """2 full and 2 decayed snapshots of 4 chunks, of which 2 and 1 are left, over 6 snapshots."""
    settings = FlareSettings(full=2, decayed=2, chunks=4, decay="list", ratios=(0.5, 0.25))
    units = flat(trapezoids(settings, 6))
    assert [(unit.first, unit.last, unit.chunks, unit.kept_from) for unit in units] == [
        (0, 2, (4, 4), (2, 4)),
        (0, 3, (2, 4, 4), (1, 2, 4)),
        (0, 4, (1, 2, 4, 4), (0, 1, 2, 4)),
        (1, 5, (1, 2, 4, 4), (0, 1, 2, 4)),
        (2, 6, (1, 2, 4, 4), (0, 1, 2, 4)),
    ]
    assert [unit.fresh for unit in units] == [True, False, False, False, False]
    assert [unit.keep for unit in units] == [-1, -1, 0, 1, 2]
    assert [unit.targets for unit in units] == [(1,), (2,), (3,), (4,), (5,)]
    ends = np.array([0, 3, 5, 6, 10])
    assert [(rows.going_on, rows.size, rows.kept_from) for rows in state_rows(units[3], ends)] == [
        (0, 3, 0), (3, 5, 3), (5, 10, 5), (10, 10, 10)
    ]  # fmt: skip
    # The window of 0 to 4 computes chunk 0 of all, chunk 1 from snapshot 1 on, chunks 2 and 3 from 2 on; the next one
    # begins a snapshot later with each, and so reads what each came to in the first snapshot that it then leaves out.
    assert kept_after(units[:3], ends).tolist() == [0, 0, 0, 1, 1, 2, 2, 2, 2, 2]
    assert kept_before(units[3], ends).tolist() == [0, 0, 0, 1, 1, 2, 2, 2, 2, 2]


@given(settings=flare_settings(), count=st.integers(1, 20), seed=st.integers(0, 99), zero=st.booleans())
def test_every_epoch_passes_the_check_on_any_number_of_ranks(
    settings: FlareSettings, count: int, seed: int, zero: bool
) -> None:
    assume(count >= settings.full)
    if zero:
        settings = dataclasses.replace(settings, state="zero", warmup=False)
    steps = trapezoids_of_epoch(settings, count, seed=seed, epoch=1)
    for num_ranks in (1, 3):
        planned = run_dry(in_trapezoids(steps, num_ranks=num_ranks))
        assert list(problems(planned, flat(steps) * num_ranks)) == []
        assert [set(step.units) for step in planned] == [set(range(num_ranks))] * len(steps)


@given(settings=flare_settings(), count=st.integers(4, 20))
def test_a_window_ends_with_every_snapshot_from_the_first_full_one_on(settings: FlareSettings, count: int) -> None:
    """D7.3: windows start as soon as there are `full` snapshots, and grow at the start."""
    units = flat(trapezoids(settings, count))
    assert [unit.last for unit in units] == list(range(settings.full, count + 1))
    for unit in units:
        assert unit.last - unit.first == min(unit.last, settings.length)
        assert unit.chunks == settings.counts[: len(unit.chunks)][::-1]
        assert unit.targets == ((unit.last - 1,) if settings.loss == "last" else tuple(range(unit.first, unit.last)))


@given(settings=flare_settings(), count=st.integers(1, 20), data=st.data())
def test_what_a_window_reads_as_kept_was_kept_after_the_snapshot_before(
    settings: FlareSettings, count: int, data: st.DataObject
) -> None:
    """The block-size identity of T18, on rows of an order with chunks of any size."""
    assume(count >= settings.full)
    sizes = data.draw(st.lists(st.integers(0, 3), min_size=settings.chunks, max_size=settings.chunks))
    ends = np.concatenate([[0], np.cumsum(sizes)])
    units = flat(trapezoids_of_epoch(settings, count, seed=1, epoch=data.draw(st.integers(0, 9))))
    for place, unit in enumerate(units):
        assert out_of_step(kept_after(units[:place], ends), unit, ends) == 0
        rows = state_rows(unit, ends)
        assert rows[0].going_on == 0
        assert rows[-1].size == ends[-1]
        for before, after in itertools.pairwise(rows):
            assert before.size == after.going_on <= after.size
        kept = [(one.kept_from, one.size) for one in rows]
        assert sum(high - low for low, high in kept) <= ends[-1], "one kept state a node is all there is"


def full_history(settings: FlareSettings, count: int) -> list[list[str]]:
    """Walk an epoch with one word for the state of each chunk: the snapshots that it went through, in order.

    Return the words of all chunks after the last snapshot of each window.
    """
    ends, kept, told = np.arange(settings.chunks + 1), [""] * settings.chunks, list[list[str]]()
    for unit in flat(trapezoids(settings, count)):
        if unit.fresh:
            kept = [""] * settings.chunks
        before, after = list[str](), list[tuple[int, list[str]]]()
        for rows in state_rows(unit, ends):
            begin = before[: rows.going_on] + kept[rows.going_on : rows.size]
            before = [f"{word}{rows.t}." for word in begin]
            after.append((rows.kept_from, before))
        for kept_from, words in after:
            kept[kept_from : len(words)] = words[kept_from:]
        told.append(before)
    return told


@given(settings=flare_settings(), count=st.integers(1, 14))
def test_with_frozen_parameters_every_state_went_over_the_full_history(settings: FlareSettings, count: int) -> None:
    """T18, on the level of which snapshots a state has gone through: all of them, in order, each once.

    Shrunk blocks see fewer neighbours, which words do not tell: that the states are equal too needs alpha = 1.
    """
    assume(count >= settings.full)
    settings = dataclasses.replace(settings, split=False, warmup=False)
    for place, words in enumerate(full_history(settings, count)):
        last = settings.full + place
        assert words == ["".join(f"{t}." for t in range(last))] * settings.chunks


@given(full=st.integers(1, 5), count=st.integers(1, 14), loss=st.sampled_from(("last", "blocks")))
def test_without_decayed_snapshots_windows_are_plain_sliding_windows(full: int, count: int, loss: Any) -> None:
    """T18: m = 0 is truncated backpropagation through `full` snapshots."""
    assume(count >= full)
    plain = WindowSettings(length=full, stride=1, targets="last" if loss == "last" else "all")
    for settings in (
        FlareSettings(full=full, decayed=0, loss=loss), FlareSettings(full=full, loss=loss, history="recent"),
    ):  # fmt: skip
        units = flat(trapezoids(settings, count))
        assert {chunks for unit in units for chunks in unit.chunks} == {settings.chunks}
        assert [dataclasses.replace(u, chunks=(), kept_from=()) for u in units] == training_windows(plain, count)
        for unit in units:
            assert unit.kept_from == (0,) + (settings.chunks,) * (full - 1), "all states, after the one that leaves"


@given(full=st.integers(1, 3), decayed=st.integers(1, 4), count=st.integers(1, 14))
def test_where_nothing_shrinks_windows_are_plain_once_they_have_grown(full: int, decayed: int, count: int) -> None:
    """T18: alpha = 1, by every way of saying it."""
    length = full + decayed
    assume(count >= length)
    plain = training_windows(WindowSettings(length=length, stride=1, targets="last"), count)
    for more in (
        {"alpha": 1.0}, {"alpha": 1.0, "decay": "public"}, {"decay": "list", "ratios": (1.0,) * decayed},
        {"history": "full"}, {"chunks": 1},
    ):  # fmt: skip
        settings = FlareSettings(full=full, decayed=decayed, **more)
        units = flat(trapezoids(settings, count))
        assert {chunks for unit in units for chunks in unit.chunks} == {settings.chunks}
        grown = [dataclasses.replace(unit, chunks=(), kept_from=()) for unit in units[decayed:]]
        assert [dataclasses.replace(unit, fresh=False) for unit in plain] == grown


@given(settings=flare_settings(), count=st.integers(2, 20), epoch=st.integers(0, 20))
def test_no_window_goes_over_the_cut_and_both_parts_start_anew(settings: FlareSettings, count: int, epoch: int) -> None:
    """T21: the later part first; a state of one part is never read by the other."""
    assume(count >= settings.full)
    settings = dataclasses.replace(settings, split=True)
    cut = cut_of(settings, count, seed=5, epoch=epoch)
    assert cut == cut_of(settings, count, seed=5, epoch=epoch)
    steps = trapezoids_of_epoch(settings, count, seed=5, epoch=epoch)
    assert steps, "an epoch without a step"
    assert steps == trapezoids(settings, count, cut=cut)
    windows = [units[-1] for units in steps]
    later = [unit for unit in windows if unit.first >= cut]
    earlier = [unit for unit in windows if unit.last <= cut]
    assert windows == later + earlier
    assert [unit.last for unit in later] == list(range(cut + settings.full, count + 1))
    assert [unit.last for unit in earlier] == list(range(settings.full, cut + 1))
    for part in (later, earlier):
        begin = cut if part is later else 0
        warm = settings.warmup and begin > 0
        assert [unit.fresh for unit in part] == [not warm and place == 0 for place in range(len(part))]
    extra = [unit for units in steps for unit in units[:-1]]
    assert len(extra) == (1 if settings.warmup and cut and later else 0)
    for unit in extra:
        assert (unit.fresh, unit.targets, unit.last) == (True, (), cut)
        assert unit.last - unit.first == min(cut, settings.length)


def test_cuts_reach_every_place_that_leaves_a_window_and_no_other() -> None:
    settings = FlareSettings(full=4, split=True)
    drawn = {cut_of(settings, 6, seed=1, epoch=epoch) for epoch in range(200)}
    assert drawn == {1, 2, 4, 5}
    assert {cut_of(FlareSettings(full=4), 6, seed=1, epoch=epoch) for epoch in range(20)} == {0}
    assert cut_of(settings, 4, seed=1, epoch=0) == 0, "a cut would leave no window"
    by_seed = {cut_of(settings, 6, seed=seed, epoch=0) for seed in range(200)}
    assert by_seed == {1, 2, 4, 5}


@given(scene=scenes(most_owners=2), settings=flare_settings())
def test_rows_of_a_window_are_prefixes_of_one_order_and_lie_inside_each_other(
    scene: Scene, settings: FlareSettings
) -> None:
    """T17: the same chunk count for every owner, whatever the owner's nodes."""
    settings = dataclasses.replace(settings, chunks=scene.chunking.per_owner)
    order = chunk_order(scene.chunking, seed=scene.seed, epoch=scene.epoch)
    for unit in flat(trapezoids(settings, settings.length + 2)):
        for ends in (order.ends, *(order.own(owner).ends for owner in range(scene.chunking.num_owners))):
            sizes = [rows.size for rows in state_rows(unit, ends)]
            assert sizes == sorted(sizes)
            assert sizes[-1] == ends[-1]


def test_ranks_exchange_rows_of_whole_snapshots_and_of_decayed_ones_where_asked() -> None:
    settings = FlareSettings(full=1, decayed=3, chunks=4, decay="list", ratios=(1.0, 0.5, 0.25))
    unit = flat(trapezoids(settings, 4))[-1]
    assert unit.chunks == (1, 2, 4, 4)
    assert exchanging(settings, unit) == (False, False, True, True)
    assert exchanging(dataclasses.replace(settings, temporal_halo="exchange"), unit) == (True,) * 4


SETTINGS = FlareSettings(full=2, decayed=2, chunks=4, decay="list", ratios=(0.5, 0.25))
CHAIN = flat(trapezoids(SETTINGS, 8))


def found(units: list[Unit]) -> list[str]:
    return list(problems(run_dry(in_trapezoids([(unit,) for unit in units])), units))


@pytest.mark.parametrize(
    ("place", "changes", "sentence"),
    [
        (3, {"chunks": (2, 1, 4, 4)}, "more of a snapshot than of the one after"),
        (3, {"chunks": (0, 2, 4, 4)}, "without a chunk"),
        (3, {"chunks": (2, 4, 4)}, "has chunks for 3 and keeps from 4"),
        (3, {"chunks": (2, 2, 4, 4)}, "goes on after snapshot 0 with chunks 0 to 2, kept was [1]"),
        (3, {"kept_from": (0, 3, 2, 4)}, "keeps chunks that it does not compute"),
        (3, {"kept_from": (1, 1, 2, 4)}, "goes on after snapshot 1 with chunks 0 to 1, kept was [0]"),
        (3, {"kept_from": (0, 1, 3, 4)}, "goes on after snapshot 3 with chunks 2 to 4"),
        (0, {"fresh": False}, "there is none"),
        (2, {"first": 1, "chunks": (2, 4, 4), "kept_from": (1, 2, 4)}, "goes on after snapshot 0 with chunks 0 to 2"),
    ],
)
def test_the_check_finds_a_window_that_goes_on_from_what_was_not_kept(
    place: int, changes: dict[str, Any], sentence: str
) -> None:
    assert found(CHAIN) == []
    units = list(CHAIN)
    units[place] = dataclasses.replace(units[place], **changes)
    assert any(sentence in told for told in found(units)), found(units)


@given(st.data())
def test_the_check_finds_any_swap_of_windows(data: st.DataObject) -> None:
    one, other = data.draw(st.integers(0, len(CHAIN) - 1)), data.draw(st.integers(0, len(CHAIN) - 1))
    assume(one != other)
    units = list(CHAIN)
    units[one], units[other] = units[other], units[one]
    assert found(units)


def test_the_check_finds_ranks_that_are_not_in_step() -> None:
    steps = run_dry(in_trapezoids([(unit,) for unit in CHAIN], num_ranks=2))
    assert list(problems(steps, CHAIN * 2)) == []
    steps[1] = Step(units={0: steps[1].units[0], 1: steps[2].units[1]}, ends_epoch=False)
    assert any("step 1: ranks compute different windows" in told for told in problems(steps, CHAIN * 2))


def test_states_of_other_chunks_are_counted() -> None:
    """A run that goes on with other chunks in the middle of an epoch has some states that are not in step."""
    ends = np.array([0, 2, 4, 6, 8])
    after_N = kept_after(CHAIN[:4], ends)
    assert after_N.tolist() == [1, 1, 2, 2, 3, 3, 3, 3]
    assert out_of_step(after_N, CHAIN[4], ends) == 0
    assert out_of_step(after_N[::-1], CHAIN[4], ends) == 8
    assert out_of_step(after_N[[2, 3, 0, 1, 4, 5, 6, 7]], CHAIN[4], ends) == 4
    assert out_of_step(after_N[::-1], CHAIN[0], ends) == 0, "a fresh unit reads nothing"
    assert (kept_before(CHAIN[0], ends) == NOT_READ).all()


@pytest.mark.parametrize(
    ("given_", "sentence"),
    [
        ({"full": 0}, "flare.full=0, .* 1 full"),
        ({"decayed": -1}, "flare.decayed=-1"),
        ({"chunks": 0}, "flare.chunks=0"),
        ({"alpha": 0.0}, "flare.alpha=0 is no share"),
        ({"alpha": 1.5}, "flare.alpha=1.5 is no share"),
        ({"ratios": (0.5,)}, "flare.ratios has 1 shares, but flare.decay=paper reads flare.alpha"),
        ({"decay": "list"}, r"each of the flare.decayed=6 decayed snapshots, .* there are 0"),
        ({"decay": "list", "decayed": 2, "ratios": (0.5,)}, "there are 1"),
        ({"decay": "list", "decayed": 2, "ratios": (0.2, 0.5)}, "never rise"),
        ({"decay": "list", "decayed": 1, "ratios": (1.1,)}, "up to 1"),
        ({"warmup": True}, "--set flare.split=true"),
        ({"warmup": True, "split": True, "state": "zero"}, "flare.state=inherit"),
    ],
)
def test_settings_that_cannot_be_meant_are_refused(given_: dict[str, Any], sentence: str) -> None:
    with pytest.raises(BadConfig, match=sentence):
        FlareSettings(**given_)


def test_too_few_snapshots_are_refused() -> None:
    with pytest.raises(BadConfig, match=r"flare.full=5 needs 5 snapshots .* there are 3: use --set flare.full=3"):
        trapezoids(FlareSettings(full=5), 3)
