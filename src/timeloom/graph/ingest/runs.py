"""Sorting more rows than fit in memory: sorted runs, merged block by block.

One run that fits in memory is the usual case and costs no more than sorting it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from timeloom.graph.ingest.order import as_sortable, sort_rows
from timeloom.graph.ingest.spill import Block, Columns, Spill


class Runs:
    """Rows that arrive in any order and leave sorted by the named columns; equal rows keep their order of arrival."""

    def __init__(self, scratch: Callable[[str], Path], by: list[str], *, run_rows: int, held_bytes: int) -> None:
        self._by, self._run_rows = by, run_rows
        self._waiting: list[Columns] = []
        self._waiting_rows = 0
        self.num_rows = 0
        self._runs = Spill(scratch, "runs", held_bytes)

    def add(self, rows: Columns) -> None:
        """Take some rows."""
        self._waiting.append(rows)
        self.num_rows += len(rows[self._by[0]])
        self._waiting_rows += len(rows[self._by[0]])
        if self._waiting_rows >= self._run_rows:
            self._end_run()

    def _end_run(self) -> None:
        if self._waiting_rows:
            run = sort_rows(_joined(self._waiting), self._by)
            self._waiting, self._waiting_rows = [], 0
            self._runs.add(run)

    def merged(self, block_rows: int) -> Iterator[Columns]:
        """Yield all rows in order, about ``block_rows`` at a time."""
        self._end_run()
        blocks = self._runs.blocks
        if len(blocks) == 1:
            for first in range(0, blocks[0].num_rows, block_rows):
                yield blocks[0].read(first, min(first + block_rows, blocks[0].num_rows))
        elif blocks:
            yield from self._merge(blocks, max(block_rows // len(blocks), 1))
        self._runs.close()

    def _merge(self, blocks: list[Block], share_rows: int) -> Iterator[Columns]:
        heads = [block.read(0, min(share_rows, block.num_rows)) for block in blocks]
        taken = [len(head[self._by[0]]) for head in heads]
        while any(len(head[self._by[0]]) for head in heads):
            last = [self._last_row(head) for head in heads]
            # The run whose loaded rows end first limits what can be given out: later runs may only give rows that
            # sort strictly before its end, earlier ones also equal rows, so that equal rows keep their order.
            limits = [
                (row, run) for run, row in enumerate(last) if row is not None and taken[run] < blocks[run].num_rows
            ]
            cut, cut_run = min(limits) if limits else (None, -1)
            out: list[Columns] = []
            for run, head in enumerate(heads):
                size = len(head[self._by[0]])
                end = size if cut is None or run == cut_run else self._rows_before(head, cut, inclusive=run < cut_run)
                if end:
                    out.append({name: column[:end] for name, column in head.items()})
                    heads[run] = {name: column[end:] for name, column in head.items()}
                if end == size and taken[run] < blocks[run].num_rows:
                    more = min(taken[run] + share_rows, blocks[run].num_rows)
                    heads[run] = blocks[run].read(taken[run], more)
                    taken[run] = more
            yield sort_rows(_joined(out), self._by)

    def _sortable(self, head: Columns, first: int, last: int) -> list[np.ndarray]:
        columns = [head[name][first:last] for name in self._by]
        return [as_sortable(column) if column.dtype == np.float64 else column for column in columns]

    def _last_row(self, head: Columns) -> tuple[int, ...] | None:
        size = len(head[self._by[0]])
        return tuple(int(column[0]) for column in self._sortable(head, size - 1, size)) if size else None

    def _rows_before(self, head: Columns, cut: tuple[int, ...], *, inclusive: bool) -> int:
        """Return how many of the sorted rows lie before ``cut`` (or at it, where ``inclusive``)."""
        first, last = 0, len(head[self._by[0]])
        for level, value in enumerate(cut):
            column = self._sortable(head, first, last)[level]
            first, last = (
                first + int(np.searchsorted(column, value)),
                first + int(np.searchsorted(column, value, "right")),
            )
        return last if inclusive else first


def _joined(parts: list[Columns]) -> Columns:
    if len(parts) == 1:
        return parts[0]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
