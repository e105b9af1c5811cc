"""`timeloom simulate`: how far a schedule would scale, on devices that nobody has."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from timeloom.cli.show import print_json
from timeloom.errors import BadConfig

if TYPE_CHECKING:
    from timeloom.graph.sizes import SnapshotSizes
    from timeloom.plan.schedule.schedule import Scheduler
    from timeloom.plan.simulate import Simulated

_SCHEDULERS = ("in_order", "pair_consecutive", "dygnex_g", "real_g", "best")
_ALL_TARGETS = 1000
_TARGETS = 400_000_000


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class SimulateFlags:
    """What is simulated."""

    graph: Path | None = None
    """A graph whose snapshots' sizes are taken."""
    sizes: Path | None = None
    """A file of sizes that `timeloom synth sizes` made."""
    curve: str = "growing"
    """Without either: sizes that are growing | flat | bursty."""
    num_snapshots: int = 10_000
    """Snapshots of such a curve."""
    devices: str = "4,8,16,32,64,128,256,512,1024"
    """Numbers of devices, separated by commas."""
    schedulers: str = ",".join(_SCHEDULERS)
    """in_order (PSG) | pair_consecutive (REAL's type II) | dygnex_g | real_g | best; several by commas."""
    length: int = 4
    """Snapshots of a group (REAL 7.1: 4)."""
    stride: int = 1
    """Snapshots between the beginnings of groups."""
    limit: int = 2
    """The most groups of a device in a step."""
    model: str = "gcn_gru"
    """The model whose work is told (see `timeloom models`)."""
    hidden: int = 32
    """Its width."""
    features: int = 32
    """Numbers that a node has."""
    gradient_bytes: int = 200_000
    """What an all-reduce sums."""
    search_s: float = 0.3
    """How long `best` searches."""
    seed: int = 0
    """The seed of the curve and of the search."""


def simulate(
    *,
    what: SimulateFlags = SimulateFlags(),
    json: Annotated[bool, Parameter(help="Print everything as JSON.")] = False,
) -> None:
    """Tell how long an epoch would take on 4 to 1024 devices by each scheduler; nothing is trained.

    Efficiency is the least time that one device needs, with all the reuse there can be, over devices times the time of
    the epoch. The imbalance is the longest load over the shortest, the mean over full steps.

    Examples
    --------
    timeloom simulate
    timeloom simulate --graph mails --devices 2,4,8 --schedulers in_order,best
    timeloom simulate --curve bursty --json
    """
    from timeloom.plan.encoding import encoding_of
    from timeloom.plan.machine import costs_at, costs_path, processor
    from timeloom.plan.reuse import changes_of_sizes, group_times
    from timeloom.plan.simulate import Network
    from timeloom.plan.simulate import simulate as simulated

    sizes = _sizes(what)
    encoding = encoding_of(what.model, num_features=what.features, hidden=what.hidden, layers=1, hops=2)
    times = group_times(
        changes_of_sizes(sizes), length=what.length, stride=what.stride, encoding=encoding,
        costs=costs_at(costs_path(processor(), 1)), ways=("full", "versions", "delta"),
    )  # fmt: skip
    count = len(times.seconds_K)
    schedulers, devices = _schedulers(what, count), _devices(what.devices)
    rows = list(simulated(times, schedulers, devices, Network(bytes=what.gradient_bytes), limit=what.limit))
    if json:
        alone_s = float(times.seconds_K.sum())
        print_json({"sizes": sizes.name, "groups": count, "alone_s": alone_s, "rows": [_as_json(row) for row in rows]})
    else:
        sys.stdout.write("\n".join(_lines(rows, sizes, count)) + "\n")


def _sizes(what: SimulateFlags) -> SnapshotSizes:
    from timeloom.graph.dynamic import open_graph
    from timeloom.graph.sizes import read_sizes, sizes_of
    from timeloom.graph.synth.sizes import SizesOptions, make_sizes

    if what.graph is not None and what.sizes is not None:
        raise BadConfig(f"--graph {what.graph} and --sizes {what.sizes} both say what snapshots are like: give one")
    if what.graph is not None:
        return sizes_of(open_graph(what.graph))
    if what.sizes is not None:
        return read_sizes(what.sizes)
    return make_sizes(SizesOptions(curve=what.curve, num_snapshots=what.num_snapshots, seed=what.seed))


def _devices(text: str) -> list[int]:
    try:
        found = [int(part) for part in text.split(",")]
        assert min(found) >= 1
    except (ValueError, AssertionError):
        raise BadConfig(f"--devices {text} is no list of numbers: write such as 4,8,16") from None
    return found


def _schedulers(what: SimulateFlags, count: int) -> dict[str, Scheduler]:
    from timeloom.plan.schedule.best import best_within
    from timeloom.plan.schedule.greedy import dygnex_g, dygnex_g_of, real_g, real_g_of
    from timeloom.plan.schedule.plain import in_order, pair_consecutive

    if not what.search_s > 0:
        raise BadConfig(f"--search-s {what.search_s:g} is no time: give more than 0")
    # As published they take K^3 operations; of many groups only some targets are tried, and the name says so.
    few = count <= _ALL_TARGETS
    targets = max(_TARGETS // (count * count), 4)
    known: dict[str, tuple[str, Callable[[], Scheduler]]] = {
        "in_order": ("in_order", lambda: in_order),
        "pair_consecutive": ("pair_consecutive", lambda: pair_consecutive),
        "dygnex_g": ("dygnex_g" if few else f"dygnex_g/{targets}", lambda: dygnex_g if few else dygnex_g_of(targets)),
        "real_g": ("real_g" if few else f"real_g/{targets}", lambda: real_g if few else real_g_of(targets)),
        "best": ("best", lambda: best_within(what.search_s, seed=what.seed)),
    }
    found = {}
    for name in what.schedulers.split(","):
        if name.strip() not in known:
            raise BadConfig(f"--schedulers {name} is unknown: use {', '.join(known)}, several separated by commas")
        shown, make = known[name.strip()]
        found[shown] = make()
    return found


def _as_json(row: Simulated) -> dict[str, Any]:
    judged = row.judged
    return {
        "devices": row.devices, "scheduler": row.name, "epoch_s": judged.seconds, "bound_s": judged.bound_s,
        "gap": judged.gap, "efficiency": row.efficiency, "imbalance": judged.imbalance, "kept": judged.kept,
        "steps": len(judged.schedule.steps), "solved_s": judged.solved_s,
    }  # fmt: skip


def _lines(rows: list[Simulated], sizes: SnapshotSizes, count: int) -> list[str]:
    lines = [
        f"{sizes.name}: {len(sizes):,} snapshots, {count:,} groups",
        f"{'devices':>7}  {'scheduler':18} {'epoch s':>10} {'over bound':>10} {'efficiency':>10} {'imbalance':>9} "
        f"{'saved':>6} {'steps':>7} {'solved s':>8}",
    ]
    before = 0
    for row in rows:
        judged = row.judged
        shown = f"{row.devices:>7,}" if row.devices != before else " " * 7
        before = row.devices
        lines.append(
            f"{shown}  {row.name:18} {judged.seconds:>10.4g} {judged.gap:>10.2%} {row.efficiency:>10.1%} "
            f"{judged.imbalance:>9.2f} {judged.kept:>6.1%} {len(judged.schedule.steps):>7,} {judged.solved_s:>8.2f}"
        )
    if any("/" in row.name for row in rows):
        lines.append("real_g/N, dygnex_g/N: N targets a step are tried, not all as published; that would take minutes")
    return lines
