"""`timeloom check`: is a graph what it says it is?"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from timeloom.cli.show import print_json, progress
from timeloom.errors import BadStore


def check(
    graph: Annotated[Path, Parameter(help="The graph to check.")],
    /,
    *,
    json: Annotated[bool, Parameter(help="Print the result as JSON.")] = False,
    quiet: Annotated[bool, Parameter(help="Show no progress.")] = False,
) -> None:
    """Verify every checksum and every invariant of a graph, and name what is broken.

    Examples
    --------
    timeloom check mails
    """
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
