"""Going on with a graph: later events become new snapshots, by the rules the graph was made with."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from timeloom.errors import BadConfig, BadStore, TooLarge
from timeloom.graph.dynamic import DynamicGraph
from timeloom.graph.ingest import open_source, pipeline
from timeloom.graph.ingest.attributes import Attributes
from timeloom.graph.ingest.build import Before, Builder
from timeloom.graph.ingest.cut import cut_more
from timeloom.graph.ingest.gather import Bounds, Gatherer, Progress, silent
from timeloom.graph.ingest.history import Contributions
from timeloom.graph.ingest.ids import Ids
from timeloom.graph.ingest.pipeline import Report
from timeloom.graph.ingest.rows import Account, BadRows, Reading
from timeloom.graph.ingest.rules import Budget, Rules, default_budget, rules_from_json
from timeloom.graph.ingest.writer import NodeTrack
from timeloom.graph.names import id_arrays, put_ids
from timeloom.graph.store import StoreWriter

_REWRITTEN = (
    *id_arrays("nodes"), *id_arrays("types"), "nodes.first_seen", "nodes.degrees",
    *(f"tail.{name}" for name in Contributions._fields),
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Append:
    """How later events are read, and what comes with the nodes of the new snapshots."""

    reading: Reading = field(default_factory=Reading)
    stop: str | None = None
    attributes: Attributes = field(default_factory=Attributes)
    drop_bad_rows: bool = False
    budget: Budget = field(default_factory=default_budget)


def append(path: str | PathLike[str], source: Any, options: Append, progress: Progress = silent) -> Report:
    """Add the events of a source to a graph as new snapshots.

    Whatever happens, a SIGKILL included, the graph is then the old one or the new one. Events from before the graph's
    end are bad rows.
    """
    began, path = time.monotonic(), Path(path)
    account = Account()
    bad = BadRows(account, drop=options.drop_bad_rows)
    with StoreWriter(path, update=True) as store:
        graph, opened = DynamicGraph(path), open_source(source, options.reading)
        _refuse_altered(graph)
        rules = rules_from_json(graph.store.manifest["rules"])
        _refuse_what_does_not_fit(graph, rules, opened.timed, options.attributes)
        limit = options.budget.share(0.25)
        nodes, types = Ids("node", limit, graph.ids.all()), Ids("edge type", limit, graph.type_ids.all())
        bounds = Bounds(stop=options.stop, not_before=graph.end)
        gatherer = Gatherer(opened.source, rules, bounds, options.budget, store.scratch, nodes, types, graph.clock)
        gathered = gatherer.gather(account, bad, progress, opened.moments)
        rows_of = pipeline.add_node_rows(nodes, options.attributes)
        starts, end = cut_more(rules.windows, gathered, graph.starts, graph.end)
        ids, ranks = nodes.ranked()
        type_names, type_ranks = types.ranked()
        _refuse_many(graph, len(ids), len(type_names))
        track = _track_of(graph, len(ids))
        builder = Builder(store, gathered, rules, options.budget, account, progress)
        number = len(graph.store.manifest["segments"])
        built = builder.build(
            starts, ranks, type_ranks, graph.layout, track, segment=number, before=_before(graph, rules, track)
        )
        assert account.balances, account
        pipeline.put_attributes(store, options.attributes, ranks, rows_of, len(starts), segment=number)
        put_ids(store, "nodes", ids)
        put_ids(store, "types", type_names)
        pipeline.put_ends(store, track)
        report = pipeline.make_report(account, bad, built, graph.clock, starts, len(ids), time.monotonic() - began)
        manifest = dict(graph.store.manifest)
        manifest |= {"num_nodes": len(ids), "num_snapshots": len(graph) + len(starts), "end": end}
        manifest["reports"] = [*manifest["reports"], report.as_json()]
        segment = {"name": f"s{number}", "first": len(graph), "count": len(starts), "weighted": built.weighted}
        manifest["segments"] = [*manifest["segments"], segment]
        store.commit(manifest, keep=tuple(name for name in graph.store.names if name not in _REWRITTEN))
    return report


def _refuse_altered(graph: DynamicGraph) -> None:
    """Refuse a graph if what is written anew, or gone on from, is not what was written: else it would look sound."""
    last = graph.store.manifest["segments"][-1]["name"]
    earlier = {name for name in graph.store.names if re.match(r"s[0-9]+\.", name) and not name.startswith(f"{last}.")}
    for problem in graph.store.verify({graph.store.manifest["arrays"][name]["file"] for name in earlier}):
        raise BadStore(f"{graph.path}: {problem}; restore it from a copy, or ingest everything again")


def _refuse_what_does_not_fit(graph: DynamicGraph, rules: Rules, timed: bool, attributes: Attributes) -> None:
    if rules.windows.kind == "single" or not timed:
        raise BadConfig(
            f"{graph.path} or the new source has no times, so nothing can be appended: ingest everything again"
        )
    if "nodes.present" in graph.store:
        raise BadConfig(
            f"{graph.path} lists which nodes are present in each snapshot: ingest everything again to add more"
        )
    if attributes.spec or attributes.feature_classes or attributes.present:
        raise BadConfig(
            "what is known of all nodes is given when a graph is made: append takes values of new snapshots only"
        )
    features, labels = graph.features, graph.labels
    shape = {"features": 3, "labels": 2}
    for family in ("features", "labels"):
        values = getattr(attributes, family)
        by_snapshot = f"s0.{family}" in graph.store
        if by_snapshot and values is None:
            raise BadConfig(f"{graph.path} has {family} for each snapshot: give those of the new ones with --{family}")
        if values is not None and (not by_snapshot or values.ndim != shape[family]):
            raise BadConfig(
                f"{graph.path} has no {family} for each snapshot: append can add none; ingest everything again"
            )
    if attributes.features is not None and attributes.features.shape[-1] != features.num_features:
        width = attributes.features.shape[-1]
        raise BadConfig(f"{graph.path} has {features.num_features} features, but the new snapshots have {width}")
    if attributes.labels is not None:
        kind = "class" if attributes.labels.dtype.kind == "i" else "value"
        if kind != labels.kind or (kind == "class" and attributes.labels.max(initial=-1) >= len(labels.classes)):
            raise BadConfig(
                f"{graph.path} has {labels.kind} labels ({len(labels.classes)} classes), and the new ones do not fit: "
                f"they are {kind} labels up to {attributes.labels.max(initial=-1)}"
            )


def _refuse_many(graph: DynamicGraph, num_nodes: int, num_types: int) -> None:
    layout = graph.layout
    if num_nodes > layout.most_nodes or num_types > layout.most_types:
        raise TooLarge(
            f"{graph.path} was laid out for {layout.most_nodes} nodes and {layout.most_types} edge types, "
            f"but it would have {num_nodes} and {num_types}: ingest everything again"
        )


def _track_of(graph: DynamicGraph, num_nodes: int) -> NodeTrack:
    """Return what was followed of every node, with room for the new ones."""
    new = num_nodes - graph.num_nodes
    degrees = np.concatenate([graph.store.array("nodes.degrees"), np.zeros((new, 2), np.int32)])
    first_seen = np.concatenate([graph.first_seen, np.full(new, -1, np.int64)])
    return NodeTrack(degrees[:, 0].copy(), degrees[:, 1].copy(), first_seen)


def _before(graph: DynamicGraph, rules: Rules, track: NodeTrack) -> Before:
    """Return what the graph looks like at its end."""
    last = graph.snapshot(-1)
    if "tail.key" in graph.store:
        tail = Contributions(*(graph.store.array(f"tail.{name}") for name in Contributions._fields))
    else:
        # One contribution an edge says it all: of the last window, or of all time.
        moment = np.full(len(last), len(graph) - 1 if rules.follow_life else -1)
        tail = Contributions(last.keys, moment, last.weights, np.ones(len(last), np.int64))
    return Before(len(graph), last.keys, last.stored_weights, track.num_active, tail, _chain(graph))


def _chain(graph: DynamicGraph) -> tuple[int, int]:
    """Return how many deltas there are since the last keyframe, and changes in them."""
    deltas = changes = 0
    for segment in reversed(graph.store.manifest["segments"]):
        whole = np.flatnonzero(graph.store.array(f"{segment['name']}.whole"))
        sizes = np.diff(graph.store.array(f"{segment['name']}.ends")[:, 1], prepend=0)
        sizes = sizes[whole[-1] + 1 :] if len(whole) else sizes
        deltas, changes = deltas + int(np.count_nonzero(sizes)), changes + int(sizes.sum())
        if len(whole):
            break
    return deltas, changes
