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
from timeloom.graph.times import MOST_SNAPSHOTS, TICKS_PER_SECOND, Clock, guess_clock


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
    has_types: bool = False
    has_weights: bool = False
    exact_sums: bool = True
    """Whether all weights are whole numbers and few enough, so that their sums do not depend on their order."""
    weight_sum: float = 0.0
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
        nodes: Ids, types: Ids, clock: Clock | None,
    ) -> None:  # fmt: skip
        self._source, self._rules, self._bounds = source, rules, bounds
        self._nodes, self._types, self._clock = nodes, types, clock
        self._log = Spill(scratch, "log", budget.share(0.25))
        self._times = Runs(scratch, ["time"], run_rows=budget.share(0.2) // 40, held_bytes=budget.share(0.1))
        self._range: tuple[int | None, int | None] = (None, None)
        self._scale = (1, 1)

    def gather(self, account: Account, bad: BadRows, progress: Progress, moments: tuple[int, ...] = ()) -> Gathered:
        """Read everything; raise on the first bad row, or count it, as asked.

        ``moments`` are times that exist even where no row has them.
        """
        gathered: Gathered | None = None
        for block, read_bytes in self._source.blocks(account, bad):
            if gathered is None:
                gathered = self._begin(block)
            if block.num_rows:
                self._take(block, gathered, account, bad)
            progress("reading", read_bytes, self._source.size_bytes, account.read)
        if gathered is None:
            gathered = self._begin(RowBlock(source=np.empty(0, np.int64), target=np.empty(0, np.int64)))
        self._note_times(self._moments_in_range(moments), gathered)
        return gathered

    def _begin(self, block: RowBlock) -> Gathered:
        """Settle the clock by the first rows, and refuse rows that are not what the graph is made of."""
        unit, times = self._source.time_unit, block.time
        if self._clock is None:
            known = times if times is not None and len(times) else np.zeros(1, np.int64)
            self._clock = guess_clock(int(known.min()), int(known.max())) if unit == "auto" else Clock(unit)
        else:
            self._scale = _scale_between(unit, self._clock)
            _refuse_other_columns(block, self._rules)
        start, stop = (
            None if text is None else self._clock.read(text) for text in (self._bounds.start, self._bounds.stop)
        )
        if start is not None and stop is not None and start >= stop:
            raise BadConfig(
                f"--start {self._bounds.start} is not before --stop {self._bounds.stop}: nothing would be left"
            )
        self._range = (start, stop)
        return Gathered(self._clock, self._log, has_types=block.type is not None, has_weights=block.weight is not None)

    def _moments_in_range(self, moments: tuple[int, ...]) -> Int64s:
        """Return the moments that count."""
        times = np.array(moments, np.int64)
        start, stop = self._range
        for least in (start, self._bounds.not_before):
            times = times if least is None else times[times >= least]
        return times if stop is None else times[times < stop]

    def _take(self, block: RowBlock, gathered: Gathered, account: Account, bad: BadRows) -> None:
        if block.time is not None and self._scale != (1, 1):
            block.time = _scaled(block.time, *self._scale)
        keep = self._in_range(block, account, bad)
        ends = {"source": _of(block.source, keep), "target": _of(block.target, keep)}
        if self._rules.bipartite:
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
            with np.errstate(over="ignore"):
                gathered.weight_sum += float(np.abs(weight).sum())
            whole = gathered.weight_sum < 2**53 and bool(np.all(weight == np.rint(weight)))
            gathered.exact_sums = gathered.exact_sums and whole
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
                bad.found([BadPlace("one of the new events", Reason.late, first, hint)], reasons)
            keep = ~late if keep is None else keep & ~late
        return slice(None) if keep is None or keep.all() else np.flatnonzero(keep)


def _scale_between(unit: str, clock: Clock) -> tuple[int, int]:
    """Return what to multiply and divide times of a source by, so that they are ticks of a graph's clock."""
    if unit in (clock.unit, "auto") and clock.unit != "nano":
        return 1, 1
    if clock.unit == "nano" and unit in ("nano", "auto", "plain"):
        return (1, 1) if unit == "nano" else (10**9, 1)
    if clock.is_real and unit in TICKS_PER_SECOND:
        mine, its = TICKS_PER_SECOND[clock.unit], TICKS_PER_SECOND[unit]
        return max(mine // its, 1), max(its // mine, 1)
    raise BadInput(
        f"times here are kept in {unit}, but the graph's in {clock.unit}: "
        f"say what they count with --time-unit {clock.unit}, or write them that way"
    )


def _scaled(times: Int64s, times_by: int, over: int) -> Int64s:
    """Return times in another unit, exactly."""
    if len(times) and max(abs(int(times.min())), abs(int(times.max()))) * times_by >= 2**63:
        raise BadInput("a time is out of the range that the graph's clock can hold")
    if (times % over).any():
        raise BadInput("a time is finer than the graph's clock can hold: ingest everything again with these times")
    return times * times_by // over


def _refuse_other_columns(block: RowBlock, rules: Rules) -> None:
    """Refuse rows that lack what the rows of the graph had, or have what those had not."""
    had = {"type": rules.typed, "weight": rules.weighted, "operation": rules.operations}
    for name, expected in had.items():
        has = getattr(block, name) is not None
        if block.num_rows and has != expected and not (name == "weight" and rules.duplicates == "count"):
            does = f"have a column of {name}s, but the new ones have none: name it with --{name}" if expected else (
                f"have no column of {name}s, but the new ones have: leave it out"
            )  # fmt: skip
            raise BadConfig(f"the rows this graph was made of {does}")


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
