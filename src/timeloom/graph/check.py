"""Whether a graph on disk is what it says it is: every byte, and every promise about what the bytes mean."""

from __future__ import annotations

from collections.abc import Iterator
from os import PathLike
from pathlib import Path

import numpy as np

from timeloom.errors import BadStore
from timeloom.graph.delta import NO_KEYS, Delta, apply, diff, ones_if_none
from timeloom.graph.dynamic import DynamicGraph
from timeloom.graph.ingest.gather import Progress, silent
from timeloom.graph.keys import Float64s, Int64s
from timeloom.graph.snapshot import STATISTICS
from timeloom.graph.store import Store


def check(path: str | PathLike[str], progress: Progress = silent) -> Iterator[str]:
    """Yield one sentence for each thing that is wrong with a graph (nothing: all is well).

    Checksums first; the meaning of the arrays is checked only where all bytes are as written.
    """
    path = Path(path)
    store = Store(path)
    broken = False
    for problem in store.verify():
        broken = True
        yield problem
    if broken:
        return
    try:
        graph = DynamicGraph(path)
    except (KeyError, TypeError, ValueError) as error:
        yield f"the manifest is incomplete: {error!r}"
        return
    try:
        yield from _index(graph)
        yield from _nodes(graph)
        yield from _attributes(graph)
        yield from _snapshots(graph, progress)
    except (BadStore, IndexError, ValueError) as error:
        yield f"the arrays do not fit together: {error}"


def _index(graph: DynamicGraph) -> Iterator[str]:
    """Check that segments and windows follow each other without a gap."""
    manifest, first = graph.store.manifest, 0
    for entry in manifest["segments"]:
        name = entry["name"]
        if entry["first"] != first:
            yield f"segment {name} begins at snapshot {entry['first']}, not {first}"
        first += entry["count"]
        sizes = {part: len(graph.store.array(f"{name}.{part}")) for part in ("starts", "whole", "ends", "statistics")}
        if set(sizes.values()) != {entry["count"]}:
            yield f"segment {name} has {entry['count']} snapshots, but its index says {sizes}"
            continue
        ends = graph.store.array(f"{name}.ends")
        stored = [len(graph.store.array(f"{name}.{kind}.keys")) for kind in ("keyframe", "delta")]
        if (np.diff(ends, axis=0) < 0).any() or (len(ends) and ends[-1].tolist() != stored):
            yield f"the index of segment {name} does not fit the {stored} edges and changes it holds"
    if first != manifest["num_snapshots"]:
        yield f"segments hold {first} snapshots, the manifest says {manifest['num_snapshots']}"
    if (np.diff(graph.starts) <= 0).any() or (len(graph) and graph.starts[-1] >= graph.end):
        yield "the snapshots' times do not ascend"
    for report in manifest["reports"]:
        went = report["kept"] + report["merged"] + report["dropped_in_all"]
        if report["rows_read"] + report["mirrored"] != went:
            yield f"an account does not balance: {report['rows_read']} + {report['mirrored']} rows, {went} are told"


def _nodes(graph: DynamicGraph) -> Iterator[str]:
    ids = graph.ids.all()
    distinct = len(np.unique(ids)) if isinstance(ids, np.ndarray) else len(set(ids))
    if len(ids) != graph.num_nodes or distinct != len(ids):
        yield f"the graph has {graph.num_nodes} nodes, but {len(ids)} ids, of which {distinct} differ"
    if len(graph.first_seen) != graph.num_nodes:
        yield f"the graph has {graph.num_nodes} nodes, but {len(graph.first_seen)} are followed"
    if "nodes.present" in graph.store:
        stays = graph.store.array("nodes.present")
        if len(stays) and (stays[:, 0].max() >= graph.num_nodes or (stays[:, 1] >= stays[:, 2]).any()):
            yield "the stays of nodes are not in order"


def _attributes(graph: DynamicGraph) -> Iterator[str]:
    features, labels = graph.features, graph.labels
    for t in {0, len(graph) - 1} if len(graph) else ():
        if not np.isfinite(features.at(t)).all():
            yield f"features of snapshot {t} are not finite"
        if labels.kind == "class" and labels.at(t).max(initial=-1) >= len(labels.classes):
            yield f"labels of snapshot {t} name more than the {len(labels.classes)} classes there are"


def _snapshots(graph: DynamicGraph, progress: Progress) -> Iterator[str]:
    """Replay everything, comparing each snapshot with what is said about it."""
    keys: Int64s = NO_KEYS
    weights: Float64s | None = None
    told = np.stack(list(graph.statistics.values()), axis=1)
    first_seen = np.full(graph.num_nodes, -1, np.int64)
    before = np.zeros(graph.num_nodes, np.bool_)
    for t in range(len(graph)):
        whole, delta = graph.stored(t)
        problem = _bad_keys(graph, whole[0] if whole else delta.keys if delta else NO_KEYS)
        if problem:
            yield f"snapshot {t}: {problem}"
            return
        if whole is not None:
            delta = diff(keys, weights, *whole, graph.layout)
            keys, weights = whole
        else:
            assert delta is not None
            if not _fits(keys, weights, delta):
                yield f"snapshot {t}: its delta does not start from the snapshot before it"
                return
            weighted = weights is not None or graph.is_weighted(t)
            keys, weights = apply(keys, ones_if_none(keys, weights) if weighted else None, delta)
        if weights is not None and (not np.isfinite(weights).all() or (weights == 0).any()):
            yield f"snapshot {t}: a weight is 0 or not finite"
        found, before = _count(graph, keys, delta, before, first_seen, t)
        if found != told[t].tolist():
            yield f"snapshot {t} has {dict(zip(STATISTICS, found, strict=True))}, but its index says {told[t].tolist()}"
        progress("replaying", t + 1, len(graph), len(keys))
    if not np.array_equal(first_seen, graph.first_seen):
        yield "the nodes' first snapshots are not those of the edges"
    sources, targets = graph.layout.sources(keys), graph.layout.targets(keys)
    degrees = np.stack([np.bincount(ends, minlength=graph.num_nodes) for ends in (targets, sources)], axis=1)
    if not np.array_equal(degrees, graph.store.array("nodes.degrees")):
        yield "the nodes' degrees are not those of the last snapshot"


def _bad_keys(graph: DynamicGraph, keys: Int64s) -> str | None:
    if not len(keys):
        return None
    if (np.diff(keys) <= 0).any() or keys[0] < 0:
        return "its edges are not sorted, or occur twice"
    largest = max(int(graph.layout.sources(keys).max()), int(graph.layout.targets(keys[-1:])[0]))
    if largest >= graph.num_nodes:
        return f"an edge names node {largest}, and there are {graph.num_nodes}"
    if graph.layout.type_bits and graph.layout.types(keys).max() >= len(graph.type_ids):
        return f"an edge has a type beyond the {len(graph.type_ids)} there are"
    return None


def _fits(keys: Int64s, weights: Float64s | None, delta: Delta) -> bool:
    """Say whether the weights that a delta says were there before are there."""
    at = np.minimum(np.searchsorted(keys, delta.keys), max(len(keys) - 1, 0))
    there = keys[at] == delta.keys if len(keys) else np.zeros(len(delta), np.bool_)
    now = np.where(there, ones_if_none(keys, weights)[at] if len(keys) else 0.0, 0.0)
    return bool(np.array_equal(now, delta.old) and (delta.old != delta.new).all())


def _count(
    graph: DynamicGraph, keys: Int64s, delta: Delta, before: np.ndarray, first_seen: Int64s, t: int
) -> tuple[list[int], np.ndarray]:
    """Return the statistics of a snapshot, counted anew, and which nodes are active in it."""
    active = np.zeros(graph.num_nodes, np.bool_)
    active[graph.layout.sources(keys)] = True
    active[graph.layout.targets(keys)] = True
    came, born = active & ~before, active & (first_seen < 0)
    first_seen[born] = t
    added, removed = int((delta.old == 0).sum()), int((delta.new == 0).sum())
    changed = len(delta) - added - removed
    nodes = [int(which.sum()) for which in (active, born, came & ~born, before & ~active)]
    return [len(keys), added, removed, changed, *nodes], active
