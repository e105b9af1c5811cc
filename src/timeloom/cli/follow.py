"""`timeloom follow`: training that goes on as snapshots are appended to a graph."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from timeloom.cli.options import Set
from timeloom.cli.show_run import table_of, telling
from timeloom.cli.train import Checkpoint, Json, Quiet, WorldFlags, as_ranks, refuse_other_launcher
from timeloom.records import Evaluated


def follow(
    graph: Annotated[Path, Parameter(help="The graph to follow; another process appends to it.")],
    /,
    *,
    out: Annotated[Path, Parameter(help="The run directory to make, or to go on with.")],
    model: Annotated[
        str | None, Parameter(help="A model of 'timeloom models', or FILE.py:Class, whose code is run.")
    ] = None,
    task: Annotated[str | None, Parameter(help="degree | signal | classes | links | edge_classes.")] = None,
    system: Annotated[str | None, Parameter(help="distdy, where several ranks follow.")] = None,
    config: Annotated[
        Path | None, Parameter(help="A TOML file of settings; options given here come before it.")
    ] = None,
    until: Annotated[int, Parameter(help="End when the first so many snapshots are done (0: go on).")] = 0,
    idle: Annotated[float, Parameter(help="End when nothing arrived for so many seconds (0: wait for ever).")] = 0.0,
    poll: Annotated[float, Parameter(help="Look for more every so many seconds.")] = 1.0,
    checkpoint: Checkpoint = None,
    world: WorldFlags = WorldFlags(),
    set_: Set = None,
    json: Json = False,
    quiet: Quiet = False,
) -> int:
    """Train on a graph as it grows: every snapshot is predicted as it arrives, then learnt from (the live protocol).

    The graph is appended to by others ('timeloom append'). Killed at any moment, the same command goes on, and ends
    with the model of a run that was never interrupted. Ctrl-C, SIGTERM and SIGUSR1 save and end with exit code 75.

    Examples
    --------
    timeloom follow mails --task links --out runs/live --idle 600
    timeloom follow mails --system distdy --workers 2 --out runs/two --until 100
    """
    from timeloom.config import merge, parse_sets, read_toml
    from timeloom.train import following, ranks

    changes = parse_sets([*(set_ or []), *(["world.check=true"] if world.check_world else [])])
    settings = merge({} if config is None else read_toml(config), changes)
    patience = following.Patience(until=until, idle_s=idle, poll_s=poll)
    seat = ranks.here()
    if seat is None and world.starts_ranks:
        following.check(graph, out, settings, model=model, task=task, system=system, workers=world.workers)
        return as_ranks(world)
    refuse_other_launcher(world, None if seat is None or seat.parent else seat.size)
    shown: list[Evaluated] = []
    with telling(quiet=quiet or (seat is not None and seat.rank > 0), as_lines=json) as show:

        def tell(record: Any) -> None:
            if isinstance(record, Evaluated) and record.split in ("all", "test"):
                shown.append(record)
            show(record)

        following.follow(
            graph, out, settings, model=model, task=task, system=system, patience=patience, name=checkpoint, show=tell
        )  # fmt: skip
    if not json and (seat is None or seat.rank == 0):
        told = [line for record in shown for line in table_of(record)]
        sys.stdout.write("\n".join([*told, f"{out}: records, settings and checkpoints"]) + "\n")
    return 0
