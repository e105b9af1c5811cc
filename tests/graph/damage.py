"""Ways to damage a graph on disk, for tests that must notice."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from timeloom.graph.store import MANIFEST, ArrayWriter, Store, _digest


def rewrite(graph: Path, name: str, change: Callable[[NDArray[Any]], NDArray[Any] | None]) -> None:
    """Change an array in place and make all checksums right again, so that only its meaning can be wrong."""
    store = Store(graph)
    array = store.array(name).copy()
    changed = change(array)
    array = array if changed is None else changed
    file = graph / store.manifest["arrays"][name]["file"]
    file.unlink()
    writer = ArrayWriter(file, array.dtype.str, array.shape[1:])
    writer.write(array)
    info = writer.close()
    entry = {"file": info.file, "dtype": info.dtype, "shape": list(info.shape), "checksum": info.checksum}
    edit_manifest(graph, lambda manifest: manifest["arrays"].update({name: entry}))


def edit_manifest(graph: Path, change: Callable[[dict[str, Any]], None], *, sign: bool = True) -> None:
    """Change the manifest, with a right checksum or without."""
    manifest = json.loads((graph / MANIFEST).read_text())
    change(manifest)
    if sign:
        manifest["checksum"] = _digest(manifest)
    (graph / MANIFEST).write_text(json.dumps(manifest))


def contents(graph: Path) -> dict[str, bytes]:
    """Return every file of a folder, byte by byte."""
    return {path.name: path.read_bytes() for path in graph.iterdir()}


def swap(array: NDArray[Any], i: int, j: int) -> None:
    """Exchange two rows."""
    array[[i, j]] = array[[j, i]]


def add_to(place: tuple[int, ...] | int, value: float) -> Callable[[NDArray[Any]], None]:
    """Return a change that adds a number at one place."""

    def change(array: NDArray[Any]) -> None:
        array[place] += np.asarray(value).astype(array.dtype)

    return change
