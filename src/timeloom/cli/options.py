"""The options that several commands share. An option that is not given is None, so that a preset can tell."""

from __future__ import annotations

import re
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Group, Parameter

from timeloom.errors import BadConfig

if TYPE_CHECKING:
    from timeloom.graph.ingest.attributes import AttributeOptions
    from timeloom.graph.ingest.rows import Reading
    from timeloom.graph.ingest.rules import Budget

GIVEN: ContextVar[tuple[str, ...]] = ContextVar("GIVEN", default=())
"""The arguments of the command that runs, for one that runs itself as several processes."""
ROWS = Group("How rows are read", sort_key=2)
NODES = Group("What comes with nodes", sort_key=4)
WORLD = Group("Several ranks", sort_key=3)
OUTPUT = Group("Running", sort_key=5)
_SIZE = re.compile(r"([0-9]{1,18}(?:\.[0-9]{1,9})?)\s*(k|m|g|t)?i?b?", re.IGNORECASE)
_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


@Parameter(name="*", group=ROWS)
@dataclass(frozen=True, slots=True, kw_only=True)
class ReadingFlags:
    """How rows are read. A column is a name or a position; the first is 1."""

    source: str | None = None
    """Column of the node an edge comes from (in .npz: an array, such as 'edge_index[0]')."""
    target: str | None = None
    """Column of the node an edge goes to."""
    time: str | None = None
    """Column of the time."""
    weight: str | None = None
    """Column of the weight; without one every event weighs 1."""
    type: str | None = None
    """Column of the edge type: edges of different types are different edges."""
    operation: str | None = None
    """Column of +1 (the edge appears) or -1 (it disappears): rows are then changes, not events."""
    separator: str | None = None
    """What separates fields: one character, 'tab' or 'blank'. Found from the first rows if not given."""
    header: str | None = None
    """Whether the first row names the columns: auto | yes | no."""
    comment: str | None = None
    """The characters that begin a comment line (default '#%')."""
    ids: str | None = None
    """What node ids are: auto | integers | names."""
    bipartite: Annotated[bool | None, Parameter(negative="--no-bipartite")] = None
    """Sources and targets are numbered apart: source 5 and target 5 become the nodes s:5 and t:5."""
    time_format: str | None = None
    """How times are written: auto | integer | decimal | date | yyyymmdd."""
    time_unit: str | None = None
    """What numbers count: auto | s | ms | us | ns (since 1970) | plain (no clock). Auto takes 1e8 to 1e11 for seconds,
    a thousand times that for milliseconds, and so on, and says so."""

    def reading(self, preset: Reading) -> Reading:
        """Return ``preset`` with what was given replaced."""
        from dataclasses import replace

        from timeloom.graph.ingest.rows import Columns

        names = ("source", "target", "time", "weight", "type", "operation")
        columns = replace(preset.columns, **_given(self, names))
        assert isinstance(columns, Columns)
        others = ("separator", "header", "comment", "ids", "bipartite", "time_format", "time_unit")
        return replace(preset, columns=columns, **_given(self, others))


@Parameter(name="*", group=NODES)
@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFlags:
    """Features and labels."""

    nodes: Path | None = None
    """A table of nodes (CSV, TSV or Parquet), for the columns that --features and --labels name."""
    node_id: str | None = None
    """The column of --nodes with the ids (default: the first)."""
    features: str | None = None
    """none | degree | log-degree | random:DIM[:SEED] | one-hot:COLUMN | columns:A,B | array:FILE[#NAME]"""
    labels: str | None = None
    """none | class:COLUMN | value:COLUMN | classes:FILE[#NAME] | values:FILE[#NAME]; [T, nodes] arrays are a signal."""
    present: str | None = None
    """FILE#NAME{t}: arrays of the nodes present in each snapshot; without, a node with an edge is present."""

    def attributes(self, preset: AttributeOptions) -> AttributeOptions:
        """Return ``preset`` with what was given replaced."""
        from dataclasses import replace

        return replace(preset, **_given(self, ("nodes", "node_id", "features", "labels", "present")))


@Parameter(name="*", group=OUTPUT)
@dataclass(frozen=True, slots=True, kw_only=True)
class RunFlags:
    """How the work is done and told."""

    on_bad: str = "stop"
    """What a bad row does: stop (an error that names file, line and column) | drop (it is left out and counted)."""
    memory: str | None = None
    """The most memory to take, such as 2GiB (default: half of what is free)."""
    json: bool = False
    """Print the report as JSON."""
    quiet: bool = False
    """Show no progress."""

    @property
    def drop_bad_rows(self) -> bool:
        """Whether bad rows are left out and counted."""
        if self.on_bad not in ("stop", "drop"):
            raise BadConfig(f"--on-bad {self.on_bad} is unknown: use stop or drop")
        return self.on_bad == "drop"

    def budget(self) -> Budget:
        """Return the memory there is to work with."""
        from timeloom.graph.ingest.rules import Budget, default_budget

        return default_budget() if self.memory is None else Budget(read_size(self.memory))


def _given(flags: object, names: tuple[str, ...]) -> dict[str, Any]:
    """Return the options that were given."""
    return {name: value for name in names if (value := getattr(flags, name)) is not None}


def read_size(text: str) -> int:
    """Return the bytes that a size such as 2GiB or 500M means (always powers of 1024)."""
    found = _SIZE.fullmatch(text.strip())
    if not found:
        raise BadConfig(f"--memory {text} is no size: write a number and a unit, such as 512MiB or 2GiB")
    return int(float(found[1]) * _UNITS[(found[2] or "").lower()])


Files = Annotated[list[str], Parameter(help="Files, or a folder.")]
Source = Annotated[list[str], Parameter(help="Files, a folder, or the name of a dataset such as snap:CollegeMsg.")]
Set = Annotated[
    list[str] | None,
    Parameter(name="--set", help="Any setting, as table.key=value (see docs/settings.md). May be given several times."),
]
