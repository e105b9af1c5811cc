"""The first stage of an ingest: every row is read once, its ids become codes, and it waits in a log."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from timeloom.errors import BadConfig, BadInput
from timeloom.graph.ingest.ids import Ids
from timeloom.graph.ingest.order import take
from timeloom.graph.ingest.rows import Account, BadPlace, BadRows, RowBlock, Source
from timeloom.graph.ingest.rules import Budget, Rules
from timeloom.graph.ingest.runs import Runs
from timeloom.graph.ingest.spill import Columns, Spill
from timeloom.graph.ingest.tokens import Reason
from timeloom.graph.keys import Int64s
from timeloom.graph.times import MOST_SNAPSHOTS, Clock, guess_clock


class Progress(Protocol):
    """Is told how far a long piece of work is."""

    def __call__(self, stage: str, done: int, total: int, rows: int) -> None:
        """Take note: ``done`` of ``total`` (0: not known), and how many rows that is."""
        ...


def silent(stage: str, done: int, total: int, rows: int) -> None:
    """Take no note."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """Which times count: as the user wrote them, and the earliest that may be appended."""

    start: str | None = None
    stop: str | None = None
    not_before: int | None = None


@dataclass(slots=True)
class Gathered:
    """The rows of a source, with what the next stage must know of them."""

    clock: Clock
    log: Spill
    nodes: Ids
    types: Ids | None
    has_weights: bool = False
    whole_weights: bool = True
    """Whether all weights are whole numbers, so that their sums do not depend on their order."""
    earliest: int = np.iinfo(np.int64).max
    latest: int = np.iinfo(np.int64).min
    moments: set[int] = field(default_factory=set)
    """The distinct times, where each is a snapshot."""
    sorted_times: Runs | None = None
    """The times in order, where snapshots hold so many events each."""


class Gatherer:
    """Reads a source into a log."""

    def __init__(
        self, source: Source, rules: Rules, bounds: Bounds, budget: Budget, scratch: Callable[[str], Path],
        nodes: Ids, types: Ids, clock: Clock | None, *, bipartite: bool,
    ) -> None:  # fmt: skip
        self._bipartite = bipartite
        self._source, self._rules, self._bounds = source, rules, bounds
        self._nodes, self._types, self._clock = nodes, types, clock
        self._log = Spill(scratch, "log", budget.share(0.25))
        self._times = Runs(scratch, ["time"], run_rows=budget.share(0.2) // 40, held_bytes=budget.share(0.1))
        self._range: tuple[int | None, int | None] = (None, None)

    def gather(self, account: Account, bad: BadRows, progress: Progress) -> Gathered:
        """Read everything; raise on the first bad row, or count it, as asked."""
        gathered: Gathered | None = None
        for block, read_bytes in self._source.blocks(account, bad):
            if gathered is None:
                gathered = self._begin(block)
            if block.num_rows:
                self._take(block, gathered, account, bad)
            progress("reading", read_bytes, self._source.size_bytes, account.read)
        if gathered is None:
            raise BadInput("the source has no rows at all: is this the right file?")
        return gathered

    def _begin(self, block: RowBlock) -> Gathered:
        """Settle the clock by the first rows."""
        unit = self._source.time_unit
        if self._clock is None:
            times = block.time if block.time is not None and len(block.time) else np.zeros(1, np.int64)
            self._clock = guess_clock(int(times.min()), int(times.max())) if unit == "auto" else Clock(unit)
        elif unit not in ("auto", self._clock.unit):
            raise BadInput(
                f"times here are kept in {unit}, but the graph's in {self._clock.unit}: "
                f"write them in {self._clock.unit}, or say --time-unit {self._clock.unit} if that is what they are"
            )
        if self._rules.operations and block.operation is None:
            raise BadConfig("this graph is made of operations, but no column says which: add --operation COLUMN")
        start, stop = self._bounds.start, self._bounds.stop
        self._range = (
            None if start is None else self._clock.read(start), None if stop is None else self._clock.read(stop)
        )  # fmt: skip
        return Gathered(
            self._clock, self._log, self._nodes, None if block.type is None else self._types,
            has_weights=block.weight is not None,
        )  # fmt: skip

    def _take(self, block: RowBlock, gathered: Gathered, account: Account, bad: BadRows) -> None:
        keep = self._in_range(block, account, bad)
        ends = {"source": _of(block.source, keep), "target": _of(block.target, keep)}
        if self._bipartite:
            ends = {side: _apart(side[0], ids) for side, ids in ends.items()}
        rows: Columns = {side: self._nodes.encode(ids) for side, ids in ends.items()}
        for name in ("time", "weight", "operation"):
            column = getattr(block, name)
            if column is not None:
                rows[name] = _of(column, keep)
        if block.type is not None:
            rows["type"] = self._types.encode(_of(block.type, keep))
        if not self._rules.keep_self_loops:
            rows = _without_self_loops(rows, account)
        if gathered.has_weights:
            weight = rows["weight"]
            gathered.whole_weights = gathered.whole_weights and bool(np.all(weight == np.rint(weight)))
        self._note_times(rows.get("time"), gathered)
        if len(rows["source"]):
            self._log.add(rows)

    def _note_times(self, times: Int64s | None, gathered: Gathered) -> None:
        if times is None or not len(times):
            return
        if self._range[0] is not None:
            times = np.maximum(times, self._range[0])
        gathered.earliest = min(gathered.earliest, int(times.min()))
        gathered.latest = max(gathered.latest, int(times.max()))
        kind = self._rules.windows.kind
        if kind == "given":
            gathered.moments.update(np.unique(times).tolist())
            if len(gathered.moments) > MOST_SNAPSHOTS:
                raise BadConfig(
                    f"--as-given makes a snapshot of each distinct time, and there are more than {MOST_SNAPSHOTS}: "
                    "cut by --every, --snapshots or --events instead"
                )
        elif kind == "events":
            gathered.sorted_times = self._times
            self._times.add({"time": times})

    def _in_range(self, block: RowBlock, account: Account, bad: BadRows) -> NDArray[np.int64] | slice:
        """Return which rows count, and account for the others."""
        if block.time is None:
            return slice(None)
        assert self._clock is not None
        keep: NDArray[np.bool_] | None = None
        start, stop = self._range
        if start is not None and not self._rules.operations:
            keep = block.time >= start
            account.drop(f"before --start {self._bounds.start}", int(np.count_nonzero(~keep)))
        elif start is not None:
            # What was built before the start is there in the first snapshot: its rows stay, in their own order.
            account.note("operations before --start, which make the first snapshot", int(np.sum(block.time < start)))
        if stop is not None:
            inside = block.time < stop
            account.drop(f"at or after --stop {self._bounds.stop}", int(np.count_nonzero(~inside)))
            keep = inside if keep is None else keep & inside
        if self._bounds.not_before is not None:
            late = block.time < self._bounds.not_before
            reasons = np.zeros(len(Reason), np.int64)
            reasons[Reason.late] = np.count_nonzero(late)
            if reasons.any():
                first = self._clock.show(int(block.time[late][0]))
                hint = f"; the graph ends at {self._clock.show(self._bounds.not_before)}"
                bad.found([BadPlace("the new events", Reason.late, first, hint)], reasons)
            keep = ~late if keep is None else keep & ~late
        return slice(None) if keep is None or keep.all() else np.flatnonzero(keep)


def _of(column: Any, keep: NDArray[np.int64] | slice) -> Any:
    """Return the kept rows of a NumPy or Arrow column."""
    if isinstance(keep, slice):
        return column
    return column[keep] if isinstance(column, np.ndarray) else column.take(keep)


def _apart(side: str, ids: Any) -> Any:
    """Return ids that no id of the other side equals."""
    return pc.binary_join_element_wise(pa.scalar(side), pa.array(ids).cast(pa.string()), ":")


def _without_self_loops(rows: Columns, account: Account) -> Columns:
    loops = rows["source"] == rows["target"]
    count = int(np.count_nonzero(loops))
    if not count:
        return rows
    account.drop("self loop", count)
    keep = np.flatnonzero(~loops).astype(np.uint32)
    return {name: take(column, keep) for name, column in rows.items()}
