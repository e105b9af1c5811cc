"""An ingest from end to end: a source of events and rules in, a graph on disk and an exact account out."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from timeloom.errors import BadInput
from timeloom.graph.ingest.attributes import Attributes
from timeloom.graph.ingest.build import NOTHING_BEFORE, Builder, Built
from timeloom.graph.ingest.cut import cut_first
from timeloom.graph.ingest.gather import Bounds, Gatherer, Progress, silent
from timeloom.graph.ingest.ids import Ids
from timeloom.graph.ingest.rows import Account, BadRows, Source
from timeloom.graph.ingest.rules import Budget, Rules, default_budget
from timeloom.graph.ingest.writer import NodeTrack, new_track
from timeloom.graph.keys import Int64s, KeyLayout, layout_for
from timeloom.graph.names import put_ids
from timeloom.graph.store import StoreWriter
from timeloom.graph.times import Clock


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """Everything an ingest is to do, beside its source."""

    rules: Rules
    attributes: Attributes = field(default_factory=Attributes)
    bounds: Bounds = field(default_factory=Bounds)
    origin: str | None = None
    drop_bad_rows: bool = False
    name: str = ""
    budget: Budget = field(default_factory=default_budget)
    overwrite: bool = False
    moments: tuple[int, ...] = ()
    """Times that are a snapshot even where no row has them."""


@dataclass(frozen=True, slots=True)
class Report:
    """What an ingest did: the account of the rows, and the graph that came of them."""

    account: Account
    bad_examples: tuple[str, ...]
    num_nodes: int
    num_snapshots: int
    num_edges: int
    empty: int
    clock: Clock
    first: int
    last: int
    seconds: float

    def as_json(self) -> dict[str, Any]:
        """Return the report as plain data."""
        return {
            **self.account.as_json(), "bad_examples": list(self.bad_examples), "num_nodes": self.num_nodes,
            "num_snapshots": self.num_snapshots, "num_edges": self.num_edges, "empty_snapshots": self.empty,
            "clock": self.clock.unit, "first": self.clock.show(self.first), "last": self.clock.show(self.last),
            "seconds": round(self.seconds, 3),
        }  # fmt: skip


def run(source: Source, out: Path, job: Job, progress: Progress = silent) -> Report:
    """Make a graph of a source. Whatever goes wrong, ``out`` is then as it was before."""
    began = time.monotonic()
    account, rules = Account(), job.rules
    bad = BadRows(account, drop=job.drop_bad_rows)
    with StoreWriter(out, overwrite=job.overwrite) as store:
        limit = job.budget.share(0.25)
        nodes, types = Ids("node", limit), Ids("edge type", limit)
        gatherer = Gatherer(source, rules, job.bounds, job.budget, store.scratch, nodes, types, None)
        gathered = gatherer.gather(account, bad, progress, job.moments)
        if not account.read and not job.moments:
            raise BadInput("the source has no rows (a header or comments at most): is this the right file?")
        rules = replace(rules, typed=gathered.has_types, weighted=gathered.has_weights)
        rows_of, present = add_node_rows(nodes, job.attributes), present_codes(nodes, job.attributes)
        untimed = max(job.attributes.num_snapshots, 1)
        starts, end = cut_first(rules.windows, gathered, origin=job.origin, num_untimed=untimed)
        ids, ranks = nodes.ranked()
        type_names, type_ranks = types.ranked()
        layout = layout_for(len(ids), len(type_names))
        track = new_track(len(ids))
        builder = Builder(store, gathered, rules, job.budget, account, progress)
        built = builder.build(starts, ranks, type_ranks, layout, track, segment=0, before=NOTHING_BEFORE)
        assert account.balances, account
        manifest = put_attributes(store, job.attributes, ranks, rows_of, len(starts), present=present)
        put_ids(store, "nodes", ids)
        put_ids(store, "types", type_names)
        put_ends(store, track)
        report = make_report(account, bad, built, gathered.clock, starts, len(ids), time.monotonic() - began)
        manifest |= describe(job.name or out.name, len(ids), gathered.clock, layout, rules, end)
        manifest |= {"num_snapshots": len(starts), "reports": [report.as_json()]}
        manifest["segments"] = [{"name": "s0", "first": 0, "count": len(starts), "weighted": built.weighted}]
        store.commit(manifest)
    return report


def describe(name: str, num_nodes: int, clock: Clock, layout: KeyLayout, rules: Rules, end: int) -> dict[str, Any]:
    """Return the part of the manifest that says what the graph is."""
    bits = {"node_bits": layout.node_bits, "type_bits": layout.type_bits}
    return {
        "name": name, "num_nodes": num_nodes, "clock": clock.unit, "layout": bits, "rules": rules.as_json(), "end": end
    }  # fmt: skip


def make_report(
    account: Account, bad: BadRows, built: Built, clock: Clock, starts: Int64s, num_nodes: int, seconds: float
) -> Report:
    """Return what an ingest or an append did."""
    edges = built.statistics[:, 0]
    return Report(
        account, tuple(str(place) for place in bad.examples), num_nodes, len(starts), int(edges.sum()),
        int(np.count_nonzero(edges == 0)), clock, int(starts[0]), int(starts[-1]), seconds,
    )  # fmt: skip


def put_ends(store: StoreWriter, track: NodeTrack) -> None:
    """Write what is known of the nodes at the end."""
    store.put("nodes.first_seen", track.first_seen)
    store.put("nodes.degrees", np.stack([track.into, track.out_of], axis=1))


def add_node_rows(nodes: Ids, attributes: Attributes) -> Int64s | None:
    """Give every node that attributes speak of a code, and return the code of each row (None: there are no rows)."""
    if attributes.ids is not None:
        known = attributes.ids if isinstance(attributes.ids, np.ndarray) else pa.array(attributes.ids, pa.string())
        return nodes.encode(known).astype(np.int64)
    values = attributes.features if attributes.features is not None else attributes.labels
    if values is None:
        return None
    size = values.shape[-2] if values is attributes.features else values.shape[-1]
    return nodes.encode(np.arange(size, dtype=np.int64)).astype(np.int64)


def present_codes(nodes: Ids, attributes: Attributes) -> list[Int64s]:
    """Return the codes of the nodes that are present in each snapshot."""
    found = []
    for ids in attributes.present or []:
        if ids.dtype.kind not in "iu" or (len(ids) and ids.min() < 0):
            raise BadInput("--present: the nodes of a snapshot are given by ids that are integers from 0 on")
        found.append(nodes.encode(ids.astype(np.int64)).astype(np.int64))
    return found


def put_attributes(
    store: StoreWriter,
    attributes: Attributes,
    ranks: Int64s,
    rows_of: Int64s | None,
    num_snapshots: int,
    *,
    present: Sequence[Int64s] = (),
    segment: int = 0,
) -> dict[str, Any]:
    """Write features, labels and presence by node; return what the manifest says of them."""
    said = attributes.num_snapshots
    if said and said != num_snapshots:
        raise BadInput(f"features or labels are given for {said} snapshots, but the edges make {num_snapshots}")
    place = np.empty(0, np.int64) if rows_of is None else ranks[rows_of]
    features: dict[str, Any] = attributes.spec or {"kind": "none"}
    if attributes.features is not None:
        features = {"kind": "stored"}
        by_snapshot = attributes.features.ndim == 3
        name = f"s{segment}.features" if by_snapshot else "features.fixed"
        _put_values(store, name, attributes.features.astype(np.float32), place, ranks, 0.0, by_snapshot=by_snapshot)
    elif attributes.feature_classes is not None:
        classes, names = attributes.feature_classes
        features = {"kind": "one_hot", "classes": names}
        _put_values(store, "features.classes", classes, place, ranks, -1, by_snapshot=False)
    labels: dict[str, Any] = {"kind": "none"}
    if attributes.labels is not None:
        is_class = attributes.labels.dtype.kind == "i"
        labels = {"kind": "class", "classes": list(attributes.classes)} if is_class else {"kind": "value"}
        by_snapshot = attributes.labels.ndim == 2
        name = f"s{segment}.labels" if by_snapshot else "labels.fixed"
        unknown = -1 if is_class else np.nan
        _put_values(store, name, attributes.labels, place, ranks, unknown, by_snapshot=by_snapshot)
    if attributes.present is not None:
        store.put("nodes.present", _stays([ranks[codes] for codes in present], len(ranks)))
    return {"features": features, "labels": labels}


def _put_values(
    store: StoreWriter,
    name: str,
    values: np.ndarray,
    place: Int64s,
    ranks: Int64s,
    unknown: float,
    *,
    by_snapshot: bool,
) -> None:
    """Write values by node: once, or a block for each snapshot."""
    listed = values.shape[1 if by_snapshot else 0]
    if listed != len(place):
        raise BadInput(f"{name} has {listed} rows, but {len(place)} nodes are listed")
    shape = (len(ranks), *values.shape[2 if by_snapshot else 1 :])
    writer = store.open(name, values.dtype.str, shape if by_snapshot else shape[1:])
    for row in values if by_snapshot else values[None]:
        out = np.full(shape, unknown, values.dtype)
        out[place] = row
        writer.write(out[None] if by_snapshot else out)


def _stays(present: list[Int64s], num_nodes: int) -> Int64s:
    """Return rows (node, first snapshot, snapshot after the last) for every stay of a node in the graph."""
    here, since = np.zeros(num_nodes, np.bool_), np.zeros(num_nodes, np.int64)
    stays: list[np.ndarray] = []
    for t, nodes in enumerate([*present, np.empty(0, np.int64)]):
        now = np.zeros(num_nodes, np.bool_)
        now[nodes] = True
        gone = np.flatnonzero(here & ~now)
        stays.append(np.stack([gone, since[gone], np.full(len(gone), t)], axis=1))
        since[now & ~here] = t
        here = now
    return np.concatenate(stays)
