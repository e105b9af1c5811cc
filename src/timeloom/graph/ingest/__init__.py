"""From a table of timestamped edges to a graph on disk, without losing one edge unknowingly."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from os import PathLike
from pathlib import Path
from typing import Any

from timeloom.errors import BadConfig, BadInput
from timeloom.graph.ingest import pipeline
from timeloom.graph.ingest.attributes import AttributeOptions, Attributes, read_attributes
from timeloom.graph.ingest.files import TextFile, natural, zip_members
from timeloom.graph.ingest.gather import Bounds, Progress, silent
from timeloom.graph.ingest.members import MembersSource
from timeloom.graph.ingest.pipeline import Job, Report
from timeloom.graph.ingest.rows import Columns, Reading, Source
from timeloom.graph.ingest.rules import Budget, Rules, Windows, default_budget
from timeloom.graph.ingest.signals import Listed, from_object, read_json, read_npz
from timeloom.graph.ingest.tables import arrow_source, parquet_source, table_source
from timeloom.graph.ingest.text import TextSource

__all__ = ["AttributeOptions", "Bounds", "Columns", "Ingest", "Reading", "Report", "Rules", "Windows", "ingest"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ingest:
    """How a source becomes a graph. Every field has the meaning of the command's option of the same name."""

    windows: Windows | None = None
    """None: as the source is cut already (snapshot files, signals); a table of events needs it."""
    reading: Reading = field(default_factory=Reading)
    life: int = 1
    duplicates: str = "sum"
    both_directions: bool = False
    keep_self_loops: bool = False
    bounds: Bounds = field(default_factory=Bounds)
    origin: str | None = None
    attributes: AttributeOptions = field(default_factory=AttributeOptions)
    drop_bad_rows: bool = False
    name: str = ""
    budget: Budget = field(default_factory=default_budget)
    overwrite: bool = False


@dataclass(frozen=True, slots=True)
class Opened:
    """A source, with what it brings beside events."""

    source: Source
    attributes: Attributes
    moments: tuple[int, ...] = ()
    cut: bool = False
    """Whether the source is cut into snapshots already."""
    timed: bool = True


def ingest(source: Any, out: str | PathLike[str], options: Ingest, progress: Progress = silent) -> Report:
    """Make the graph ``out`` of a source: paths, a data frame, arrays by name, or PyTorch Geometric objects.

    Returns the account of every row. Whatever goes wrong, ``out`` is then as it was before.
    """
    opened = open_source(source, options.reading)
    rules = Rules(
        windows=_windows(options, opened), life=options.life if opened.timed else 0, duplicates=options.duplicates,
        both_directions=options.both_directions, keep_self_loops=options.keep_self_loops,
        operations=options.reading.columns.operation is not None, bipartite=options.reading.bipartite,
    )  # fmt: skip
    asked = read_attributes(options.attributes, ids_as_names=options.reading.ids == "names")
    job = Job(
        rules=rules, attributes=_merged(opened.attributes, asked), bounds=options.bounds,
        origin=options.origin, drop_bad_rows=options.drop_bad_rows, name=options.name, budget=options.budget,
        overwrite=options.overwrite, moments=opened.moments,
    )  # fmt: skip
    return pipeline.run(opened.source, Path(out), job, progress)


def _windows(options: Ingest, opened: Opened) -> Windows:
    if not opened.timed:
        if options.windows is not None:
            raise BadConfig(f"--{options.windows.kind} cuts time, but this source has no times: leave it out")
        if options.bounds.start or options.bounds.stop or options.life != 1:
            raise BadConfig("--start, --stop and --life speak of times, but this source has none: leave them out")
        return Windows(kind="single")
    if options.windows is not None:
        return options.windows
    if opened.cut:
        return Windows(kind="given")
    raise BadConfig(
        "say how time is cut into snapshots: --every 1d (or 12h, 1mo, ...), --snapshots 100, "
        "--events 10000 per snapshot, or --as-given where each distinct time is a snapshot; "
        "--untimed where rows have no time"
    )


def _merged(of_source: Attributes, asked: Attributes) -> Attributes:
    """Return the source's own features and labels, replaced by those that were asked for."""
    changes = {
        name: value
        for name in ("ids", "features", "feature_classes", "labels", "present", "spec")
        if (value := getattr(asked, name)) is not None
    }
    if "labels" in changes:
        changes["classes"] = asked.classes
    return replace(of_source, **changes)


def open_source(source: Any, reading: Reading) -> Opened:
    """Return a source of events for whatever the user has."""
    if isinstance(source, str | PathLike):
        return _open_paths([Path(source)], reading)
    if isinstance(source, Sequence) and source and all(isinstance(part, str | PathLike) for part in source):
        return _open_paths([Path(part) for part in source], reading)
    listed = from_object(source)
    if listed is not None:
        return _opened(listed, reading, events=not listed.moments and listed.timed)
    return Opened(table_source(source, reading), Attributes(), timed=reading.timed)


def _opened(listed: Listed, reading: Reading, *, events: bool) -> Opened:
    columns = Columns(**{name: name for name in listed.columns})
    named = replace(reading, columns=columns, timed=listed.timed)
    source = table_source(listed.columns, named)
    return Opened(source, listed.attributes, listed.moments, cut=not events, timed=listed.timed)


def _open_paths(paths: list[Path], reading: Reading) -> Opened:
    paths = [path.expanduser() for path in paths]
    kinds = {_kind(path) for path in paths}
    if len(kinds) > 1:
        raise BadConfig(
            f"{paths[0]} and {paths[-1]} are of different kinds ({', '.join(sorted(kinds))}): ingest one kind"
        )
    kind = kinds.pop()
    if kind in ("folder", "tar", "json", "npz") and len(paths) > 1:
        raise BadConfig(f"{paths[0]} is a {kind}: give one of them, not {len(paths)}")
    if kind in ("folder", "tar"):
        members = MembersSource(paths[0], replace(reading, timed=False))
        return Opened(members, Attributes(), tuple(members.moments.values()), cut=True)
    if kind == "json":
        return _opened(read_json(paths[0]), reading, events=False)
    if kind == "npz":
        listed = read_npz(paths[0], reading.columns)
        return _opened(listed, reading, events=not listed.moments and listed.timed)
    if kind == "parquet":
        return Opened(parquet_source(sorted(paths), reading), Attributes(), timed=reading.timed)
    if kind == "arrow":
        return Opened(arrow_source(sorted(paths), reading), Attributes(), timed=reading.timed)
    files = [file for path in paths for file in _text_files(path)]
    return Opened(TextSource(files, reading), Attributes(), timed=reading.timed)


def _kind(path: Path) -> str:
    if path.is_dir():
        return "folder"
    name = path.name.lower()
    if ".zip:" in str(path).lower():
        return "text"
    if not path.exists():
        near = [entry.name for entry in path.parent.iterdir()] if path.parent.is_dir() else []
        also = f"; {path.parent} holds {', '.join(sorted(near)[:6])}" if near else ""
        raise BadInput(f"{path} does not exist{also}")
    endings = {
        ".parquet": "parquet", ".pq": "parquet", ".arrow": "arrow", ".feather": "arrow", ".ipc": "arrow", ".npz": "npz",
        ".json": "json", ".json.gz": "json", ".tar": "tar", ".tar.gz": "tar", ".tgz": "tar", ".tar.xz": "tar",
        ".tar.bz2": "tar", ".zip": "text",
    }  # fmt: skip
    return next((kind for ending, kind in endings.items() if name.endswith(ending)), "text")


def _text_files(path: Path) -> list[TextFile]:
    """Return the text files that a path means: `archive.zip:a.txt,b.txt` means members of an archive."""
    archive, _, members = str(path).partition(".zip:")
    if members:
        whole = Path(archive + ".zip")
        have = zip_members(whole)
        wanted = members.split(",")
        if missing := [name for name in wanted if name not in have]:
            raise BadInput(f"{whole} has no member {missing[0]!r}; it has {', '.join(sorted(have, key=natural)[:12])}")
        return [TextFile(whole, name) for name in wanted]
    if path.suffix.lower() == ".zip":
        have = zip_members(path)
        if len(have) != 1:
            raise BadConfig(
                f"{path} holds {', '.join(sorted(have)[:12])}: say which, as {path}:{have[0] if have else 'NAME'}"
            )
        return [TextFile(path, have[0])]
    return [TextFile(path)]
