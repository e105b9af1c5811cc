"""The later stages of an ingest: rows become keys, sorted keys become changes, changes become snapshots on disk."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from timeloom.errors import BadInput
from timeloom.graph.ingest.gather import Gathered, Progress
from timeloom.graph.ingest.history import (
    NO_CONTRIBUTIONS,
    Changes,
    Contributions,
    Follower,
    HistoryCounts,
    Int32s,
    Policy,
    keeps_tail,
)
from timeloom.graph.ingest.rows import Account
from timeloom.graph.ingest.rules import Budget, Rules
from timeloom.graph.ingest.runs import Runs
from timeloom.graph.ingest.spill import Block, Columns, Spill
from timeloom.graph.ingest.writer import NodeTrack, SegmentWriter, plan_keyframes
from timeloom.graph.keys import Float64s, Int64s, KeyLayout
from timeloom.graph.store import StoreWriter
from timeloom.jit import kernel

_ROW_BYTES = 90
_CHANGE_BYTES = 110


@kernel("void(int64[::1], int64[::1], int32[::1])")
def _windows_of(times: Int64s, starts: Int64s, out: np.ndarray) -> None:
    """Find each time's window: a guess as if windows were even, and a search where that fails.

    Operations from before the first window are part of it.
    """
    count = len(starts)
    first, span = float(starts[0]), max(float(starts[count - 1]) - float(starts[0]), 1.0)
    for i in range(len(times)):
        time = max(times[i], starts[0])
        at = max(min(int((float(time) - first) / span * (count - 1)), count - 1), 0)
        if starts[at] > time or (at + 1 < count and starts[at + 1] <= time):
            low, high = 0, count
            while low < high:
                middle = (low + high) // 2
                if starts[middle] <= time:
                    low = middle + 1
                else:
                    high = middle
            at = low - 1
        out[i] = at


@dataclass(frozen=True, slots=True)
class Before:
    """What a graph that is appended to looked like at its end."""

    num_snapshots: int
    keys: Int64s
    weights: Float64s | None
    num_active: int
    tail: Contributions
    chain: tuple[int, int] = (0, 0)
    """Deltas since the last keyframe, and changes in them."""


NOTHING_BEFORE = Before(0, np.empty(0, np.int64), None, 0, NO_CONTRIBUTIONS)


@dataclass(frozen=True, slots=True)
class Built:
    """What was written: the statistics of the new snapshots, and whether weights are stored."""

    statistics: Int64s
    weighted: bool


class Builder:
    """Turns gathered rows into one segment of a store."""

    def __init__(
        self, store: StoreWriter, gathered: Gathered, rules: Rules, budget: Budget, account: Account, progress: Progress
    ) -> None:
        self._store, self._gathered, self._rules = store, gathered, rules
        self._budget, self._account, self._progress = budget, account, progress
        keeps = keeps_tail(rules.policy, rules.follow_life, rules.operations)
        columns = NO_CONTRIBUTIONS._asdict().items() if keeps else ()
        self._tail = {name: store.open(f"tail.{name}", column.dtype.str) for name, column in columns}

    def build(
        self, starts: Int64s, node_ranks: Int64s, type_ranks: Int64s, layout: KeyLayout, track: NodeTrack,
        *, segment: int, before: Before,
    ) -> Built:  # fmt: skip
        """Write the snapshots that begin at ``starts``."""
        first, end = before.num_snapshots, before.num_snapshots + len(starts)
        runs, events = self._sorted_rows(starts, node_ranks, type_ranks, layout, first)
        follower = Follower(
            self._rules.policy, life=self._rules.follow_life, operations=self._rules.operations, first=first, end=end,
            tail=before.tail,
        )  # fmt: skip
        buckets = _Buckets(self._store, events, self._rules.follow_life, len(before.tail.key), first, self._budget)
        total, done = runs.num_rows, 0
        for rows in runs.merged(max(self._budget.share(0.12) // _CHANGE_BYTES, 1)):
            buckets.add(follower.follow(rows))
            self._keep(follower)
            done += len(rows["key"])
            self._progress("following edges", done, total, done)
        buckets.add(follower.end())
        self._keep(follower)
        self._settle(follower.counts, total)
        statistics, weighted = self._write(buckets, starts, layout, track, segment, before)
        return Built(statistics, weighted)

    def _keep(self, follower: Follower) -> None:
        """Write what counts beyond the last snapshot, where going on needs to know it."""
        for name, column in follower.take_kept()._asdict().items():
            if name in self._tail:
                self._tail[name].write(column)

    def _sorted_rows(
        self, starts: Int64s, node_ranks: Int64s, type_ranks: Int64s, layout: KeyLayout, first: int
    ) -> tuple[Runs, Int64s]:
        """Return all rows on their way to being sorted, and how many fall into each window."""
        gathered, rules = self._gathered, self._rules
        in_order = rules.policy == Policy.last
        by = ["key", "time" if in_order else "window"]
        weighs = (gathered.has_weights and rules.policy != Policy.count) or rules.operations
        if weighs and not gathered.exact_sums and rules.policy in (Policy.sum, Policy.mean):
            # Sums of fractions depend on their order, and the order of the rows must not matter.
            by.append("weight")
        runs = Runs(
            self._store.scratch, by, run_rows=self._budget.share(0.35) // _ROW_BYTES, held_bytes=self._budget.share(0.2)
        )
        events = np.zeros(len(starts), np.int64)
        total, done = gathered.log.num_rows, 0
        for rows in gathered.log.drain():
            row_windows = np.zeros(len(rows["source"]), np.int32)
            if "time" in rows:
                _windows_of(rows["time"], starts, row_windows)
            events += np.bincount(row_windows, minlength=len(starts))
            sources, targets = node_ranks[rows["source"]], node_ranks[rows["target"]]
            types = type_ranks[rows["type"]] if "type" in rows else None
            out: Columns = {"key": layout.pack(sources, targets, types), "window": row_windows + np.int32(first)}
            if in_order:
                out["time"] = rows.get("time", np.zeros(len(row_windows), np.int64))
            if weighs:
                out["weight"] = rows.get("weight", np.ones(len(row_windows)))
            if rules.operations:
                out["weight"] = np.where(rows["operation"] > 0, out["weight"], 0.0)
            if rules.both_directions:
                out = self._with_mirrored(out, sources, targets, types, layout, events, row_windows)
            runs.add(out)
            done += len(row_windows)
            self._progress("sorting", done, total, done)
        return runs, events

    def _with_mirrored(
        self, rows: Columns, sources: Int64s, targets: Int64s, types: Int64s | None, layout: KeyLayout,
        events: Int64s, row_windows: np.ndarray,
    ) -> Columns:  # fmt: skip
        """Return the rows with v -> u right after each u -> v that is no self loop, in the order of the rows."""
        other = np.flatnonzero(sources != targets)
        self._account.mirrored += len(other)
        events += np.bincount(row_windows[other], minlength=len(events))
        mirrored = {name: column[other] for name, column in rows.items()}
        mirrored["key"] = layout.pack(targets[other], sources[other], None if types is None else types[other])
        order = np.argsort(np.concatenate([np.arange(len(sources)), other]), kind="stable")
        return {name: np.concatenate([rows[name], mirrored[name]])[order] for name in rows}

    def _settle(self, counts: HistoryCounts, num_rows: int) -> None:
        """Enter into the account what became of the rows."""
        account = self._account
        account.kept += counts.moved if self._rules.operations else counts.groups
        if self._rules.operations:
            account.drop("operation without effect (the edge was there already, or gone already)", counts.idle)
        else:
            account.merged += num_rows - counts.groups
        account.note("edges of a window whose weight came to 0 (no edge)", counts.zeros)
        account.note("events that replaced another one of the same time, by the order of the rows", counts.ties)
        account.note("edges whose operations within one window cancel", counts.vanished)

    def _write(
        self, buckets: _Buckets, starts: Int64s, layout: KeyLayout, track: NodeTrack, segment: int, before: Before
    ) -> tuple[Int64s, bool]:
        num_edges = len(before.keys) + np.cumsum(buckets.net_edges)
        weighted = buckets.weighted or before.weights is not None
        whole = plan_keyframes(buckets.num_changes, num_edges, weighted=weighted, chain=before.chain)
        writer = SegmentWriter(
            self._store, segment, layout, track, whole, weighted=weighted, first=before.num_snapshots,
            limit_bytes=self._budget.share(0.3),
        )  # fmt: skip
        if before.num_snapshots:
            weights = np.ones(len(before.keys)) if before.weights is None else before.weights
            writer.go_on_from(before.keys, weights, before.num_active)
        changes = np.cumsum(buckets.num_changes).tolist()
        for t, blocks in enumerate(buckets.snapshots()):
            writer.add(blocks)
            self._progress("writing", t + 1, len(starts), changes[t])
        return writer.finish(starts), weighted


_PLAIN, _WEIGHTED, _ENDLESS = 0, 1, 2


@kernel("int64(int32[::1], float64[::1], float64[::1], int64[::1], int64[::1])")
def _tally(t: Int32s, old: Float64s, new: Float64s, num_changes: Int64s, net_edges: Int64s) -> int:
    """Count changes by snapshot; return whether all weights are 0 or 1, or others, or some are not finite."""
    weighted, endless = False, False
    for i in range(len(t)):
        num_changes[t[i]] += 1
        net_edges[t[i]] += (1 if new[i] != 0.0 else 0) - (1 if old[i] != 0.0 else 0)
        weighted |= (new[i] != 0.0 and new[i] != 1.0) or (old[i] != 0.0 and old[i] != 1.0)
        endless |= not np.isfinite(new[i])
    return _ENDLESS if endless else _WEIGHTED if weighted else _PLAIN


@kernel(
    "void(int32[::1], int64, int64[::1], float64[::1], float64[::1], "
    "int64[::1], int64[::1], float64[::1], float64[::1])"
)
def _scatter(
    t: Int32s, first: int, key: Int64s, old: Float64s, new: Float64s, places: Int64s,
    out_key: Int64s, out_old: Float64s, out_new: Float64s,
) -> None:  # fmt: skip
    """Put each change where its snapshot's next one belongs, which keeps the order of edges."""
    for i in range(len(t)):
        at = places[t[i] - first]
        out_key[at], out_old[at], out_new[at] = key[i], old[i], new[i]
        places[t[i] - first] = at + 1


class _Buckets:
    """Changes on their way from the order of edges to the order of snapshots."""

    def __init__(
        self, store: StoreWriter, events: Int64s, life: int, num_before: int, first: int, budget: Budget
    ) -> None:
        ends = np.zeros_like(events)
        if 0 < life < len(events):
            ends[life:] = events[:-life]
        # At most so many changes can fall on each snapshot; snapshots share a bucket while these fit in memory.
        most = events + ends
        most[: max(life, 1)] += num_before
        room = max(budget.share(0.2) // _CHANGE_BYTES, 1)
        self._bucket_of = _groups_of(most, room)
        self._first = first
        count = int(self._bucket_of[-1]) + 1
        self._spill = Spill(store.scratch, "changes", budget.share(0.2))
        self._buckets: list[list[Block]] = [[] for _ in range(count)]
        self.num_changes, self.net_edges = np.zeros(len(events), np.int64), np.zeros(len(events), np.int64)
        self.weighted = False

    def add(self, changes: Changes) -> None:
        """Take changes sorted by edge."""
        if not len(changes.key):
            return
        t = changes.t - np.int32(self._first)
        found = _tally(t, changes.old, changes.new, self.num_changes, self.net_edges)
        if found == _ENDLESS:
            raise BadInput("the weights of an edge add up to more than a float can hold: scale them down")
        self.weighted |= found == _WEIGHTED
        rows: Columns = {"t": t, "key": changes.key, "old": changes.old, "new": changes.new}
        if len(self._buckets) == 1:
            self._buckets[0].append(self._spill.hold(rows))
            return
        bucket = self._bucket_of[t]
        order = np.argsort(bucket, kind="stable")
        bounds = np.searchsorted(bucket[order], np.arange(len(self._buckets) + 1))
        for number in np.flatnonzero(np.diff(bounds)):
            chosen = order[bounds[number] : bounds[number + 1]]
            kept = {name: column[chosen] for name, column in rows.items()}
            self._buckets[number].append(self._spill.hold(kept))

    def snapshots(self) -> Iterator[list[Block]]:
        """Yield the changes of every snapshot in turn, as blocks sorted by edge."""
        for number, bucket in enumerate(self._buckets):
            members = np.flatnonzero(self._bucket_of == number)
            if len(members) == 1:
                # One snapshot: its blocks are in order already, however large it is.
                yield bucket
                for block in bucket:
                    self._spill.release(block)
                continue
            ends = np.cumsum(self.num_changes[members])
            places, count = ends - self.num_changes[members], int(ends[-1])
            rows = {"key": np.empty(count, np.int64), "old": np.empty(count), "new": np.empty(count)}
            for block in bucket:
                part = block.read()
                self._spill.release(block)
                _scatter(part["t"], int(members[0]), *(part[name] for name in rows), places, *rows.values())
            for low, high in pairwise([0, *ends.tolist()]):
                cut = {name: column[low:high] for name, column in rows.items()}
                yield [Block(cut)] if high > low else []
        self._spill.close()


def _groups_of(sizes: Int64s, room: int) -> Int64s:
    """Return a group number for each size, so that consecutive sizes share a group while they fit its room."""
    groups, number, used = np.zeros(len(sizes), np.int64), 0, 0
    for place, size in enumerate(sizes.tolist()):
        if used and used + size > room:
            number, used = number + 1, 0
        used += size
        groups[place] = number
    return groups
