"""A slow and obvious ingest, written independently of the fast one, for tests to compare with."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from timeloom.graph.dynamic import DynamicGraph

Edge = tuple[int | str, int | str, int | str]
Edges = dict[Edge, float]


@dataclass(frozen=True)
class Event:
    """One row."""

    source: int
    target: int
    time: int
    weight: float = 1.0
    type: int = 0
    operation: int = 1


def together(policy: str, events: Sequence[Event]) -> float:
    """Return the weight that several events of one edge give, oldest first."""
    weights = [event.weight for event in events]
    if policy == "count":
        return float(len(weights))
    if policy == "last":
        return weights[-1]
    if policy == "max":
        return max(weights)
    # The documented order of a sum: by window, and within a window by weight.
    total = 0.0
    for weight in weights:
        total += weight
    return total / len(weights) if policy == "mean" else total


def snapshots(
    events: Sequence[Event], starts: Sequence[int], *, life: int = 1, policy: str = "sum", both: bool = False,
    loops: bool = False,
) -> list[Edges]:  # fmt: skip
    """Return the edges of every snapshot: each edge's events of the last ``life`` windows (0: all so far), together."""
    window_of = {event: int(np.searchsorted(starts, event.time, "right")) - 1 for event in events}
    by_edge: dict[Edge, list[Event]] = defaultdict(list)
    for event in events:
        if event.source == event.target and not loops:
            continue
        by_edge[event.source, event.target, event.type].append(event)
        if both and event.source != event.target:
            by_edge[event.target, event.source, event.type].append(event)
    found: list[Edges] = []
    for t in range(len(starts)):
        edges: Edges = {}
        for edge, rows in by_edge.items():
            first = 0 if life == 0 else t - life + 1
            counting = [event for event in rows if first <= window_of[event] <= t]
            if policy == "last":
                counting.sort(key=lambda event: event.time)
                weight = counting[-1].weight if counting else 0.0
            else:
                # Windows are summed one by one, oldest first.
                groups = defaultdict(list)
                for event in sorted(counting, key=lambda event: (window_of[event], event.weight)):
                    groups[window_of[event]].append(event)
                parts = [together("sum" if policy == "mean" else policy, group) for group in groups.values()]
                weight = max(parts, default=0.0) if policy == "max" else float(sum(parts))
                weight = weight / len(counting) if policy == "mean" and counting else weight
            if weight != 0.0:
                edges[edge] = weight
        found.append(edges)
    return found


def operated(events: Sequence[Event], starts: Sequence[int]) -> list[Edges]:
    """Return the edges of every snapshot where rows are operations: what is there when a window ends."""
    found: list[Edges] = []
    now: Edges = {}
    in_order = sorted(events, key=lambda event: event.time)
    place = 0
    for t in range(len(starts)):
        end = starts[t + 1] if t + 1 < len(starts) else None
        while place < len(in_order) and (end is None or in_order[place].time < end):
            event = in_order[place]
            edge: Edge = (event.source, event.target, event.type)
            if event.operation > 0 and event.weight != 0:
                now[edge] = event.weight
            else:
                now.pop(edge, None)
            place += 1
        found.append(dict(now))
    return found


def stored(graph: DynamicGraph) -> list[Edges]:
    """Return the edges of every snapshot of a graph on disk, by original ids, each read on its own."""
    return [edges_of(graph, t) for t in range(len(graph))]


def edges_of(graph: DynamicGraph, t: int) -> Edges:
    """Return the edges of one snapshot by original ids."""
    snapshot = graph.snapshot(t)
    sources, targets = graph.ids.of(snapshot.sources), graph.ids.of(snapshot.targets)
    types = graph.type_ids.of(snapshot.types) if len(graph.type_ids) else snapshot.types
    rows = zip(list(sources), list(targets), list(types), snapshot.weights.tolist(), strict=True)
    return {(_plain(u), _plain(v), _plain(kind)): weight for u, v, kind, weight in rows}


def _plain(value: int | str | np.integer) -> int | str:
    return value if isinstance(value, str) else int(value)
