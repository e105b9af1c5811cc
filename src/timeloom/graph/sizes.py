"""How large each snapshot of a graph is: all that a simulator of schedules wants to know, in one small file.

Shape letters: T snapshots.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from timeloom.errors import BadInput, TooLarge, is_disk_full
from timeloom.graph.dynamic import DynamicGraph
from timeloom.graph.keys import Int64s

FORMAT = "timeloom sizes"
VERSION = 1
COLUMNS = ("num_nodes", "edges", "added", "removed")
_MOST = 1 << 53


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotSizes:
    """Sizes of T snapshots, as [T] arrays; edges added to the first snapshot are added to nothing."""

    name: str
    num_nodes: Int64s
    """Nodes with an edge."""
    edges: Int64s
    added: Int64s
    """Edges that the snapshot before does not have."""
    removed: Int64s
    """Edges of the snapshot before that are gone."""

    def __post_init__(self) -> None:
        lengths = {column: len(getattr(self, column)) for column in COLUMNS}
        if len(set(lengths.values())) > 1 or not len(self.edges):
            raise BadInput(f"sizes of {self.name!r}: {_listed(lengths)} are not equally many snapshots, at least 1")
        for column in COLUMNS:
            values = getattr(self, column)
            if (low := values.min()) < 0 or values.max() > _MOST:
                t = int(values.argmin() if low < 0 else values.argmax())
                raise BadInput(
                    f"sizes of {self.name!r}: {column} of snapshot {t} is {values[t]}, not between 0 and 2**53"
                )
        before = np.concatenate([[0], self.edges[:-1]])
        wrong = np.flatnonzero((before + self.added - self.removed != self.edges) | (self.removed > before))
        if len(wrong):
            t = int(wrong[0])
            raise BadInput(
                f"sizes of {self.name!r}: snapshot {t} has {self.edges[t]} edges, but {before[t]} before it, "
                f"{self.added[t]} added and {self.removed[t]} removed do not lead there"
            )

    def __len__(self) -> int:
        return len(self.edges)


def sizes_of(graph: DynamicGraph) -> SnapshotSizes:
    """Return the sizes of a graph's snapshots; its edges are not read."""
    counted = {name: np.asarray(column, np.int64) for name, column in graph.statistics.items()}
    return SnapshotSizes(
        name=graph.name, num_nodes=counted["active"], edges=counted["edges"], added=counted["added"],
        removed=counted["removed"],
    )  # fmt: skip


def write_sizes(sizes: SnapshotSizes, path: str | PathLike[str]) -> None:
    """Write sizes as one JSON file, whole or not at all."""
    columns = {column: getattr(sizes, column).tolist() for column in COLUMNS}
    text = json.dumps({"format": FORMAT, "version": VERSION, "name": sizes.name, **columns})
    path = Path(path)
    aside = path.with_name(f"{path.name}.{os.getpid()}.partial")
    try:
        aside.write_text(text + "\n", encoding="utf-8")
        os.replace(aside, path)
    except OSError as error:
        with suppress(OSError):
            aside.unlink()
        kind = TooLarge if is_disk_full(error) else BadInput
        raise kind(f"{path} cannot be written ({error.strerror}): give another path") from None


def read_sizes(path: str | PathLike[str]) -> SnapshotSizes:
    """Return the sizes that `write_sizes` wrote; anything else is refused."""
    path = Path(path)
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BadInput(f"{path} cannot be read ({error.strerror}): is this the right file?") from None
    except (ValueError, RecursionError) as error:
        raise BadInput(f"{path} is no JSON file, or a broken one ({error}): write it again") from None
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise BadInput(f"{path} is JSON, but no file of sizes (no 'format': {FORMAT!r}): is this the right file?")
    if data.get("version") != VERSION:
        raise BadInput(f"{path} has version {data.get('version')!r}, but this timeloom reads {VERSION}: write it again")
    if not isinstance(data.get("name"), str):
        raise BadInput(f"{path} gives the name {data.get('name')!r}, which is no text: write it again")
    columns = {column: _column(path, column, data.get(column)) for column in COLUMNS}
    try:
        return SnapshotSizes(
            name=data["name"], num_nodes=columns["num_nodes"], edges=columns["edges"], added=columns["added"],
            removed=columns["removed"],
        )  # fmt: skip
    except BadInput as error:
        raise BadInput(f"{path}: {error}") from None


def _column(path: Path, name: str, values: Any) -> Int64s:
    if not isinstance(values, list):
        found = "nothing" if values is None else type(values).__name__
        raise BadInput(f"{path} gives {found} for {name!r} where a list of whole numbers was expected: write it again")
    for t, value in enumerate(values):
        if type(value) is not int or abs(value) > _MOST:
            raise BadInput(f"{path} gives {str(value)[:40]!r} for {name!r} of snapshot {t}, which is no such number")
    return np.array(values, np.int64)


def _listed(lengths: dict[str, int]) -> str:
    return ", ".join(f"{count} {column}" for column, count in lengths.items())
