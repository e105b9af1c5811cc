"""Snapshots that have left memory: one file each, of what changed in it."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from timeloom.errors import BadStore


class SegmentLog:
    """A folder of arrays by kind and snapshot; a file is there whole or not at all, and is never changed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def write(self, kind: str, t: int, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Keep the arrays of one snapshot; the same snapshot written again, after a restart, replaces itself."""
        path = self._path(kind, t)
        aside = path.with_suffix(f".{os.getpid()}.partial")
        with aside.open("wb") as file:
            np.savez(file, **dict(arrays))  # type: ignore[arg-type]
            file.flush()
            os.fsync(file.fileno())
        os.replace(aside, path)

    def read(self, kind: str, t: int) -> dict[str, NDArray[Any]]:
        """Return the arrays of one snapshot."""
        path = self._path(kind, t)
        try:
            with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
                return dict(arrays)
        except FileNotFoundError:
            raise BadStore(
                f"{kind} of snapshot {t} were asked for, but {path} does not exist: was it ever in memory, and has it "
                "left the window?"
            ) from None
        except (OSError, ValueError, EOFError, KeyError, zipfile.BadZipFile) as error:
            raise BadStore(f"{path} cannot be read ({error}): it was damaged since it was written") from None

    def _path(self, kind: str, t: int) -> Path:
        return self.folder / f"{kind}-{t:08d}.npz"


def logged_rows(log: SegmentLog, t: int, nodes: NDArray[np.integer], bounds: NDArray[np.int64]) -> NDArray[np.float32]:
    """Return the features that nodes had in a snapshot of the log, from the newest change of each segment backwards.

    The cost is that of reading back to where the last of the nodes arrived.
    """
    found = np.empty((len(nodes), int(bounds[-1])), np.float32)
    missing = np.ones((len(nodes), len(bounds) - 1), np.bool_)
    for s in range(t, -1, -1):
        open_ = np.flatnonzero(missing.any(axis=1))
        if not len(open_):
            break
        block = log.read("features", s)
        for i in open_.tolist():
            place, here = _place(block["arrived"], nodes[i])
            if here:
                _fill(found[i], missing[i], bounds, block["rows"][place], (1 << 32) - 1, whole=True)
                continue
            if _place(block["ended"], nodes[i])[1]:
                raise BadStore(f"features of node {nodes[i]} in snapshot {t} were asked for, but it was not here then")
            place, here = _place(block["changed"], nodes[i])
            if here:
                values = block["values"][block["starts"][place] : block["starts"][place + 1]]
                _fill(found[i], missing[i], bounds, values, int(block["masks"][place]), whole=False)
    if missing.any():
        raise BadStore(f"features of node {nodes[int(missing.any(axis=1).argmax())]} in snapshot {t} were never here")
    return found


def _place(sorted_nodes: NDArray[np.int32], node: int) -> tuple[int, bool]:
    place = int(np.searchsorted(sorted_nodes, node))
    return place, place < len(sorted_nodes) and sorted_nodes[place] == node


def _fill(
    row: NDArray[np.float32], missing: NDArray[np.bool_], bounds: NDArray[np.int64], values: NDArray[np.float32],
    mask: int, *, whole: bool,
) -> None:  # fmt: skip
    """Write the segments that a mask names where they are missing."""
    at = 0
    for s in range(len(missing)):
        if not mask >> s & 1:
            continue
        first, last = int(bounds[s]), int(bounds[s + 1])
        begin = first if whole else at
        if missing[s]:
            row[first:last], missing[s] = values[begin : begin + last - first], False
        at += last - first
