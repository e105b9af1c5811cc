"""How a sequence of snapshots becomes FlareDTDG's windows: some snapshots whole, older ones shrinking (SPEC section 7).

Windows end one snapshot later each. The first has the first `full` snapshots (D7.3), and windows grow until they have
`length` snapshots. Of a snapshot that is `age` snapshots older than the newest of its window, `counts[age]` chunks are
computed.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from timeloom.errors import BadConfig
from timeloom.plan.batch.flare import FlareSettings
from timeloom.plan.types import Plan, Step, Unit

# What is drawn is the third word of a key, after the seed and the epoch. Not 0: a key that ends in 0 is a shorter one.
_OF_CUT = 0x637574


def trapezoids(settings: FlareSettings, num_snapshots: int, *, cut: int = 0) -> list[tuple[Unit, ...]]:
    """Return the units of each step over snapshots 0 to ``num_snapshots``, in the order in which they are done.

    With ``cut`` the snapshots from there on come first, then those before it; no window goes over the cut, and a part
    with fewer than `full` snapshots has no window. A step has one unit, and before it the warm-up where there is one.
    """
    if num_snapshots < settings.full:
        raise BadConfig(
            f"flare.full={settings.full} needs {settings.full} snapshots to train on, but there are {num_snapshots}: "
            f"use --set flare.full={max(num_snapshots, 1)}, or a finer cut of time when ingesting"
        )
    assert 0 <= cut < num_snapshots, f"a cut at {cut} of {num_snapshots} snapshots"
    if not cut:
        return _part(settings, 0, num_snapshots)
    return [*_part(settings, cut, num_snapshots), *_part(settings, 0, cut)]


def _part(settings: FlareSettings, begin: int, end: int) -> list[tuple[Unit, ...]]:
    """Return the steps over consecutive snapshots, whose state starts anew."""
    warm = settings.warmup and begin > 0
    steps: list[tuple[Unit, ...]] = []
    for last in range(begin + settings.full, end + 1):
        is_first = last == begin + settings.full
        fresh = settings.state == "zero" or (is_first and not warm)
        unit = _window(settings, begin, last, fresh=fresh)
        steps.append((_warm_up(settings, begin), unit) if is_first and warm else (unit,))
    return steps


def _window(settings: FlareSettings, begin: int, last: int, *, fresh: bool) -> Unit:
    counts = settings.counts
    first = max(begin, last - settings.length)
    ages = range(last - 1 - first, -1, -1)
    # In the next window every snapshot is one older, and the oldest of a window of full length is not there.
    older = (*counts, 0)
    slides = last - first == settings.length
    inherits = settings.state == "inherit"
    return Unit(
        first=first, last=last, fresh=fresh,
        targets=(last - 1,) if settings.loss == "last" else tuple(range(first, last)),
        keep=first if slides and inherits else -1,
        chunks=tuple(counts[age] for age in ages),
        kept_from=tuple(older[age + 1] if inherits else counts[age] for age in ages),
    )  # fmt: skip


def _warm_up(settings: FlareSettings, begin: int) -> Unit:
    """Return a unit that nothing is learnt from: after it, every state is that after the snapshot before ``begin``."""
    first = max(0, begin - settings.length)
    size = begin - first
    whole = (settings.chunks,) * size
    return Unit(
        first=first, last=begin, targets=(), fresh=True, keep=begin - 1, chunks=whole, kept_from=(*whole[1:], 0)
    )


def exchanging(settings: FlareSettings, unit: Unit) -> tuple[bool, ...]:
    """Return of which snapshots of a unit ranks exchange rows: all ranks alike, whatever rows they have.

    A snapshot of which all chunks are left is a whole one at any age, so that where nothing shrinks several ranks
    compute what one does (T18, T20).
    """
    everywhere = settings.temporal_halo == "exchange"
    return tuple(everywhere or chunks == settings.chunks for chunks in unit.chunks)


def cut_of(settings: FlareSettings, num_snapshots: int, *, seed: int, epoch: int) -> int:
    """Return where the sequence is cut in an epoch (0: nowhere), such that one of the parts has a window."""
    allowed = [s for s in range(1, num_snapshots) if max(s, num_snapshots - s) >= settings.full]
    if not settings.split or not allowed:
        return 0
    rng = np.random.Generator(np.random.Philox([seed, epoch, _OF_CUT]))
    return allowed[int(rng.integers(len(allowed)))]


def trapezoids_of_epoch(
    settings: FlareSettings, num_snapshots: int, *, seed: int, epoch: int
) -> list[tuple[Unit, ...]]:  # fmt: skip
    """Return the units of each step of an epoch; the number of steps differs where the sequence is cut at random."""
    return trapezoids(settings, num_snapshots, cut=cut_of(settings, num_snapshots, seed=seed, epoch=epoch))


def in_trapezoids(steps: Sequence[tuple[Unit, ...]], *, num_ranks: int = 1) -> Plan:
    """Yield one epoch: every rank does the same units, each of its own nodes."""
    for place, units in enumerate(steps):
        yield Step(units=dict.fromkeys(range(num_ranks), units), ends_epoch=place == len(steps) - 1)
