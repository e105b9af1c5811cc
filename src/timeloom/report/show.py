"""How are numbers written for people."""

from __future__ import annotations

import math


def seconds_of(value: float) -> str:
    """Return a time in a unit that suits it; nothing for nan."""
    if math.isnan(value):
        return ""
    if value == 0:
        return "0 s"
    if value < 1e-3:
        return f"{value * 1e6:.3g} µs"
    if value < 1:
        return f"{value * 1e3:.3g} ms"
    if value < 120:
        return f"{value:.3g} s"
    return f"{value / 60:.3g} min" if value < 7_200 else f"{value / 3_600:.3g} h"


def size_of(value: float) -> str:
    """Return a number of bytes in a unit that suits it (powers of 1000); nothing for nan."""
    if math.isnan(value):
        return ""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value:.0f} B"


def share_of(value: float) -> str:
    """Return a share in percent; nothing for nan."""
    return "" if math.isnan(value) else f"{value * 100:.{0 if value >= 0.1 else 1}f} %"


def count_of(value: float) -> str:
    """Return a plain number, short; nothing for nan."""
    if math.isnan(value):
        return ""
    if math.isinf(value):
        return "∞"
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e4)):
        if value >= size:
            return f"{value / size:.3g} {unit}" if unit != "k" else f"{value / 1e3:.3g} k"
    return f"{value:.3g}" if value != int(value) else f"{value:,.0f}"
