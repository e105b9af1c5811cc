"""`timeloom append`: later events become new snapshots of a graph."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from timeloom.cli.options import Files, NodeFlags, ReadingFlags, RunFlags
from timeloom.cli.show import print_json, print_report, progress


def append(
    graph: Annotated[Path, Parameter(help="The graph to go on with.")],
    source: Files,
    /,
    *,
    stop: Annotated[str | None, Parameter(help="Leave out events at or after this time.")] = None,
    rows: ReadingFlags = ReadingFlags(),
    nodes: NodeFlags = NodeFlags(),
    run: RunFlags = RunFlags(),
) -> None:
    """Add later events to a graph as new snapshots, by the rules it was made with.

    Killed at any moment, the graph is the old one or the new one. Events from before the graph's end are bad rows.

    Examples
    --------
    timeloom append mails mails-of-june.csv
    timeloom append mails mails-of-june.csv --stop 2026-07-01 --on-bad drop
    """
    from timeloom.graph.append import Append
    from timeloom.graph.append import append as run_append
    from timeloom.graph.ingest.attributes import AttributeOptions, read_attributes
    from timeloom.graph.ingest.rows import Reading

    reading = rows.reading(Reading())
    options = Append(
        reading=reading,
        stop=stop,
        attributes=read_attributes(nodes.attributes(AttributeOptions()), ids_as_names=reading.ids == "names"),
        drop_bad_rows=run.drop_bad_rows,
        budget=run.budget(),
    )
    with progress(quiet=run.quiet) as show:
        report = run_append(graph, [Path(part) for part in source], options, show).as_json()
    if run.json:
        print_json(report)
    else:
        print_report(report, graph, added=True)
