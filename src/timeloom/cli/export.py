"""`timeloom export`: a graph as one Parquet file."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from timeloom.cli.show import progress


def export(
    graph: Annotated[Path, Parameter(help="The graph to write.")],
    /,
    *,
    out: Annotated[Path, Parameter(help="The Parquet file to make.")],
    changes: Annotated[bool, Parameter(help="Write only what changes from snapshot to snapshot.")] = False,
    overwrite: Annotated[bool, Parameter(help="Replace a file that exists.")] = False,
    quiet: Annotated[bool, Parameter(help="Show no progress.")] = False,
) -> None:
    """Write the edges of every snapshot, with original ids and times, as one Parquet file.

    Examples
    --------
    timeloom export mails --out mails.parquet
    timeloom export mails --changes --out changes.parquet
    """
    from timeloom.graph.dynamic import open_graph
    from timeloom.graph.export import export as run_export

    with progress(quiet=quiet) as show:
        num_rows = run_export(open_graph(graph), out, changes=changes, overwrite=overwrite, progress=show)
    sys.stdout.write(f"{out}: {num_rows:,} rows\n")
