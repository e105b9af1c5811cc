"""Snapshots that come as lists: PyTorch Geometric (Temporal) objects and JSON files, and snapshot arrays in `.npz`.

Nothing of those libraries is imported: objects are read by their attributes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from timeloom.errors import BadConfig, BadInput, TooLarge
from timeloom.graph.ingest.attributes import (
    Attributes,
    as_classes,
    as_features,
    load_archive,
    numbered_arrays,
    sparse_entries,
)
from timeloom.graph.ingest.files import BLOCK_BYTES, TextFile, stream
from timeloom.graph.ingest.rows import Columns

Values = NDArray[Any]
MOST_JSON_BYTES = 1 << 29


@dataclass(frozen=True, slots=True)
class Listed:
    """Edges as columns with a time (or none: they are the same in every snapshot), and what comes with the nodes."""

    columns: dict[str, Any]
    attributes: Attributes
    moments: tuple[int, ...]

    @property
    def timed(self) -> bool:
        """Whether edges differ between snapshots."""
        return "time" in self.columns


def _array(value: Any) -> Values:
    """Return a NumPy array of a list, an array or a CPU tensor."""
    detach = getattr(value, "detach", None)
    array = np.asarray(detach().cpu() if detach is not None else value)
    if array.dtype.kind == "O":
        raise BadInput("rows of different lengths were found where numbers were expected")
    return array


def _edges(index: Any, where: str) -> Values:
    """Return a [2, E] array of edges, given that way or as [E, 2] pairs."""
    array = _array(index)
    if array.size == 0:
        return np.empty((2, 0), np.int64)
    if array.ndim == 2 and array.shape[0] != 2 and array.shape[1] == 2:
        array = array.T
    if array.ndim != 2 or array.shape[0] != 2 or array.dtype.kind not in "iu":
        raise BadInput(f"{where}: edges have shape {array.shape} and type {array.dtype}, not [2, E] integers")
    return array


def listed_snapshots(
    edges: Sequence[Any], weights: Sequence[Any] | None, *, features: Any = None, labels: Any = None, num_nodes: int = 0
) -> Listed:
    """Return snapshots given as one edge list each."""
    lists = [_edges(index, f"snapshot {t}") for t, index in enumerate(edges)]
    times = np.repeat(np.arange(len(lists), dtype=np.int64), [array.shape[1] for array in lists])
    columns: dict[str, Any] = {
        "source": np.concatenate([array[0] for array in lists]),
        "target": np.concatenate([array[1] for array in lists]),
        "time": times,
    }  # fmt: skip
    if weights is not None:
        columns["weight"] = np.concatenate([_weights(weight, lists[t], t) for t, weight in enumerate(weights)])
    return Listed(columns, _attributes(features, labels, num_nodes), tuple(range(len(lists))))


def _weights(weight: Any, edges: Values, t: int) -> Values:
    array = np.ones(edges.shape[1]) if weight is None else _array(weight).astype(np.float64).reshape(-1)
    if len(array) != edges.shape[1]:
        raise BadInput(f"snapshot {t} has {edges.shape[1]} edges but {len(array)} weights")
    return array


def fixed_topology(edges: Any, weights: Any, *, features: Any = None, labels: Any = None, num_nodes: int = 0) -> Listed:
    """Return one topology that stays while features or labels change."""
    array = _edges(edges, "the graph")
    columns: dict[str, Any] = {"source": array[0], "target": array[1]}
    if weights is not None:
        columns["weight"] = _weights(weights, array, 0)
    return Listed(columns, _attributes(features, labels, num_nodes), ())


def _attributes(features: Any, labels: Any, num_nodes: int) -> Attributes:
    stacked = None if features is None else as_features(_stacked(features, "features"), "features")
    targets = None if labels is None else _stacked(labels, "labels")
    if (
        stacked is not None
        and stacked.ndim == 2
        and targets is not None
        and targets.ndim == 2
        and len(stacked) == len(targets)
    ):
        stacked = stacked[:, :, None]
    if targets is not None:
        targets = targets.squeeze(-1) if targets.ndim == 3 and targets.shape[-1] == 1 else targets
    classes: tuple[str, ...] = ()
    if targets is not None and targets.dtype.kind in "iub":
        targets, classes = as_classes(targets, "labels")
    elif targets is not None:
        targets = targets.astype(np.float64)
    ids = np.arange(num_nodes, dtype=np.int64) if num_nodes and stacked is None and targets is None else None
    return Attributes(ids=ids, features=stacked, labels=targets, classes=classes)


def _stacked(values: Any, what: str) -> Values:
    if isinstance(values, Sequence) and values and not isinstance(values[0], int | float | list):
        parts = [_array(value) for value in values]
        if len({part.shape for part in parts}) > 1:
            raise BadInput(
                f"{what} have different shapes in different snapshots: {parts[0].shape}, {parts[-1].shape}, ..."
            )
        return np.stack(parts)
    return _array(values)


def from_object(obj: Any) -> Listed | None:
    """Return what a PyTorch Geometric (Temporal) object says, or None where it is none."""
    if all(hasattr(obj, name) for name in ("src", "dst", "t")):
        return _temporal_data(obj)
    if hasattr(obj, "edge_indices"):
        return listed_snapshots(
            obj.edge_indices, getattr(obj, "edge_weights", None), features=getattr(obj, "features", None) or None,
            labels=getattr(obj, "targets", None) or None,
        )  # fmt: skip
    if hasattr(obj, "edge_index") and hasattr(obj, "targets"):
        return fixed_topology(obj.edge_index, obj.edge_weight, features=obj.features, labels=obj.targets)
    if isinstance(obj, Sequence) and len(obj) and all(hasattr(data, "edge_index") for data in obj):
        return _list_of_data(obj)
    return None


def _temporal_data(obj: Any) -> Listed:
    """Return PyG's TemporalData: events with a time; one column of messages is the weight."""
    columns: dict[str, Any] = {"source": _array(obj.src), "target": _array(obj.dst), "time": _array(obj.t)}
    message = getattr(obj, "msg", None)
    if message is not None and _array(message).reshape(len(columns["source"]), -1).shape[1] == 1:
        columns["weight"] = _array(message).reshape(-1)
    return Listed(columns, Attributes(), ())


def _list_of_data(snapshots: Sequence[Any]) -> Listed:
    def of_each(name: str) -> list[Any] | None:
        values = [getattr(data, name, None) for data in snapshots]
        if all(value is None for value in values):
            return None
        if any(value is None for value in values):
            raise BadInput(f"some snapshots of the list have {name!r} and others do not: give it for all or for none")
        return values

    weights = of_each("edge_weight") or of_each("edge_attr")
    if weights is not None and any(
        _array(weight).size != _array(data.edge_index).shape[1] for weight, data in zip(weights, snapshots, strict=True)
    ):
        raise BadInput("edge_attr has several columns: choose one as edge_weight")
    sizes = [int(getattr(data, "num_nodes", 0) or 0) for data in snapshots]
    edges = [data.edge_index for data in snapshots]
    return listed_snapshots(edges, weights, features=of_each("x"), labels=of_each("y"), num_nodes=max(sizes))


def read_json(path: Path) -> Listed:
    """Return a JSON file of PyTorch Geometric Temporal, of any of its five shapes."""
    text, raw = stream(TextFile(path))
    with closing(raw), closing(text):
        content = bytearray()
        while block := text.read(BLOCK_BYTES):
            content += block
            if len(content) > MOST_JSON_BYTES:
                raise TooLarge(
                    f"{path} holds {len(content):,} bytes of JSON or more, beyond the {MOST_JSON_BYTES:,} that are "
                    "read, for all of it must be in memory at once: write it as .npz or as a table"
                )
    try:
        data = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise BadInput(f"{path} is no JSON file, or a broken one: {error}") from None
    try:
        return _json_signal(data)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, OverflowError) as error:
        raise BadInput(f"{path} is JSON, but none of the signals of PyTorch Geometric Temporal ({error!r})") from None


def _json_signal(data: Any) -> Listed:
    if "edge_mapping" in data:
        mapping = data["edge_mapping"]
        count = len(mapping["edge_index"])
        edges, weights = ([mapping[name][str(t)] for t in range(count)] for name in ("edge_index", "edge_weight"))
        return listed_snapshots(edges, weights, labels=np.array(data["y"][: len(edges)], np.float64))
    if "0" in data and "edges" in data["0"]:
        steps = [data[str(t)] for t in range(int(data.get("time_periods", len(data))))]
        features, labels = ([np.array(step[name], np.float64) for step in steps] for name in ("X", "y"))
        return listed_snapshots(
            [step["edges"] for step in steps], [step["weights"] for step in steps], features=features, labels=labels
        )
    if "links" in data and "nodes" in data:
        place = {node.get("id", node.get("bus_stop")): k for k, node in enumerate(data["nodes"])}
        edges = [[place[link["source"]], place[link["target"]]] for link in data["links"]]
        weights = [link.get("weight", 1.0) for link in data["links"]]
        signal = np.array([node["y"] for node in data["nodes"]], np.float64).T
        listed = fixed_topology(edges, weights, labels=signal)
        return Listed(_renamed(listed.columns, list(place)), _with_ids(listed.attributes, list(place)), ())
    signal = np.array(data["FX"] if "FX" in data else data["X"], np.float64)
    return fixed_topology(data["edges"], data.get("weights"), labels=signal)


def _renamed(columns: dict[str, Any], ids: list[Any]) -> dict[str, Any]:
    names = np.array(ids)
    return {**columns, "source": names[columns["source"]], "target": names[columns["target"]]}


def _with_ids(attributes: Attributes, ids: list[Any]) -> Attributes:
    known = np.array(ids) if all(isinstance(name, int) for name in ids) else [str(name) for name in ids]
    return Attributes(ids=known, features=attributes.features, labels=attributes.labels, classes=attributes.classes)


_PART = re.compile(r"(.+)\[(\d+)\]")


def read_npz(path: Path, columns: Columns) -> Listed:
    """Return the columns of a `.npz`; without names, the edges of the sparse matrix `adj`.

    A column is an array's name, `edge_index[0]` for a row of it, or `edge_index_{t}[0]` for a row of each of several
    arrays, of which each is a snapshot.
    """
    asked = {
        name: value
        for name in ("source", "target", "time", "weight", "type", "operation")
        if (value := getattr(columns, name)) is not None
    }
    arrays = load_archive(path)
    if not asked:
        return _sparse_adjacency(arrays, path)
    if "source" not in asked or "target" not in asked:
        raise BadConfig(f"{path}: say which arrays are the edges with --source and --target, such as 'edge_index[0]'")
    lists = {name: _numbered_rows(arrays, value, path) for name, value in asked.items()}
    counts = {len(parts) for parts in lists.values()}
    if len(counts) > 1:
        raise BadInput(f"{path}: {asked} are not equally many arrays")
    found: dict[str, Any] = {name: np.concatenate(parts) for name, parts in lists.items()}
    if len({len(column) for column in found.values()}) > 1:
        raise BadInput(
            f"{path}: columns have different lengths: { {name: len(column) for name, column in found.items()} }"
        )
    several = "{t}" in asked["source"]
    if several:
        found["time"] = np.repeat(np.arange(len(lists["source"])), [len(part) for part in lists["source"]])
    return Listed(found, Attributes(), tuple(range(len(lists["source"]))) if several else ())


def _numbered_rows(arrays: dict[str, Values], expression: str, path: Path) -> list[Values]:
    part = _PART.fullmatch(expression)
    found = numbered_arrays(arrays, part[1] if part else expression, path)
    if part:
        row = int(part[2])
        if any(array.ndim != 2 or len(array) <= row for array in found):
            raise BadInput(f"{path}: {part[1]} has shape {found[0].shape}, so it has no row {row}")
        found = [array[row] for array in found]
    if any(array.ndim != 1 for array in found):
        raise BadInput(f"{path}: {expression} has shape {found[0].shape}: choose a row, such as {expression}[0]")
    return found


def _sparse_adjacency(arrays: dict[str, Values], path: Path) -> Listed:
    if "adj_indptr" not in arrays or "adj_indices" not in arrays:
        names = ", ".join(sorted(arrays))
        raise BadConfig(
            f"{path} holds {names}: say which are the edges with --source and --target, such as 'edge_index[0]'"
        )
    num_nodes, sources, targets = sparse_entries(arrays, "adj", path)
    return fixed_topology(np.stack([sources, targets]), arrays.get("adj_data"), num_nodes=num_nodes)
