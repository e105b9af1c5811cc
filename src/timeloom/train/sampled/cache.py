"""Rows that were fetched from other ranks, kept for later batches as far as there is room.

Shape letters: P rows that are kept, M rows asked for, F features.
"""

from __future__ import annotations

import numpy as np

from timeloom.graph.features import Float32s
from timeloom.graph.keys import Int64s


class RowCache:
    """Rows by number. When it is full it forgets everything: windows move on, and so does what they read."""

    def __init__(self, limit_bytes: int, num_features: int) -> None:
        self._most = limit_bytes // (4 * num_features + 16)
        self._keys: Int64s = np.empty(0, np.int64)
        self._rows_PF: Float32s = np.empty((0, num_features), np.float32)

    def __len__(self) -> int:
        return len(self._keys)

    @property
    def num_bytes(self) -> int:
        """The memory that this takes."""
        return self._keys.nbytes + self._rows_PF.nbytes

    def find(self, keys_M: Int64s) -> Int64s:
        """Return the place of each row (-1: it is not here)."""
        if not len(self._keys):
            return np.full(len(keys_M), -1)
        places = np.minimum(np.searchsorted(self._keys, keys_M), len(self._keys) - 1)
        return np.where(self._keys[places] == keys_M, places, -1)

    def rows(self, places: Int64s) -> Float32s:
        """Return the rows at these places."""
        return self._rows_PF[places]

    def keep(self, keys: Int64s, rows: Float32s) -> None:
        """Keep rows that are not here yet, if they fit."""
        if len(self._keys) + len(keys) > self._most:
            self._keys, self._rows_PF = self._keys[:0].copy(), self._rows_PF[:0].copy()
        keys, rows = keys[: self._most], rows[: self._most]
        if not len(keys):
            return
        both = np.concatenate([self._keys, keys])
        order = np.argsort(both)
        self._keys, self._rows_PF = both[order], np.concatenate([self._rows_PF, rows])[order]
