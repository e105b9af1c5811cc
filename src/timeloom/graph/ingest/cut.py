"""Where each snapshot begins: windows cut from the times that were seen, or further windows by the same rules."""

from __future__ import annotations

import numpy as np

from timeloom.errors import BadConfig, BadInput
from timeloom.graph.ingest.gather import Gathered
from timeloom.graph.ingest.rules import Windows
from timeloom.graph.ingest.runs import Runs
from timeloom.graph.keys import Int64s
from timeloom.graph.times import MOST_SNAPSHOTS, cut_evenly, cut_every, read_duration

Cut = tuple[Int64s, int]
"""The start of each window, and where the last one ends."""


def cut_first(windows: Windows, gathered: Gathered, *, origin: str | None, num_untimed: int) -> Cut:
    """Return the windows of a new graph; a graph without times gets ``num_untimed`` snapshots."""
    if origin is not None and windows.kind != "every":
        raise BadConfig(f"--origin {origin} goes with --every only: leave it out")
    if windows.kind == "single":
        return np.arange(num_untimed, dtype=np.int64), num_untimed
    first, last, clock = gathered.earliest, gathered.latest, gathered.clock
    if first > last:
        raise BadInput(
            "no row is left to make a graph of: every one was dropped (self loops, --start, --stop or bad rows)"
        )
    if windows.kind == "every":
        begin = None if origin is None else clock.read(origin)
        if begin is not None and begin > first:
            raise BadConfig(f"--origin {origin} is after the first event ({clock.show(first)}): give an earlier one")
        return cut_every(clock, read_duration(windows.amount, clock), first, last, begin)
    if windows.kind == "snapshots":
        return cut_evenly(int(windows.amount), first, last)
    return _cut_by_events(windows, gathered)


def cut_more(windows: Windows, gathered: Gathered, starts: Int64s, end: int) -> Cut:
    """Return the windows that follow a graph whose windows began at ``starts`` and ended at ``end``."""
    last, clock = gathered.latest, gathered.clock
    if windows.kind == "single":
        raise BadConfig("this graph has no times, so nothing can be appended to it: ingest everything again")
    if gathered.earliest > last:
        raise BadInput("there is nothing to append: no row is left of the new events")
    if windows.kind == "every":
        return cut_every(clock, read_duration(windows.amount, clock), end, last, end)
    if windows.kind == "snapshots":
        count = int(windows.amount)
        # The windows of the first ingest share its span evenly; later ones go on with the same length.
        whole = end if len(starts) == count else _end_of_first(starts, count)
        more, upto = cut_evenly(count, int(starts[0]), whole - 1, more_until=last)
        return more[len(starts) :], upto
    return _cut_by_events(windows, gathered)


def _end_of_first(starts: Int64s, count: int) -> int:
    """Return where the first ``count`` windows of a longer graph end."""
    return int(starts[count])


def _cut_by_events(windows: Windows, gathered: Gathered) -> Cut:
    """Return windows at each distinct time, or at the times at which so many events are reached."""
    if windows.kind == "given":
        starts = np.array(sorted(gathered.moments), np.int64)
    else:
        assert gathered.sorted_times is not None
        starts = _by_events(gathered.sorted_times, int(windows.amount))
    if len(starts) > MOST_SNAPSHOTS:
        raise _too_many(len(starts))
    return starts, max(gathered.latest, int(starts[-1])) + 1


def _too_many(count: int) -> BadConfig:
    return BadConfig(
        f"this would make {count} snapshots or more, and at most {MOST_SNAPSHOTS} are kept: use longer windows"
    )


def _by_events(times: Runs, per_window: int) -> Int64s:
    """Return the starts of windows of at least ``per_window`` events; one closes only where the time changes."""
    starts: list[int] = []
    in_window, previous = 0, None
    for block in times.merged(1 << 20):
        moments, counts = np.unique(block["time"], return_counts=True)
        for moment, count in zip(moments.tolist(), counts.tolist(), strict=True):
            if not starts or (in_window >= per_window and moment != previous):
                starts.append(moment)
                in_window = 0
                if len(starts) > MOST_SNAPSHOTS:
                    raise _too_many(len(starts))
            in_window += count
            previous = moment
    return np.array(starts, np.int64)
