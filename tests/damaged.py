"""Ways in which the bytes of a file get damaged."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from timeloom.records.seal import FIRST, open_line, seal_line


def damaged(data: bytes, rng: np.random.Generator) -> bytes:
    """Return the data with one byte altered, or cut short, or with a few bytes more."""
    place = int(rng.integers(len(data)))
    way = int(rng.integers(4))
    if way == 0:
        return data[:place]
    if way == 1:
        return data + bytes(rng.integers(0, 256, 1 + place % 9, dtype=np.uint8))
    changed = bytearray(data)
    changed[place] ^= 1 << int(rng.integers(8)) if way == 2 else int(rng.integers(1, 256))
    return bytes(changed)


def reseal_records(run: Path, change: Callable[[list[bytes]], list[bytes]]) -> None:
    """Change the lines of a run's records and make all checksums right again: only their meaning can be wrong."""
    seal, bodies = FIRST, list[bytes]()
    for line in (run / "records.jsonl").read_bytes().splitlines(keepends=True):
        body, seal = open_line(line, seal)
        bodies.append(body)
    write_records(run / "records.jsonl", change(bodies))


def write_records(path: Path, bodies: list[bytes]) -> None:
    """Write JSON objects as the records of a run, with checksums."""
    seal, lines = FIRST, list[bytes]()
    for body in bodies:
        line, seal = seal_line(body, seal)
        lines.append(line)
    path.write_bytes(b"".join(lines))
