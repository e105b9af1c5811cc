"""Whether a graph on disk is what it says it is: every byte, and every promise about what the bytes mean."""

from __future__ import annotations

from collections.abc import Iterator
from os import PathLike
from pathlib import Path

import numpy as np

from timeloom.errors import TimeloomError
from timeloom.graph.dynamic import DynamicGraph
from timeloom.graph.expected import expected_arrays
from timeloom.graph.ingest.gather import Progress, silent
from timeloom.graph.replay import replay
from timeloom.graph.store import Store


def check(path: str | PathLike[str], progress: Progress = silent) -> Iterator[str]:
    """Yield one sentence for each thing that is wrong with a graph (nothing: all is well).

    Checksums first; the meaning of the arrays is checked only where all bytes are as written, and each part of it only
    where what it builds on is sound.
    """
    store = Store(Path(path))
    try:
        for part in _parts(store, progress):
            broken = False
            for problem in part:
                broken = True
                yield problem
            if broken:
                return
    except TimeloomError as error:
        yield str(error)
    except Exception as error:
        # Whatever the arrays hold, the answer is a sentence.
        yield f"the arrays do not fit together: {error!r}"


def _parts(store: Store, progress: Progress) -> Iterator[Iterator[str]]:
    """Yield what is to be checked, part by part; the graph is opened once its arrays are known to be readable."""
    yield store.verify()
    yield _arrays(store)
    graph = DynamicGraph(store.path)
    yield _index(graph)
    yield _all_of(_times(graph), _reports(graph), _ids(graph), _nodes(graph), _attributes(graph))
    yield replay(graph, progress)


def _all_of(*parts: Iterator[str]) -> Iterator[str]:
    for part in parts:
        yield from part


def _arrays(store: Store) -> Iterator[str]:
    """Check that all arrays are there, and that each has the type and shape that go with the others."""
    expected = expected_arrays(store)
    for name in store.names:
        array, form = store.array(name), expected.pop(name, None)
        if form is None:
            yield f"the array {name} belongs to nothing in this graph"
        elif not form.is_of(array):
            yield f"the array {name} has type {array.dtype.str} and shape {list(array.shape)}, not {form}"
    for name in expected:
        yield f"the array {name} is missing"


def _index(graph: DynamicGraph) -> Iterator[str]:
    """Check that segments follow each other without a gap, and that what they hold is shared out to their snapshots."""
    manifest, array, first = graph.store.manifest, graph.store.array, 0
    for number, entry in enumerate(manifest["segments"]):
        name = entry["name"]
        if name != f"s{number}" or entry["first"] != first or not entry["count"]:
            yield f"segment {name} begins at snapshot {entry['first']}, where segment s{number} begins at {first}"
        first += entry["count"]
        ends, whole = array(f"{name}.ends"), array(f"{name}.whole")
        stored = [len(array(f"{name}.{kind}.keys")) for kind in ("keyframe", "delta")]
        sizes = np.diff(ends, axis=0, prepend=0)
        if (ends < 0).any() or (sizes < 0).any() or ends[-1:].tolist() != [stored]:
            yield f"the index of segment {name} does not fit the {stored} edges and changes it holds"
        elif (whole > 1).any() or sizes[whole == 0, 0].any() or sizes[whole == 1, 1].any():
            yield f"the index of segment {name} gives edges to a delta, or changes to a whole snapshot"
        if not entry["weighted"] and (array(f"{name}.delta.appears") > 1).any():
            yield f"a change of segment {name} is neither 1 (the edge appears) nor 0 (it goes)"
    if first != manifest["num_snapshots"]:
        yield f"segments hold {first} snapshots, the manifest says {manifest['num_snapshots']}"


def _times(graph: DynamicGraph) -> Iterator[str]:
    starts = graph.starts
    if (starts[1:] <= starts[:-1]).any() or int(starts[-1]) >= graph.end:
        yield "the snapshots' times do not ascend"


def _reports(graph: DynamicGraph) -> Iterator[str]:
    """Check that each account balances, and that there is one for each segment, which tells what the segment holds."""
    reports, segments = graph.store.manifest["reports"], graph.store.manifest["segments"]
    if len(reports) != len(segments):
        yield f"there are {len(segments)} segments, but {len(reports)} accounts of how they were made"
    for report, segment in zip(reports, segments, strict=False):
        read, went = report["rows_read"] + report["mirrored"], report["kept"] + report["merged"]
        dropped = sum(report["dropped"].values())
        if read != went + dropped or dropped != report["dropped_in_all"]:
            yield f"an account does not balance: {read} rows, of which {went} were kept and {dropped} dropped"
        found = segment["count"], int(graph.store.array(f"{segment['name']}.statistics")[:, 0].sum())
        if found != (report["num_snapshots"], report["num_edges"]):
            yield "segment {} has {} snapshots and {} edges, but its account differs".format(segment["name"], *found)


def _ids(graph: DynamicGraph) -> Iterator[str]:
    """Check that each node and each edge type has an id of its own."""
    store, layout = graph.store, graph.layout
    for family in ("nodes", "types"):
        if f"{family}.id_ends" in store:
            ends, size = store.array(f"{family}.id_ends"), len(store.array(f"{family}.id_bytes"))
            if (np.diff(ends, prepend=0) < 0).any() or int(ends[-1] if len(ends) else 0) != size:
                yield f"the ids of {family} do not end where their {size} bytes do"
                return
    nodes, types = graph.ids.all(), graph.type_ids.all()
    for ids, what in ((nodes, "nodes"), (types, "edge types")):
        distinct = len(np.unique(ids)) if isinstance(ids, np.ndarray) else len(set(ids))
        if distinct != len(ids):
            yield f"the graph has {len(ids)} {what}, but {len(ids)} ids, of which {distinct} differ"
    if len(nodes) > layout.most_nodes or len(types) > (layout.most_types if layout.type_bits else 0):
        yield f"{len(nodes)} nodes and {len(types)} edge types do not fit into the keys of {layout}"


def _nodes(graph: DynamicGraph) -> Iterator[str]:
    first = graph.first_seen
    if first.min(initial=-1) < -1 or first.max(initial=-1) >= len(graph):
        yield f"a node is first seen in a snapshot that is not one of the {len(graph)} there are"
    if "nodes.present" in graph.store:
        nodes, since, until = graph.store.array("nodes.present").T
        outside = (nodes < 0) | (nodes >= graph.num_nodes) | (since < 0) | (since >= until) | (until > len(graph))
        order = np.lexsort((since, nodes))
        meets = (np.diff(nodes[order]) == 0) & (since[order][1:] <= until[order][:-1])
        if outside.any() or meets.any():
            yield "the stays of nodes are not in order"


def _attributes(graph: DynamicGraph) -> Iterator[str]:
    """Check that features are finite, that classes are among those that have names, and that no row is of no node."""
    manifest = graph.store.manifest
    classes = {family: len(manifest[family].get("classes", [])) for family in ("features", "labels")}
    widths = set()
    for name in graph.store.names:
        family = next((family for family in classes if family in name.split(".")), None)
        if family is None:
            continue
        array = graph.store.array(name)
        rows = array.shape[1] if name.startswith("s") else len(array)
        if rows > graph.num_nodes:
            yield f"the array {name} has {rows} rows for {graph.num_nodes} nodes"
        if array.dtype.kind == "i" and (array.min(initial=0) < -1 or array.max(initial=-1) >= classes[family]):
            yield f"the array {name} names a class that is none of the {classes[family]} there are"
        if array.dtype == np.float32:
            widths.add(array.shape[-1])
            if not np.isfinite(array).all():
                yield f"the array {name} holds a number that is not finite"
    if len(widths) > 1:
        yield f"nodes have {sorted(widths)} features in different segments"
