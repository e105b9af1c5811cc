"""All snapshots of a graph played again, one after another, and compared with what is stored about them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from timeloom.graph.delta import NO_KEYS, Delta, apply, diff, ones_if_none
from timeloom.graph.dynamic import DynamicGraph
from timeloom.graph.ingest.gather import Progress
from timeloom.graph.ingest.history import Contributions, Policy, keeps_tail
from timeloom.graph.ingest.rules import Rules, rules_from_json
from timeloom.graph.keys import Float64s, Int64s
from timeloom.graph.snapshot import STATISTICS


def replay(graph: DynamicGraph, progress: Progress) -> Iterator[str]:
    """Yield one sentence for each thing that is wrong with a graph's snapshots, up to the first that cannot be read."""
    rules = rules_from_json(graph.store.manifest["rules"])
    told = np.stack(list(graph.statistics.values()), axis=1)
    nodes = _Nodes(graph.num_nodes)
    keys: Int64s = NO_KEYS
    weights: Float64s | None = None
    for t in range(len(graph)):
        whole, delta = graph.stored(t)
        edges = whole if whole is not None else (delta.keys, delta.new) if delta is not None else (NO_KEYS, None)
        problem = _bad_edges(graph, rules, *edges, may_go=whole is None)
        if problem:
            yield f"snapshot {t}: {problem}"
            return
        if whole is not None:
            delta = diff(keys, weights, *whole, graph.layout)
            keys, weights = whole
        else:
            assert delta is not None
            if not _starts_from(delta, keys, weights):
                yield f"snapshot {t}: its delta does not start from the snapshot before it"
                return
            weighted = weights is not None or graph.is_weighted(t)
            keys, weights = apply(keys, ones_if_none(keys, weights) if weighted else None, delta)
        if rules.both_directions and not _is_symmetric(delta):
            yield f"snapshot {t}: an edge is there in one direction only"
        found = [len(keys), *nodes.follow(delta, t)]
        if found != told[t].tolist():
            yield f"snapshot {t} has {dict(zip(STATISTICS, found, strict=True))}, but its index says {told[t].tolist()}"
        progress("replaying", t + 1, len(graph), len(keys))
    if not np.array_equal(nodes.first_seen, graph.first_seen):
        yield "the nodes' first snapshots are not those of the edges"
    if not np.array_equal(nodes.degrees, graph.store.array("nodes.degrees")):
        yield "the nodes' degrees are not those of the last snapshot"
    yield from _tail(graph, rules, keys, ones_if_none(keys, weights))


def _bad_edges(
    graph: DynamicGraph, rules: Rules, keys: Int64s, weights: Float64s | None, *, may_go: bool
) -> str | None:
    """Return what is wrong with the edges of a snapshot, or with changes, where a weight of 0 means that one goes."""
    if not len(keys):
        return None
    if (keys[1:] <= keys[:-1]).any() or keys[0] < 0:
        return "its edges are not sorted, or occur twice"
    sources, targets = graph.layout.sources(keys), graph.layout.targets(keys)
    if max(int(sources.max()), int(targets[-1])) >= graph.num_nodes:
        return f"an edge names node {max(int(sources.max()), int(targets[-1]))}, and there are {graph.num_nodes}"
    if graph.layout.type_bits and graph.layout.types(keys).max() >= max(len(graph.type_ids), 1):
        return f"an edge has a type beyond the {len(graph.type_ids)} there are"
    if weights is not None and not (np.isfinite(weights) & ((weights != 0) | may_go)).all():
        return "a weight is 0 or not finite"
    if not rules.keep_self_loops and (sources == targets).any():
        return "an edge leads from a node to itself, which this graph's rules leave out"
    return None


def _starts_from(delta: Delta, keys: Int64s, weights: Float64s | None) -> bool:
    """Say whether the weights that a delta says were there before are there, and whether it changes them."""
    before = np.zeros(len(delta))
    if len(keys):
        at = np.minimum(np.searchsorted(keys, delta.keys), len(keys) - 1)
        before = np.where(keys[at] == delta.keys, ones_if_none(keys, weights)[at], 0.0)
    return bool((before == delta.old).all() and (delta.old != delta.new).all())


def _is_symmetric(delta: Delta) -> bool:
    """Say whether what changes from u to v changes from v to u too."""
    mirrored = delta.layout.pack(delta.targets, delta.sources, delta.types)
    order = np.argsort(mirrored)
    return bool(
        np.array_equal(mirrored[order], delta.keys)
        and np.array_equal(delta.old[order], delta.old)
        and np.array_equal(delta.new[order], delta.new)
    )


class _Nodes:
    """What is known of every node while snapshots pass: how many edges it has, and where it had its first one."""

    def __init__(self, num_nodes: int) -> None:
        self.degrees = np.zeros((num_nodes, 2), np.int64)
        """[N, 2]: edges into each node, and out of it."""
        self.first_seen = np.full(num_nodes, -1, np.int64)
        self._num_active = 0

    def follow(self, delta: Delta, t: int) -> list[int]:
        """Return the statistics of a snapshot, but for the number of its edges."""
        appears, goes = delta.old == 0, delta.new == 0
        steps = appears.astype(np.int64) - goes
        touched = np.unique(np.concatenate([delta.targets, delta.sources]))
        was_active = self._is_active(touched)
        np.add.at(self.degrees[:, 0], delta.targets, steps)
        np.add.at(self.degrees[:, 1], delta.sources, steps)
        is_active = self._is_active(touched)
        came, left = touched[is_active & ~was_active], int((was_active & ~is_active).sum())
        born = came[self.first_seen[came] < 0]
        self.first_seen[born] = t
        self._num_active += len(came) - left
        changed = len(delta) - int(appears.sum()) - int(goes.sum())
        edges = [int(appears.sum()), int(goes.sum()), changed]
        return [*edges, self._num_active, len(born), len(came) - len(born), left]

    def _is_active(self, nodes: Int64s) -> NDArray[np.bool_]:
        return np.asarray(self.degrees[nodes].any(axis=1))


def _tail(graph: DynamicGraph, rules: Rules, keys: Int64s, weights: Float64s) -> Iterator[str]:
    """Check that what is kept for going on is what the last snapshot is made of."""
    if not keeps_tail(rules.policy, rules.follow_life, rules.operations):
        return
    tail = Contributions(*(graph.store.array(f"tail.{name}") for name in Contributions._fields))
    same = tail.key[1:] == tail.key[:-1]
    sorted_well = ((tail.key[1:] > tail.key[:-1]) | (same & (tail.t[1:] > tail.t[:-1]))).all()
    oldest = max(len(graph) - rules.life, 0) if rules.life else -1
    newest = len(graph) - 1 if rules.life else -1
    if not sorted_well or (tail.events < 1).any() or ((tail.t < oldest) | (tail.t > newest)).any():
        yield "the events kept for appending are not in order"
        return
    found, place = np.unique(tail.key, return_inverse=True)
    total, events = np.zeros(len(found)), np.zeros(len(found), np.int64)
    np.add.at(events, place, tail.events)
    if rules.policy == Policy.last:
        total[place] = tail.value
    elif rules.policy == Policy.max:
        total[:] = -np.inf
        np.maximum.at(total, place, tail.value)
    else:
        np.add.at(total, place, tail.value)
    total = total / events if rules.policy == Policy.mean else total
    there = total != 0
    if not (np.array_equal(found[there], keys) and np.array_equal(total[there], weights)):
        yield "the events kept for appending are not those of the last snapshot"
