"""`timeloom ingest`: from a table of timestamped edges to a graph on disk."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Group, Parameter

from timeloom.cli.options import NodeFlags, ReadingFlags, RunFlags, Source
from timeloom.cli.show import print_json, print_report, progress
from timeloom.errors import BadConfig

if TYPE_CHECKING:
    from timeloom.graph.ingest import Ingest, Windows

WINDOWS = Group("How time is cut", sort_key=1)
EDGES = Group("What events mean", sort_key=3)


@Parameter(name="*", group=WINDOWS)
@dataclass(frozen=True, slots=True, kw_only=True)
class WindowFlags:
    """How time is cut into snapshots: exactly one of the first five."""

    every: str | None = None
    """Snapshots of one length: 7d, 12h, 30min, 1mo (calendar months), 1y, or a number of ticks."""
    snapshots: int | None = None
    """So many snapshots of equal length."""
    events: int | None = None
    """Snapshots of so many events; one ends where the time changes."""
    as_given: bool = False
    """Each distinct time is a snapshot."""
    untimed: bool = False
    """Rows have no time: one fixed topology."""
    origin: str | None = None
    """Where windows of --every start (default: the first event, rounded down to the unit)."""
    start: str | None = None
    """Leave out events before this time (operations before it count as its own)."""
    stop: str | None = None
    """Leave out events at or after this time."""

    def windows(self) -> Windows | None:
        """Return how time is cut (None: it was not said)."""
        from timeloom.graph.ingest import Windows

        asked: list[tuple[str, Any]] = [("every", self.every), ("snapshots", self.snapshots), ("events", self.events)]
        chosen = [Windows(kind=kind, amount=str(amount)) for kind, amount in asked if amount is not None]
        chosen += [Windows(kind="given")] if self.as_given else []
        if len(chosen) + self.untimed > 1:
            raise BadConfig("--every, --snapshots, --events, --as-given and --untimed exclude each other: give one")
        return chosen[0] if chosen else None


@Parameter(name="*", group=EDGES)
@dataclass(frozen=True, slots=True, kw_only=True)
class EdgeFlags:
    """What events mean."""

    life: str | None = None
    """For how many snapshots an event counts, from its own on (default 1), or 'forever' for a growing graph."""
    duplicates: str | None = None
    """Events of one edge that count together: sum (default) | count | last | mean | max of their weights."""
    both_directions: Annotated[bool | None, Parameter(negative="--no-both-directions")] = None
    """Each row u, v also means v -> u."""
    keep_self_loops: Annotated[bool | None, Parameter(negative="--no-keep-self-loops")] = None
    """Keep edges from a node to itself, which are left out (and counted) by default."""


def ingest(
    source: Source,
    /,
    *,
    out: Annotated[Path, Parameter(help="The graph to make: a folder.")],
    from_: Annotated[
        Path | None, Parameter(name="--from", help="A local copy of a dataset: its file, or a folder with it.")
    ] = None,
    name: Annotated[str | None, Parameter(help="The graph's name (default: the folder's).")] = None,
    overwrite: Annotated[bool, Parameter(help="Replace the graph that is there.")] = False,
    windows: WindowFlags = WindowFlags(),
    rows: ReadingFlags = ReadingFlags(),
    edges: EdgeFlags = EdgeFlags(),
    nodes: NodeFlags = NodeFlags(),
    run: RunFlags = RunFlags(),
) -> None:
    """Make a graph of a table of timestamped edges, and account for every row.

    Reads text tables (also .gz, .zst, .zip:MEMBER), Parquet, Arrow, NumPy .npz, a folder or tar of one edge list per
    snapshot, the JSON signals of PyTorch Geometric Temporal, and datasets by name.

    Examples
    --------
    timeloom ingest mails.csv --every 1d --out mails
    timeloom ingest trades.parquet --source buyer --target seller --time at --weight amount --every 1mo --out trades
    timeloom ingest snap:CollegeMsg --out college
    """
    from timeloom.graph.ingest import Ingest
    from timeloom.graph.ingest import ingest as run_ingest

    preset, what = Ingest(), _paths(source)
    if _is_dataset(source):
        preset, what = _dataset(source[0], from_, quiet=run.quiet)
    elif from_ is not None:
        raise BadConfig(f"--from goes with the name of a dataset, such as snap:CollegeMsg, and {source[0]} is none")
    options = _options(preset, windows, rows, edges, nodes)
    options = replace(
        options,
        drop_bad_rows=run.drop_bad_rows,
        budget=run.budget(),
        overwrite=overwrite,
        name=name or preset.name or out.name,
    )
    with progress(quiet=run.quiet) as show:
        report = run_ingest(what, out, options, show).as_json()
    if run.json:
        print_json(report)
    else:
        print_report(report, out)


def _paths(source: list[str]) -> list[Path]:
    return [Path(part) for part in source]


def _is_dataset(source: list[str]) -> bool:
    """Say whether a source is the name of a dataset, such as snap:CollegeMsg, and no file."""
    kind, colon, rest = source[0].partition(":")
    return bool(
        len(source) == 1 and colon and rest and kind.isalnum() and "." not in kind and not Path(source[0]).exists()
    )


def _dataset(name: str, local: Path | None, *, quiet: bool) -> tuple[Ingest, Any]:
    """Return the preset of a dataset and its files, fetched unless a local copy is named."""
    from timeloom.graph.datasets import fetch_dataset, find_dataset, local_copy

    dataset = find_dataset(name)
    if local is None:
        with progress(quiet=quiet) as show:
            local = fetch_dataset(dataset, show)
    copy = local_copy(dataset, local)
    return copy.options, copy.source


def _options(preset: Ingest, windows: WindowFlags, rows: ReadingFlags, edges: EdgeFlags, nodes: NodeFlags) -> Ingest:
    """Return a preset with everything that was given replaced."""
    reading = rows.reading(preset.reading)
    changes: dict[str, Any] = {"attributes": nodes.attributes(preset.attributes)}
    changes["reading"] = replace(reading, timed=False) if windows.untimed else reading
    bounds = {name: value for name in ("start", "stop") if (value := getattr(windows, name)) is not None}
    changes["bounds"] = replace(preset.bounds, **bounds)
    cut = windows.windows()
    if cut is not None:
        changes["windows"] = cut
    if windows.origin is not None:
        changes["origin"] = windows.origin
    if edges.life is not None:
        changes["life"] = _life(edges.life)
    for field in ("duplicates", "both_directions", "keep_self_loops"):
        if (value := getattr(edges, field)) is not None:
            changes[field] = value
    return replace(preset, **changes)


def _life(text: str) -> int:
    if text == "forever":
        return 0
    if not text.isdecimal() or len(text) > 18 or int(text) == 0:
        raise BadConfig(f"--life {text} is neither a positive number of snapshots nor 'forever'")
    return int(text)
