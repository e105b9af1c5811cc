"""How ``--workers N`` starts N processes on this machine, watches them, and starts them again.

Workers are told by a command and by the environment who they are (`seat.py`), in torchrun's own words; the store where
they meet is served from here, on loopback. When one fails the others are ended, and all are started again where that
can help, and all but one where one does not come back. Nothing outlives this process: workers end with it, whatever it
dies of (`world.join`).
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import select
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import FrameType

from timeloom.dist.world import Store, forget_world, host_store, last_seen, listen
from timeloom.errors import BadConfig, Interrupted, LostRank

logger = logging.getLogger(__name__)
_HOST = "127.0.0.1"
_PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """What to start, how often, and what to do when it fails."""

    command: tuple[str, ...]
    workers: int
    max_restarts: int = 0
    min_workers: int = 0
    """Go on with fewer ranks where one does not come back, down to so many (0: with all of them or not at all)."""
    grace_s: float = 5.0
    """How long ranks may take to end by themselves once another has failed."""

    def __post_init__(self) -> None:
        if self.workers < 1 or self.max_restarts < 0:
            raise BadConfig(f"workers={self.workers}, max_restarts={self.max_restarts}: give 1 or more, and 0 or more")
        if not 0 <= self.min_workers <= self.workers:
            raise BadConfig(f"min_workers={self.min_workers} of workers={self.workers}: give 1 to {self.workers}")
        if self.min_workers and not self.max_restarts:
            raise BadConfig(
                f"min_workers={self.min_workers} says with how many ranks a run is started again, but max_restarts=0 "
                "starts none again: give --max-restarts, too"
            )


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a launch ended."""

    code: int
    """What this process should end with: 0, or the code of the rank that failed first."""
    told: str
    """Which rank failed, of what, and where it was last seen; nothing where none did."""
    attempts: int


@dataclass(frozen=True, slots=True)
class _End:
    rank: int
    code: int
    """As subprocess counts: minus the signal that ended it."""


class _Workers:
    """The processes of the current attempt. Signals are passed on to them, also to those that start later."""

    def __init__(self) -> None:
        self.running: dict[int, subprocess.Popen[bytes]] = {}
        self.signal = 0

    def start(self, rank: int, command: tuple[str, ...], environ: Mapping[str, str]) -> None:
        # A group of their own: a Ctrl-C reaches this process alone, and workers once, from here.
        self.running[rank] = subprocess.Popen(command, env=environ, stdin=subprocess.DEVNULL, process_group=0)
        if self.signal:
            self.running[rank].send_signal(self.signal)

    def pass_on(self, number: int, frame: FrameType | None) -> None:
        self.signal = number
        for worker in list(self.running.values()):
            worker.send_signal(number)

    def wait(self, limit_s: float | None) -> list[_End]:
        """Return the workers that have ended, at the latest after ``limit_s``."""
        # A worker to which a signal was passed on may have been found dead then, and is gone from the system.
        with contextlib.ExitStack() as open_now, contextlib.suppress(ProcessLookupError):
            ready = select.poll()
            for worker in self.running.values():
                handle = os.pidfd_open(worker.pid)
                open_now.callback(os.close, handle)
                ready.register(handle, select.POLLIN)
            ready.poll(None if limit_s is None else max(limit_s, 0.0) * 1000)
        ends = [_End(rank, code) for rank, worker in self.running.items() if (code := worker.poll()) is not None]
        for end in ends:
            del self.running[end.rank]
        return ends

    def kill(self) -> None:
        """End all that still run, also those that are stopped."""
        for worker in self.running.values():
            worker.kill()
        for worker in self.running.values():
            worker.wait()
        self.running.clear()


def supervise(launch: Launch) -> Outcome:
    """Run a command as ``launch.workers`` ranks to its end, from the main thread; return how it ended."""
    workers = _Workers()
    with _passing_on(workers), listen(_HOST, 0) as listener:
        port = listener.getsockname()[1]
        store = host_store(listener)
        size = launch.workers
        try:
            for attempt in itertools.count():
                forget_world(store)
                environ = _environ(size, port, attempt)
                for rank in range(size):
                    workers.start(rank, launch.command, {**environ, "RANK": str(rank), "LOCAL_RANK": str(rank)})
                ends, left = _watch(workers, launch.grace_s)
                failed = _first_failure(ends)
                if failed is None or workers.signal or not _may_help(failed) or attempt == launch.max_restarts:
                    break
                is_back = attempt == 0 or _has_met(store, failed.rank)
                if not is_back and size > launch.min_workers > 0:
                    size -= 1
                    logger.warning("%s; it does not come back: going on with %d", _tell(failed, left, store), size)
                else:
                    logger.warning("%s; starting all ranks again", _tell(failed, left, store))
            told = "" if failed is None else _tell(failed, left, store)
            return Outcome(_exit_code(ends, failed), told, attempt + 1)
        finally:
            workers.kill()


@contextlib.contextmanager
def _passing_on(workers: _Workers) -> Iterator[None]:
    before = {number: signal.signal(number, workers.pass_on) for number in _PASSED_ON}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _environ(size: int, port: int, attempt: int) -> dict[str, str]:
    threads = max(len(os.sched_getaffinity(0)) // size, 1)
    return {
        "OMP_NUM_THREADS": str(threads), **os.environ,
        "WORLD_SIZE": str(size), "LOCAL_WORLD_SIZE": str(size),
        "MASTER_ADDR": _HOST, "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo",
        "TIMELOOM_LAUNCHER": str(os.getpid()), "TORCHELASTIC_RESTART_COUNT": str(attempt),
    }  # fmt: skip


def _watch(workers: _Workers, grace_s: float) -> tuple[list[_End], list[int]]:
    """Wait until all workers have ended; return how, in order, and the ranks that had to be killed."""
    ends: list[_End] = []
    until: float | None = None
    while workers.running:
        ends += workers.wait(None if until is None else until - time.monotonic())
        if until is None and _first_failure(ends) is not None:
            until = time.monotonic() + grace_s
        elif until is not None and time.monotonic() >= until:
            break
    left = sorted(workers.running)
    workers.kill()
    return ends, left


def _first_failure(ends: list[_End]) -> _End | None:
    """Return the first end that was a failure of its own; those that only lost another rank come second."""
    failures = [end for end in ends if end.code not in (0, Interrupted.exit_code)]
    return next((end for end in failures if end.code != LostRank.exit_code), failures[0] if failures else None)


def _may_help(failed: _End) -> bool:
    """Whether starting again may help: not where the same input would fail in the same way."""
    return failed.code < 0 or failed.code in (1, LostRank.exit_code)


def _has_met(store: Store, rank: int) -> bool:
    """Whether a rank came as far as to meet the others; one that was started again and did not has not come back."""
    return bool(last_seen(store, rank).label)


def _exit_code(ends: list[_End], failed: _End | None) -> int:
    if failed is None:
        return max(end.code for end in ends)
    return failed.code if failed.code > 0 else 128 - failed.code


def _tell(failed: _End, left: list[int], store: Store) -> str:
    how = (
        f"ended with exit code {failed.code}"
        if failed.code > 0
        else f"was ended by {signal.Signals(-failed.code).name}"
    )
    told = f"rank {failed.rank} {how} (last seen at {last_seen(store, failed.rank).label or 'its start'})"
    if left:
        told += f"; {', '.join(f'rank {rank}' for rank in left)} did not end and had to be killed"
    return told
