"""How much a compressed file may come to: a bomb of a few kilobytes must not fill memory, a disk or a night."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from timeloom.errors import BadConfig, TooLarge

VARIABLE = "TIMELOOM_UNPACKED"
"""The environment variable that allows more."""
_RATIO = 200
_ALWAYS_BYTES = 1 << 30
_SIZE = re.compile(r"([0-9]{1,15})\s*(k|m|g|t)?(i?b)?", re.IGNORECASE)
_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


def most_unpacked(packed_bytes: int) -> int:
    """Return what so many bytes on disk may come to: 1 GiB, or 200 times as much as they are if that is more.

    Tables of text shrink to a tenth, very regular ones to a hundredth; what shrinks more is no table.
    """
    asked = os.environ.get(VARIABLE)
    if asked is None:
        return max(_ALWAYS_BYTES, _RATIO * packed_bytes)
    found = _SIZE.fullmatch(asked.strip())
    if not found:
        raise BadConfig(f"{VARIABLE}={asked} is no size: write a number and a unit, such as 100GiB")
    return int(found[1]) * _UNITS[(found[2] or "").lower()]


def refuse_bomb(where: str, unpacked_bytes: int, packed_bytes: int) -> None:
    """Refuse a file that comes to more than it may."""
    most = most_unpacked(packed_bytes)
    if unpacked_bytes > most:
        raise TooLarge(
            f"{where} has {packed_bytes:,} bytes and unpacks to {unpacked_bytes:,} or more, beyond the {most:,} that "
            f"are allowed: if it is no bomb, allow more with {VARIABLE}={(unpacked_bytes >> 30) + 1}GiB or larger"
        )


def refuse_wide(parquet: Any, path: Path) -> None:
    """Refuse a Parquet file whose own account says that it comes to more than it may: a run of equal values is tiny."""
    about = parquet.metadata
    told = sum(about.row_group(place).total_byte_size for place in range(about.num_row_groups))
    refuse_bomb(str(path), max(told, 8 * about.num_rows * about.num_columns), path.stat().st_size)
