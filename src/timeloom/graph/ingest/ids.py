"""Which number each original id gets: codes in order of appearance while reading, then ranks in order of id.

Ranks make the result independent of the order of the rows: node 0 has the smallest id. Names sort by their UTF-8 bytes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from timeloom.errors import BadInput, TooLarge
from timeloom.graph.keys import Int64s
from timeloom.jit import kernel

Codes = NDArray[np.int32]
_ENTRY_BYTES = 40
_NAME_BYTES = 200


@kernel("int64(int64[::1], int64[::1], int32[::1], int64[::1], int64, int32[::1])")
def _encode(values: Int64s, table: Int64s, table_codes: Codes, ids: Int64s, known: int, out: Codes) -> int:
    """Look every value up in an open-addressed table, adding new ones; stop (-1 - known) when the table is too full."""
    mask = len(table) - 1
    limit = len(table) // 2
    # The high bits of the product depend on all bits of the id; with others, ids that differ in high bits collide.
    shift = 64
    while 1 << (64 - shift) < len(table):
        shift -= 1
    for i in range(len(values)):
        value = values[i]
        at = ((value * -7046029254386353131) >> shift) & mask
        while table_codes[at] >= 0 and table[at] != value:
            at = (at + 1) & mask
        if table_codes[at] < 0:
            if known == limit or known == len(ids):
                return -1 - known
            table[at], table_codes[at], ids[known] = value, known, value
            known += 1
        out[i] = table_codes[at]
    return known


@kernel("void(int64[::1], int64[::1], int32[::1])")
def _rebuild(ids: Int64s, table: Int64s, table_codes: Codes) -> None:
    mask = len(table) - 1
    shift = 64
    while 1 << (64 - shift) < len(table):
        shift -= 1
    for code in range(len(ids)):
        at = ((ids[code] * -7046029254386353131) >> shift) & mask
        while table_codes[at] >= 0:
            at = (at + 1) & mask
        table[at], table_codes[at] = ids[code], code


class _IntegerCodes:
    """Codes of integers, by an open-addressed hash table that grows."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._known = 0
        self._ids = np.empty(1 << 15, np.int64)
        self._table, self._codes = np.empty(1 << 16, np.int64), np.full(1 << 16, -1, np.int32)

    def encode(self, values: Int64s) -> Codes:
        out = np.empty(len(values), np.int32)
        # Compiled loops take writable arrays only, and Arrow's memory is not.
        values = np.require(values, requirements=["C", "W"])
        while (known := _encode(values, self._table, self._codes, self._ids, self._known, out)) < 0:
            self._known = -1 - known
            self._grow()
        self._known = known
        return out

    def _grow(self) -> None:
        size = len(self._table) * 2
        _refuse_many(self._known * 2 * _ENTRY_BYTES, self._limit_bytes, self._known)
        self._ids = np.concatenate([self._ids, np.empty(size // 2 - len(self._ids), np.int64)])
        self._table, self._codes = np.empty(size, np.int64), np.full(size, -1, np.int32)
        _rebuild(self._ids[: self._known], self._table, self._codes)

    def ids(self) -> Int64s:
        return self._ids[: self._known]


class _NameCodes:
    """Codes of strings, by a dictionary of those seen."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._known: dict[str, int] = {}

    def encode(self, names: Any) -> Codes:
        encoded = pc.dictionary_encode(names)
        if isinstance(encoded, pa.ChunkedArray):
            encoded = encoded.combine_chunks()
        known = self._known
        seen = [known.setdefault(name, len(known)) for name in encoded.dictionary.to_pylist()]
        _refuse_many(len(known) * _NAME_BYTES, self._limit_bytes, len(known))
        return np.array(seen, np.int32)[np.asarray(encoded.indices)] if seen else np.empty(0, np.int32)

    def ids(self) -> list[str]:
        return list(self._known)


def _refuse_many(needed_bytes: int, limit_bytes: int, known: int) -> None:
    if needed_bytes > limit_bytes:
        raise TooLarge(
            f"the map of ids needs more than the {limit_bytes >> 20} MiB that --memory leaves for it "
            f"({known} ids so far): raise --memory"
        )


class Ids:
    """The ids of one column family (nodes, or edge types): the kind of id is settled by the first value."""

    def __init__(self, what: str, limit_bytes: int, known: Int64s | list[str] | None = None) -> None:
        self._what, self._limit_bytes = what, limit_bytes
        self._codes: _IntegerCodes | _NameCodes | None = None
        self._num_before = 0
        if known is not None and len(known):
            self.encode(known if isinstance(known, np.ndarray) else pa.array(known, pa.string()))
            self._num_before = len(known)

    def encode(self, values: Any) -> Codes:
        """Return the code of each value; a value seen for the first time gets the next one."""
        whole = isinstance(values, np.ndarray)
        if self._codes is None:
            self._codes = (_IntegerCodes if whole else _NameCodes)(self._limit_bytes)
        if whole != isinstance(self._codes, _IntegerCodes):
            have, got = ("names", "integers") if whole else ("integers", "names")
            raise BadInput(f"{self._what} ids are {have} so far, but {got} here: use --ids names for all")
        return self._codes.encode(values)

    def ranked(self) -> tuple[Int64s | list[str], Int64s]:
        """Return the ids in order of rank, and the rank of each code; ids known before keep their ranks."""
        if self._codes is None:
            return np.empty(0, np.int64), np.empty(0, np.int64)
        ids, before = self._codes.ids(), self._num_before
        if isinstance(ids, np.ndarray):
            order = np.concatenate([np.arange(before), before + np.argsort(ids[before:], kind="stable")])
            ranked: Int64s | list[str] = ids[order]
        else:
            new = sorted(range(before, len(ids)), key=lambda code: ids[code].encode())
            order = np.array([*range(before), *new], np.int64)
            ranked = [ids[code] for code in order]
        ranks = np.empty(len(order), np.int64)
        ranks[order] = np.arange(len(order))
        return ranked, ranks
