"""What is summed up of input rows and depends on no parameter: kept from epoch to epoch (SPEC D2.6).

Input rows and edges of a snapshot never change while a run lasts, so their sums are computed in the first epoch only.
They are kept in memory as far as it may be used, then in a file that is mapped into memory.

Shape letters: N nodes (or rows of a table), F features.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from timeloom.train.holding import HOLDS_ALL, Holding
from timeloom.train.kept import Room


class Aggregates:
    """Sums over neighbours by what they are sums of."""

    def __init__(
        self, *, room: Room, disk_bytes: int, keeps: bool, comes_first: bool, holding: Holding = HOLDS_ALL
    ) -> None:
        """``room`` holds the bytes of memory that are left, shared with other caches.

        With ``comes_first`` layers sum the input rows before they multiply them, whatever the sizes: so they do in all
        epochs alike, also those after an interruption. Where nodes lie on several ranks, all of them keep a sum or none
        does: making it takes all of them.
        """
        self.keeps, self.comes_first = keeps, comes_first and keeps
        self._room, self._disk_left, self._holding = room, disk_bytes, holding
        self._made: dict[Any, Tensor] = {}
        self._refused: set[Any] = set()
        self.memory_bytes = self.disk_bytes = 0
        self.found = self.computed = 0

    def nothing_kept(self) -> Aggregates:
        """Return what does as this does, and keeps nothing."""
        return Aggregates(room=Room(-1), disk_bytes=-1, keeps=self.keeps, comes_first=self.comes_first)

    def get(self, key: Any, make: Callable[[], Tensor]) -> Tensor:
        """Return what was kept, or make it and keep it where there is room."""
        if (kept := self._made.get(key)) is not None:
            self.found += 1
            return kept
        with torch.no_grad():
            made = make()
        self.computed += 1
        if key not in self._refused:
            self._keep(key, made)
        return made

    def has(self, key: Any) -> bool:
        """Say whether sums are kept under this key; it is the same on all ranks."""
        return key in self._made

    def _keep(self, key: Any, made: Tensor) -> None:
        """Collective where nodes lie on several ranks. Keep it where there is room on every rank."""
        num_bytes = made.numel() * made.element_size()
        in_memory = self._room.take(num_bytes)
        on_disk = not in_memory and 0 < num_bytes <= self._disk_left and made.device.type == "cpu"
        if not self._holding.holds_all:
            lacking = np.array([not (in_memory or on_disk)], np.float64)
            if self._holding.total(lacking, "kept")[0]:
                self._refused.add(key)
                self._room.give_back(num_bytes * in_memory)
                return
        if in_memory:
            self.memory_bytes += num_bytes
            self._made[key] = made
        elif on_disk:
            self._disk_left -= num_bytes
            self.disk_bytes += num_bytes
            self._made[key] = self._on_disk(made)

    def _on_disk(self, rows_NF: Tensor) -> Tensor:
        """Return the rows as a mapped file that nobody else can open and that ends with the process."""
        with tempfile.TemporaryFile() as file:
            rows_NF.contiguous().numpy().tofile(file)
            file.flush()
            mapped = np.memmap(file, rows_NF.numpy().dtype, mode="r+", shape=tuple(rows_NF.shape))
        return torch.from_numpy(mapped)
