"""`timeloom info`: what a graph is like."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from timeloom.cli.show import print_json

if TYPE_CHECKING:
    from timeloom.graph.stats import GraphStats

_TOLD = {"read": "rows_read", "kept": "kept", "merged": "merged", "dropped": "dropped_in_all"}


def info(
    graph: Annotated[Path, Parameter(help="The graph to describe.")],
    /,
    *,
    json: Annotated[bool, Parameter(help="Print everything as JSON, with a number for each snapshot.")] = False,
) -> None:
    """Describe a graph: its size, span, density, change and overlap, births and departures, and degrees.

    Examples
    --------
    timeloom info mails
    timeloom info mails --json
    """
    from timeloom.graph.dynamic import open_graph
    from timeloom.graph.stats import stats

    found = stats(open_graph(graph))
    if json:
        print_json(found.as_json())
    else:
        sys.stdout.write("\n".join(_lines(found)) + "\n")


def _lines(found: GraphStats) -> list[str]:
    from timeloom.graph.stats import sparkline

    rules = found.rules
    windows = " ".join(filter(None, (rules["windows"]["kind"], rules["windows"]["amount"])))
    life = {0: "for ever", 1: "for 1 snapshot"}.get(rules["life"], f"for {rules['life']} snapshots")
    meaning = (
        "rows are operations" if rules["operations"] else f"events count {life}; duplicates: {rules['duplicates']}"
    )
    lines = [
        f"{found.name}  ({found.path}, {found.stored_bytes / 1e6:,.1f} MB)",
        f"  snapshots  {found.num_snapshots:,} ({windows}; {found.empty:,} empty; "
        f"{found.keyframes:,} stored whole, the rest as deltas)",
        f"  time       {found.first} to {found.end} (clock: {found.clock})",
        f"  nodes      {found.num_nodes:,}" + (f", edge types {found.num_types:,}" if found.num_types else ""),
        f"  edges      {found.num_edges:,} in all, {'weighted' if found.weighted else 'all of weight 1'} ({meaning})",
        f"  rows       {_rows(found.reports)}",
        f"  features   {_spoken(found.features)}    labels  {_spoken(found.labels)}",
        "",
    ]
    rows: list[tuple[str, list[int] | list[float], str]] = [
        ("edges", found.edges, ",.0f"), ("active nodes", found.active, ",.0f"), ("density", found.density, ".2e"),
        ("change rate", found.change[1:], ".3f"), ("overlap", found.overlap[1:], ".3f"), ("born", found.born, ",.0f"),
        ("returned", found.returned, ",.0f"), ("left", found.left, ",.0f"),
    ]  # fmt: skip
    for name, values, style in rows:
        if values:
            low, mean, high = (
                format(number, style) for number in (min(values), sum(values) / len(values), max(values))
            )
            lines.append(f"  {name:13} {sparkline(values):48}  {low} .. {high}, mean {mean}")
    tails = ", ".join(
        f"{side} {'/'.join(f'{d:,}' for d in degrees)}" for side, degrees in found.degree_quantiles.items()
    )
    lines += ["", f"  degrees in the last snapshot (50 % / 90 % / 99 % / largest): {tails}"]
    return lines


def _rows(reports: list[dict[str, Any]]) -> str:
    """Return what became of the rows of the ingest and of every append since."""
    told = {name: sum(report[key] for report in reports) for name, key in _TOLD.items()}
    sources = f", in {len(reports)} ingests and appends" if len(reports) > 1 else ""
    return ", ".join(f"{count:,} {name}" for name, count in told.items()) + sources


def _spoken(spec: dict[str, object]) -> str:
    classes = spec.get("classes")
    count = f" ({len(classes)} classes)" if isinstance(classes, list) else ""
    return f"{spec['kind']}{count}"
