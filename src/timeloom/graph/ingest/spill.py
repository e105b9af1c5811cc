"""Columns of rows that wait between two stages of an ingest: in memory while there is room, else in a scratch file."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Columns = dict[str, NDArray[Any]]


class Block:
    """Some rows of equally long columns, in memory or in a file."""

    __slots__ = ("_columns", "_ends", "_file", "_places", "num_rows")

    def __init__(self, columns: Columns) -> None:
        self.num_rows = len(next(iter(columns.values())))
        self._columns: Columns | None = columns
        self._file = -1
        self._places: dict[str, tuple[int, np.dtype[Any]]] = {}
        self._ends: dict[str, tuple[Any, Any]] = {}

    @property
    def num_bytes(self) -> int:
        """The memory this block takes; 0 once it is in a file."""
        return sum(column.nbytes for column in (self._columns or {}).values())

    def move_to(self, file: int) -> None:
        """Write the columns at the end of an open file and forget them here."""
        assert self._columns is not None
        for name, column in self._columns.items():
            self._ends[name] = (column[0], column[-1]) if len(column) else (0, 0)
            self._places[name] = (os.lseek(file, 0, os.SEEK_END), column.dtype)
            left = np.ascontiguousarray(column).view(np.uint8).reshape(-1).data
            while left:
                left = left[os.write(file, left) :]
        self._file, self._columns = file, None

    def read(self, first: int = 0, last: int | None = None) -> Columns:
        """Return rows ``first`` up to ``last`` (exclusive)."""
        last = self.num_rows if last is None else last
        if self._columns is not None:
            return {name: column[first:last] for name, column in self._columns.items()}
        return {name: self._read_column(name, first, last) for name in self._places}

    def _read_column(self, name: str, first: int, last: int) -> NDArray[Any]:
        place, dtype = self._places[name]
        out = np.empty(last - first, dtype)
        left, at = out.view(np.uint8).data, place + first * dtype.itemsize
        while left:
            got = os.preadv(self._file, [left], at)
            assert got > 0, "a scratch file became shorter"
            left, at = left[got:], at + got
        return out

    def forget(self) -> None:
        """Give back the memory of a block that is needed no more."""
        self._columns, self._places = None, {}

    def find(self, name: str, value: int) -> int:
        """Return how many rows of a sorted column lie below ``value``."""
        if self._columns is not None:
            return int(np.searchsorted(self._columns[name], value))
        # Where blocks hold one range after another, most of them lie wholly on one side, and need not be read.
        first, last = self._ends[name]
        if value <= first or value > last:
            return 0 if value <= first else self.num_rows
        low, high = 0, self.num_rows
        while low < high:
            middle = (low + high) // 2
            if self._read_column(name, middle, middle + 1)[0] < value:
                low = middle + 1
            else:
                high = middle
        return low


class Spill:
    """A list of blocks that takes at most ``limit_bytes`` of memory; what is more goes to one scratch file."""

    def __init__(self, scratch: Callable[[str], Path], name: str, limit_bytes: int) -> None:
        self._scratch, self._name, self._limit_bytes = scratch, name, limit_bytes
        self._held_bytes = 0
        self._file = -1
        self.blocks: list[Block] = []
        self.num_rows = 0

    def add(self, columns: Columns) -> None:
        """Append a block; the arrays must not change afterwards."""
        self.blocks.append(self.hold(columns))
        self.num_rows += self.blocks[-1].num_rows

    def hold(self, columns: Columns) -> Block:
        """Return a block that is not part of the list, in memory or in the file as there is room."""
        block = Block(columns)
        self._held_bytes += block.num_bytes
        if self._held_bytes > self._limit_bytes:
            self._held_bytes -= block.num_bytes
            if self._file < 0:
                self._file = os.open(self._scratch(self._name), os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
            block.move_to(self._file)
        return block

    def release(self, block: Block) -> None:
        """Forget a block that was held."""
        self._held_bytes -= block.num_bytes
        block.forget()

    def drain(self) -> Iterator[Columns]:
        """Yield the blocks in order, forgetting each one."""
        self.blocks.reverse()
        while self.blocks:
            block = self.blocks.pop()
            self._held_bytes -= block.num_bytes
            yield block.read()
        self.close()

    def close(self) -> None:
        """Forget everything and give back the file's room on disk."""
        self.blocks, self._held_bytes = [], 0
        if self._file >= 0:
            os.ftruncate(self._file, 0)
            os.close(self._file)
            self._file = -1
