"""What memory a run may take: checked before the first step, and said when there was too little all the same."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
import torch

from timeloom.errors import TooLarge
from timeloom.train.rehearse import predicted_bytes
from timeloom.train.session import Session
from timeloom.train.settings import RunSettings

_CGROUP = Path("/sys/fs/cgroup")


@dataclass(frozen=True, slots=True)
class Expected:
    """What is known of a run's memory before its first step."""

    step_bytes: int | None
    """What a step is going to hold at once (None: nobody can tell, or it is little)."""


def expect(session: Session) -> Expected:
    """Return what a step is going to hold; refuse a run that will not stay within ``train.memory_bytes``.

    What is kept between steps is cut to the room that is left, unless a size was asked for.
    """
    settings, most = session.settings, session.settings.train.memory_bytes
    whole = session.world.size == 1 or (most is not None and settings.system.divide == "windows")
    step = predicted_bytes(session, always=most is not None) if whole and settings.system.unit == "window" else None
    if most is None:
        return Expected(step)
    held, room = _held_bytes(), session.feed.room.left
    needed = held + (step or 0)
    if needed > most:
        lower = " and ".join(_two_settings(settings))
        raise TooLarge(
            f"train.memory_bytes={most:,} is too little: {held:,} bytes are held before the first step, and a step is "
            f"predicted to hold {step or 0:,} more: lower {lower}, or allow {needed:,} bytes with --memory"
        )
    if settings.train.cache_bytes is None:
        session.feed.room.take(max(0, min(room, needed + room - most)))
    elif needed + room > most:
        raise TooLarge(
            f"train.memory_bytes={most:,} is too little: {needed:,} bytes are needed, and train.cache_bytes="
            f"{settings.train.cache_bytes:,} more are to be kept: lower train.cache_bytes, or allow "
            f"{needed + room:,} bytes with --memory"
        )
    return Expected(step)


def _held_bytes() -> int:
    return int(psutil.Process().memory_info().rss)


def available_bytes() -> int:
    """Return how much more this process can have: of the machine, of its container, of its own limit."""
    found = [int(psutil.virtual_memory().available)]
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit != resource.RLIM_INFINITY:
        found.append(limit - int(psutil.Process().memory_info().vms))
    try:
        most, taken = ((_CGROUP / name).read_text().strip() for name in ("memory.max", "memory.current"))
        found += [int(most) - int(taken)] if most != "max" else []
    except (OSError, ValueError):
        pass
    return max(0, min(found))


def _two_settings(settings: RunSettings) -> tuple[str, str]:
    """Return the two settings that memory grows with first, with their values."""
    hidden = f"model.hidden (now {settings.model.hidden})"
    if settings.system.unit == "trapezoid":
        return f"flare.decayed (now {settings.flare.decayed})", hidden
    if settings.system.divide == "batches":
        return "hybrid.snapshot_shares", hidden
    if settings.system.divide == "targets":
        return f"distdy.fanouts (now {list(settings.distdy.fanouts)})", hidden
    return f"window.length (now {settings.window.length})", hidden


@contextmanager
def told_of_memory(settings: RunSettings, expected: Expected | None = None) -> Iterator[None]:
    """Say, where memory runs out, what was predicted, what was available and which two settings to lower."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not isinstance(error, MemoryError) and not _is_out_of_memory(error):
            raise
        left = available_bytes()
        step = None if expected is None else expected.step_bytes
        predicted = "nothing was predicted" if step is None else f"a step was predicted to hold {step:,} bytes"
        found = str(error).splitlines()[0] if str(error) else "no more could be had"
        raise TooLarge(
            f"out of memory ({found}): {predicted}, and {left:,} bytes were available when it failed: lower "
            f"{' and '.join(_two_settings(settings))}, and set train.cache_bytes=0"
        ) from None


def _is_out_of_memory(error: RuntimeError) -> bool:
    text = str(error).lower()
    said = ("allocate memory", "out of memory", "can't start new thread")
    return isinstance(error, torch.OutOfMemoryError) or any(one in text for one in said)
