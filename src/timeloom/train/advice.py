"""What to do where memory runs out."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from timeloom.errors import TooLarge
from timeloom.train.session import Session


@contextmanager
def memory_advised(session: Session) -> Iterator[None]:
    """Say what to do where memory runs out."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not isinstance(error, MemoryError) and not _is_out_of_memory(error):
            raise
        raise TooLarge(_memory_advice(session, error)) from None


def _is_out_of_memory(error: RuntimeError) -> bool:
    text = str(error).lower()
    return isinstance(error, torch.OutOfMemoryError) or "allocate memory" in text or "out of memory" in text


def _memory_advice(session: Session, error: BaseException) -> str:
    settings = session.settings
    found = str(error).splitlines()[0] if str(error) else "no more could be had"
    size, first = f"window.length={settings.window.length}", "lower window.length"
    if settings.system.unit == "trapezoid":
        flare = settings.flare
        size = f"flare.full={flare.full}, flare.decayed={flare.decayed}, flare.alpha={flare.alpha:g}"
        first = "lower flare.full, then flare.alpha,"
    return (
        f"out of memory ({found}) with {session.feed.graph.num_nodes:,} nodes, {size} and "
        f"model.hidden={settings.model.hidden}: {first} first (memory grows with it), then model.hidden, and set "
        "train.cache_bytes=0"
    )
