"""Ranks as threads of one process: every promise of a world, in milliseconds, for tests.

A sum adds the ranks' tensors in the order 0, 1, 2, ..., so it is the same on all ranks and from run to run. As between
processes, a tensor that was sent is not read later than its receiver asks for it, and a sender waits for its receiver.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import TypeVar

import torch
from torch import Tensor

from timeloom.dist.collectives import Limits, World
from timeloom.dist.transport import Broken, Reduction, Sighting, Transport, Wait
from timeloom.errors import LostRank

T = TypeVar("T")
Key = tuple[str, int]


class _Board:
    """What the ranks have laid out for each other."""

    def __init__(self, size: int) -> None:
        self.changed = threading.Condition()
        self.laid: dict[Key, dict[int, Tensor]] = {}
        self.taken: dict[Key, int] = {}
        self.looks: dict[int, Callable[[], Sighting]] = {}
        self.ended: set[int] = set()
        self.size = size

    def lay(self, key: Key, rank: int, x: Tensor) -> None:
        """Lay out a copy of a tensor."""
        with self.changed:
            self.laid.setdefault(key, {})[rank] = x.detach().clone()
            self.changed.notify_all()

    def take(self, key: Key, *, of: set[int], readers: int, limit_s: float) -> dict[int, Tensor]:
        """Return what ``of`` laid out under ``key``, as soon as all have; the last of the readers clears it away."""
        with self.changed:
            self.await_none(lambda: of - self.laid.get(key, {}).keys(), limit_s)
            found = self.laid[key]
            self.taken[key] = self.taken.get(key, 0) + 1
            if self.taken[key] == readers:
                del self.laid[key], self.taken[key]
                self.changed.notify_all()
            return found

    def await_none(self, missing: Callable[[], set[int]], limit_s: float) -> None:
        """Return when no rank is missing any more; raise when it is too late, or when one of them has ended."""
        in_time = self.changed.wait_for(lambda: not missing() or bool(self.ended & missing()), limit_s)
        if not in_time:
            raise Broken(f"ranks {sorted(missing())} have not come after {limit_s:g} s", late=True)
        if missing():
            raise Broken(f"ranks {sorted(self.ended & missing())} have ended", late=False)


class _Thread(Transport):
    def __init__(self, board: _Board, rank: int) -> None:
        self.rank, self.size = rank, board.size
        self._board = board
        self._sequence: dict[str, int] = {}

    def _lay(self, group: str, x: Tensor) -> Callable[[float], list[Tensor]]:
        """Lay out this rank's part of the next collective of a group; return how to wait for all parts."""
        key = (group, self._count(group))
        self._board.lay(key, self.rank, x)
        everyone = set(range(self.size))

        def take(limit_s: float) -> list[Tensor]:
            found = self._board.take(key, of=everyone, readers=self.size, limit_s=limit_s)
            return [found[rank] for rank in range(self.size)]

        return take

    def _count(self, group: str) -> int:
        self._sequence[group] = self._sequence.get(group, 0) + 1
        return self._sequence[group]

    def all_reduce(self, group: str, x: Tensor, how: Reduction) -> Wait:
        """Begin to replace ``x`` by the sum or the maximum over all ranks."""
        take = self._lay(group, x)

        def wait(limit_s: float) -> None:
            parts = take(limit_s)
            x.copy_(parts[0])
            for part in parts[1:]:
                torch.add(x, part, out=x) if how == "sum" else torch.maximum(x, part, out=x)

        return wait

    def broadcast(self, group: str, x: Tensor, root: int) -> Wait:
        """Begin to replace ``x`` by that of ``root``."""
        take = self._lay(group, x)
        return lambda limit_s: _write(x, take(limit_s)[root])

    def all_to_all(
        self, group: str, out: Tensor, x: Tensor, *, sent: tuple[int, ...], received: tuple[int, ...]
    ) -> Wait:
        """Begin to send ``sent[r]`` rows of ``x`` to rank r and to write ``received[r]`` rows from there to ``out``."""
        splits = self._lay(group, torch.tensor(sent))
        take = self._lay(group, x)

        def wait(limit_s: float) -> None:
            cuts = [part.tolist() for part in splits(limit_s)]
            parts = [torch.split(part, cut)[self.rank] for part, cut in zip(take(limit_s), cuts, strict=True)]
            assert [len(part) for part in parts] == list(received), "ranks do not expect what they are sent"
            out.copy_(torch.cat(parts))

        return wait

    def exchange(self, group: str, *, sends: Mapping[int, Tensor], receives: Mapping[int, Tensor]) -> Wait:
        """Begin to send a tensor to some ranks and to fill one from others."""
        out = {peer: self._pair(group, self.rank, peer) for peer in sends}
        into = {peer: self._pair(group, peer, self.rank) for peer in receives}
        for peer, x in sends.items():
            self._board.lay(out[peer], self.rank, x)

        def wait(limit_s: float) -> None:
            for peer, x in receives.items():
                _write(x, self._board.take(into[peer], of={peer}, readers=1, limit_s=limit_s)[peer])
            with self._board.changed:
                self._board.await_none(lambda: {peer for peer in sends if out[peer] in self._board.laid}, limit_s)

        return wait

    def _pair(self, group: str, source: int, target: int) -> Key:
        lane = f"{group}:{source}>{target}"
        return lane, self._count(lane)

    def watch(self, look: Callable[[], Sighting]) -> None:
        """Have others see, from now on, where this rank is."""
        self._board.looks[self.rank] = look

    def publish(self) -> None:
        """Others look for themselves."""

    def sightings(self) -> list[Sighting]:
        """Return where each rank is."""
        looks = self._board.looks
        return [looks[rank]() if rank in looks else Sighting() for rank in range(self.size)]

    def silent(self) -> set[int]:
        """Return the ranks that have ended."""
        return set(self._board.ended)

    def close(self) -> None:
        """The thread's end is seen by `run`."""


def _write(x: Tensor, found: Tensor) -> None:
    assert x.shape == found.shape, f"{tuple(found.shape)} was sent where {tuple(x.shape)} was expected"
    x.copy_(found)


def run(size: int, work: Callable[[World], T], *, limits: Limits | None = None, check: bool = False) -> list[T]:
    """Return what ``work`` returned on each of ``size`` ranks; raise the error of the rank that failed first."""
    board = _Board(size)
    results: dict[int, T] = {}
    errors: list[BaseException] = []

    def rank_main(rank: int) -> None:
        world = World(
            _Thread(board, rank), device=torch.device("cpu"), limits=limits or Limits(first_s=20.0), check=check,
            local_size=size,
        )  # fmt: skip
        try:
            results[rank] = work(world)
        except BaseException as error:
            world.fail(error)
            errors.append(error)
        with board.changed:
            board.ended.add(rank)
            board.changed.notify_all()

    ranks = [threading.Thread(target=rank_main, args=(rank,), name=f"rank {rank}") for rank in range(size)]
    for thread in ranks:
        thread.start()
    for thread in ranks:
        thread.join()
    if errors:
        raise next((error for error in errors if not isinstance(error, LostRank)), errors[0])
    return [results[rank] for rank in range(size)]
