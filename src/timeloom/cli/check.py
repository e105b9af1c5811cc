"""`timeloom check`: is a graph what it says it is?"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from timeloom.cli.options import Set
from timeloom.cli.show import print_json, progress
from timeloom.errors import BadConfig, BadRun, BadStore


def check(
    graph: Annotated[Path, Parameter(help="The graph, or the run, to check.")],
    /,
    *,
    leak: Annotated[bool, Parameter(help="Check instead that nothing predicted depends on the future.")] = False,
    set_: Set = None,
    json: Annotated[bool, Parameter(help="Print the result as JSON.")] = False,
    quiet: Annotated[bool, Parameter(help="Show no progress.")] = False,
) -> None:
    """Verify every checksum and every invariant of a graph, and name what is broken.

    Of a run the settings, the records and all checkpoints are verified.

    With --leak, everything after some snapshots is replaced by noise: inputs, scales, predictions, scores and baselines
    up to there must stay the same to the bit. A run is checked with what it learnt, a graph with an untrained model
    (--set task.name=... and so on).

    Examples
    --------
    timeloom check mails
    timeloom check runs/mails
    timeloom check runs/mails --leak
    timeloom check mails --leak --set task.name=links
    """
    if leak:
        _check_leaks(graph, set_ or [], json=json)
        return
    if set_:
        raise BadConfig("--set goes with --leak: a graph's bytes have no settings")
    if (graph / "config.toml").exists():
        _check_run(graph, json=json)
        return
    from timeloom.graph.check import check as run_check
    from timeloom.graph.store import Store

    with progress(quiet=quiet) as show:
        problems = list(run_check(graph, show))
    store = Store(graph)
    leftovers = store.leftovers()
    if json:
        print_json({"path": str(graph), "problems": problems, "leftovers": leftovers})
    else:
        for problem in problems:
            sys.stdout.write(f"{graph}: {problem}\n")
        for name in leftovers:
            sys.stdout.write(f"{graph}: {name} belongs to no graph (a writer was killed); the next append removes it\n")
        if not problems:
            size = f"{store.num_bytes / 1e6:,.1f} MB in {len(store.names)} arrays"
            sys.stdout.write(f"{graph}: all is well ({size}, {store.manifest['num_snapshots']:,} snapshots replayed)\n")
    if problems:
        raise BadStore(f"{graph} is broken in {len(problems)} ways: restore it from a copy, or ingest it again")


def _check_run(run: Path, *, json: bool) -> None:
    from timeloom.train.verify import problems_of_run

    problems = list(problems_of_run(run))
    if json:
        print_json({"path": str(run), "problems": problems})
    else:
        told = problems or ["all is well: settings, records and checkpoints are what was written"]
        sys.stdout.write("".join(f"{run}: {one}\n" for one in told))
    if problems:
        raise BadRun(f"{run} is broken in {len(problems)} ways: restore it from a copy, or go on from what is whole")


def _check_leaks(path: Path, sets: list[str], *, json: bool) -> None:
    from timeloom.config import parse_sets
    from timeloom.train.inference import open_run, open_untrained
    from timeloom.train.leak import leaks

    is_run = (path / "config.toml").exists()
    if is_run and sets:
        raise BadConfig(f"--set cannot be given with the run {path}, which has its own settings")
    found = list(leaks(open_run(path) if is_run else open_untrained(path, parse_sets(sets))))
    if json:
        print_json({"path": str(path), "leaks": found})
    else:
        for sentence in found:
            sys.stdout.write(f"{path}: {sentence}\n")
        if not found:
            sys.stdout.write(f"{path}: nothing that is predicted depends on the future\n")
    if found:
        raise BadConfig(f"{path} leaks in {len(found)} ways: its scores cannot be trusted")
