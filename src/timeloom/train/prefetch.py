"""What the next step needs is read, laid out and copied on a thread, while this one is computed.

Reading, sorting edges and copying release the interpreter; what is at hand already costs nothing. On a GPU the thread
has a stream of its own, so that copies overlap with kernels; a step's stream waits for it. With `system.pipeline=true`
sums and cells have a stream each, too: the three streams of REAL. (No GPU was at hand to try it.)
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import torch

from timeloom.plan.types import Unit
from timeloom.train.feed import Feed


class Prefetch:
    """The thread that reads ahead."""

    def __init__(self, feed: Feed, ahead: int) -> None:
        """``ahead`` is how many snapshots after one its label lies."""
        self._feed, self._ahead = feed, ahead
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="prefetch")
        self._copies: torch.Stream | None = torch.Stream(feed.device) if feed.device.type == "cuda" else None
        self._asked: list[Future[None]] = []

    def ask(self, units: Iterable[Unit]) -> None:
        """Begin to make ready what some windows need, as far as it can be kept until then."""
        feed = self._feed
        times = dict.fromkeys(t for unit in units for t in range(unit.first, unit.last) if not feed.has(t))
        later = (t + self._ahead for unit in units for t in unit.targets)
        targets = dict.fromkeys(t for t in later if not feed.has(t))
        if self._copies is not None:
            # What is let go of to make room may still be read by steps that were begun before.
            self._copies.wait_stream(torch.accelerator.current_stream())
        self._asked = [
            *(self._pool.submit(self._make, t) for t in [*times][: self._feed.reads_ahead]),
            *(self._pool.submit(self._label, t) for t in [*targets][: self._feed.reads_ahead]),
        ]

    def ready(self) -> None:
        """Wait for what was asked for last; what could not be read is told now."""
        asked, self._asked = self._asked, []
        _results(asked)
        if asked and self._copies is not None:
            torch.accelerator.current_stream().wait_stream(self._copies)

    def close(self) -> None:
        """Ask for nothing more."""
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _make(self, t: int) -> None:
        with contextlib.nullcontext() if self._copies is None else self._copies:
            self._feed.view(t)
            self._feed.rows(t)

    def _label(self, t: int) -> None:
        if t < len(self._feed.graph):
            self._feed.facts(t)


def _results(futures: Sequence[Future[None]]) -> None:
    for future in futures:
        future.result()
