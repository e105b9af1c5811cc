"""`timeloom plan`: what would run where, and how long an epoch would take; nothing is trained."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from timeloom.cli.options import Set
from timeloom.cli.show import print_json
from timeloom.errors import BadConfig

if TYPE_CHECKING:
    from timeloom.graph.dynamic import DynamicGraph
    from timeloom.plan.reuse import Changes, Way
    from timeloom.plan.schedule.choose import SchedulerName
    from timeloom.plan.schedule.instance import Instance
    from timeloom.plan.schedule.schedule import Judged
    from timeloom.train.settings import RunSettings

_SYSTEMS: dict[str, tuple[SchedulerName, bool]] = {
    "psg": ("in_order", False), "real": ("best", True), "real_l": ("real_l", True), "real_g": ("real_g", True),
    "type_2": ("pair_consecutive", True), "dygnex": ("best", False), "dygnex_l": ("dygnex_l", False),
    "dygnex_g": ("dygnex_g", False),
}  # fmt: skip
"""The scheduler of each system, and whether groups of a device and step share rows; snapshots of a group always do."""
_MOST_STEPS = 12
_WINDOWS = {"window": {"state": "zero", "length": 4, "targets": "last"}}  # REAL 7.1, SPEC D1.1


@dataclass(frozen=True, slots=True)
class _Planned:
    graph: DynamicGraph
    settings: RunSettings
    problem: Instance
    scheduler: SchedulerName
    judged: Judged
    memory_bytes: int


def plan(
    graph: Annotated[Path, Parameter(help="The graph to plan for.")],
    /,
    *,
    system: Annotated[str, Parameter(help=f"How groups are scheduled: {' | '.join(_SYSTEMS)}.")] = "real",
    devices: Annotated[int, Parameter(help="How many devices.")] = 8,
    limit: Annotated[int, Parameter(help="The most groups of a device in a step.")] = 2,
    model: Annotated[str, Parameter(help="A model of `timeloom models`.")] = "tgcn",
    search_s: Annotated[float, Parameter(help="How long the scheduler may take.")] = 1.0,
    seed: Annotated[int, Parameter(help="The seed of the search.")] = 0,
    set_: Set = None,
    svg: Annotated[Path | None, Parameter(help="Also draw the schedule to this SVG file.")] = None,
    json: Annotated[bool, Parameter(help="Print everything as JSON, the schedule too.")] = False,
) -> None:
    """Tell what would run where: steps, predicted epoch time, imbalance, memory of a device; with a picture.

    Times are predicted from what `timeloom calibrate` measured on this machine, else from built-in costs. Groups are
    windows that start from zero (as with --set window.state=zero), of 4 snapshots if nothing else is set.

    Examples
    --------
    timeloom plan mails --system real --devices 8
    timeloom plan mails --system dygnex_g --devices 4 --set window.length=6 --set model.hidden=64
    """
    found = _planned(graph, (system, devices, limit), (model, search_s, seed), set_ or [])
    if svg is not None:
        from timeloom.plan.picture import as_svg

        try:
            svg.write_text(as_svg(found.judged.schedule, found.problem), encoding="utf-8")
        except OSError as error:
            raise BadConfig(f"--svg {svg} cannot be written ({error.strerror}): give another path") from None
    if json:
        print_json(_as_json(found, system))
    else:
        sys.stdout.write("\n".join(_lines(found, system)) + "\n")


def _planned(
    path: Path, where: tuple[str, int, int], how: tuple[str, float, int], sets: list[str]
) -> _Planned:  # fmt: skip
    from timeloom.graph.dynamic import open_graph
    from timeloom.graph.tasks import split_by_time
    from timeloom.plan.encoding import encoding_of
    from timeloom.plan.machine import costs_at, costs_path, processor
    from timeloom.plan.reuse import group_times
    from timeloom.plan.schedule.choose import ScheduleSettings, scheduler_of
    from timeloom.plan.schedule.instance import instance
    from timeloom.plan.schedule.schedule import solve
    from timeloom.plan.simulate import Network

    (system, devices, limit), (model, search_s, seed) = where, how
    if system not in _SYSTEMS:
        raise BadConfig(f"--system {system} is unknown, or has no schedule: use {', '.join(_SYSTEMS)}")
    if devices < 1 or limit < 1:
        raise BadConfig(f"--devices {devices} and --limit {limit} are 1 or more")
    scheduler, reuse = _SYSTEMS[system]
    chosen = ScheduleSettings(scheduler=scheduler, limit=limit, search_s=search_s)
    settings = _settings(path, model, sets)
    opened, window = open_graph(path), settings.window
    last = split_by_time(settings.split, len(opened), settings.task.ahead).train_stop
    if last < window.length:
        raise BadConfig(
            f"window.length={window.length} needs as many snapshots to train on, but there are {last}: use --set "
            f"window.length={last}, or a finer cut of time when ingesting"
        )
    features = _num_features(opened, settings)
    changes, ways = _changes(opened, settings, last)
    sizes = settings.model
    encoding = encoding_of(
        sizes.name, num_features=features, hidden=sizes.hidden, layers=sizes.layers, hops=sizes.hops
    )  # fmt: skip
    times = group_times(
        changes, length=window.length, stride=window.step, encoding=encoding, ways=ways,
        costs=costs_at(costs_path(processor(), max(settings.train.threads, 1))),
    )  # fmt: skip
    problem = instance(
        times.seconds_K, devices=devices, reuse=times.reuse_KB if reuse and settings.reuse.between_windows else None,
        limit=limit, alpha_s=Network().all_reduce_s(devices),
    )  # fmt: skip
    judged = solve(problem, scheduler_of(chosen, epoch_s=search_s / 2, seed=seed))
    most = 1 if scheduler == "in_order" else limit
    memory = _memory(changes, settings, features, shares="versions" in ways, groups=most)
    return _Planned(opened, settings, problem, scheduler, judged, memory)


def _settings(path: Path, model: str, sets: list[str]) -> RunSettings:
    from timeloom.config import build, merge, parse_sets
    from timeloom.train.settings import RunSettings

    settings = build(RunSettings, merge({"graph": str(path), "model": {"name": model}}, _WINDOWS, parse_sets(sets)))
    if settings.window.state != "zero":
        raise BadConfig(
            "window.state=inherit makes windows that follow each other, which leave nothing to schedule: leave it out"
        )
    return settings


def _num_features(graph: DynamicGraph, settings: RunSettings) -> int:
    inputs, own = settings.inputs, graph.features.num_features
    if inputs.features == "none":
        return max(inputs.lags or 0, 1)
    return (own if own and inputs.features in ("auto", "graph") else 2) + (inputs.lags or 0)


def _changes(graph: DynamicGraph, settings: RunSettings, last: int) -> tuple[Changes, tuple[Way, ...]]:
    """Return what changes from snapshot to snapshot, and the ways to make rows that [reuse] allows."""
    from timeloom.graph.sizes import sizes_of
    from timeloom.plan.encoding import spreads_of
    from timeloom.plan.reuse import changes_of, changes_of_sizes, head_of

    inputs, features, model = settings.inputs, graph.features, settings.model
    own = bool(features.num_features) and inputs.features in ("auto", "graph")
    degrees = features.degrees is not None if own else inputs.features != "none"
    varies = bool(inputs.lags) or (own and not features.fixed and not degrees)
    mode = settings.reuse.mode
    if mode == "full" or varies:
        return head_of(changes_of_sizes(sizes_of(graph)), last), ("full",)
    spreads = spreads_of(model.name, model.norm, degree_features=degrees)
    hops = model.hops if model.name == "dcrnn" else 1
    ways: tuple[Way, ...] = ("full", "versions") if mode == "auto" else (mode,)
    return changes_of(graph, last, spreads=spreads, hops=max(hops, 1)), ways


def _memory(changes: Changes, settings: RunSettings, features: int, *, shares: bool, groups: int) -> int:
    """Return about how many bytes a device holds: edges and input rows of its groups, shared rows, one group's memory.

    Groups of a step go backward one after the other, so that what is remembered is held of one at a time (SPEC 5).
    """
    length, hidden, nodes = settings.window.length, settings.model.hidden, changes.num_nodes
    spans = range(len(changes) - length + 1)
    edges = max(int(changes.edges_T[first : first + length].sum()) for first in spans)
    rows = max(int(changes.rows_T[first + 1 : first + length].sum()) for first in spans) + nodes
    encoded = 4 * (rows if shares else nodes * length) * (features + 2 * hidden)
    remembered = 4 * nodes * length * hidden * 6 * settings.model.layers
    return groups * (16 * edges + encoded) + remembered


def _as_json(found: _Planned, system: str) -> dict[str, Any]:
    judged = found.judged
    return {
        "graph": found.graph.name, "system": system, "devices": found.problem.num_devices,
        "groups": len(found.problem), "by": judged.schedule.by or found.scheduler,
        "steps": judged.schedule.as_json(), "epoch_s": judged.seconds, "bound_s": judged.bound_s,
        "imbalance": judged.imbalance, "kept": judged.kept, "memory_bytes": found.memory_bytes,
        "solved_s": judged.solved_s,
    }  # fmt: skip


def _lines(found: _Planned, system: str) -> list[str]:
    from timeloom.plan.picture import as_text
    from timeloom.plan.schedule.schedule import loads_of

    judged, problem, window = found.judged, found.problem, found.settings.window
    loads = loads_of(judged.schedule, problem)
    shown = judged.schedule.steps[:_MOST_STEPS]
    lines = [
        f"{found.graph.name}: {len(problem):,} groups of {window.length} snapshots, {system} on "
        f"{problem.num_devices} devices",
        f"  epoch      {judged.seconds:.4g} s predicted, {judged.gap:.1%} over the lower bound; "
        f"{len(judged.schedule.steps):,} steps",
        f"  imbalance  {judged.imbalance:.3f}; {judged.kept:.1%} of the groups' time is saved by sharing",
        f"  memory     about {found.memory_bytes / 2**20:,.1f} MiB on each device, and what torch takes itself",
        f"  solved in  {judged.solved_s:.2f} s by {judged.schedule.by or found.scheduler}"
        + (f", since {found.scheduler} did not come to an end (see --search-s)" if judged.schedule.by else ""),
        "",
        "   step   seconds  groups of each device",
    ]
    for number, step in enumerate(shown):
        what = "  ".join("+".join(map(str, groups)) or "-" for groups in step)
        lines.append(f"  {number:>5}  {float(loads[number].max()):>8.3g}  {what[:160]}{'...' * (len(what) > 160)}")
    if len(judged.schedule.steps) > len(shown):
        lines.append(f"  ... and {len(judged.schedule.steps) - len(shown):,} more (--json has all)")
    return [*lines, "", *as_text(judged.schedule, problem)]
