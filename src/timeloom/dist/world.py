"""How processes become one world: all that is used of torch.distributed, and nothing else.

Of the traps that STACK 2 lists, this file closes those that lie in torch: groups are made in one order, everything is
begun asynchronously and waited for with a limit, a world has a prefix of its own in the store, so that a restart reads
nothing stale, and a store of our own listens where it is told to and nowhere else. There is no authentication:
between machines, use a trusted network.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import NoReturn

import torch
import torch.distributed as td
from torch import Tensor

from timeloom.dist.collectives import GROUPS, Limits, World
from timeloom.dist.seat import Seat, refuse_exposure, way_to
from timeloom.dist.transport import Alone, Broken, Reduction, Sighting, Transport, Wait
from timeloom.errors import LostRank
from timeloom.parent import end_with

logger = logging.getLogger(__name__)
Store = td.TCPStore
BEAT_S = 0.25
_SILENT_BEATS = 5
_STORE_LIMIT_S = 10.0
_CHALLENGE = "timeloom/challenge"
_REDUCE = {"sum": td.ReduceOp.SUM, "max": td.ReduceOp.MAX}


def alone(device: torch.device) -> World:
    """Return the world of one process, which takes no part in torch.distributed."""
    return World(Alone(), device=device, limits=Limits(), check=False, local_size=1)


def join(seat: Seat, *, device: torch.device, limits: Limits, check: bool, trusted: bool = False) -> World:
    """Collective. Take a seat among the ranks of a launcher, and return the world they form.

    ``trusted``: an address of the internet is not refused.
    """
    if seat.parent:
        end_with(seat.parent)
    way = way_to(seat)
    if warning := refuse_exposure(way, trusted=trusted):
        logger.warning("%s", warning)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", way.interface)
    try:
        store = _open_store(seat, way.address, limits.first_s)
        prefix = _agree_on_prefix(store, seat, limits.first_s)
        transport = _Process(store, seat, device, prefix=prefix, limits=limits, check=check)
    except (OSError, RuntimeError) as error:
        where = f"{seat.host}:{seat.port}"
        raise LostRank(
            f"rank {seat.rank} could not meet the others at {where} within {limits.first_s:g} s: {error}"
        ) from error
    world = World(transport, device=device, limits=limits, check=check, local_size=seat.local_size)
    world.barrier("control/start")
    return world


def end_process(code: int) -> NoReturn:
    """End this process at once: torch's threads may not be waited for at exit (10 of 80 such processes hung)."""
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens on one address only; torch's own would listen on all."""
    family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
    listener = socket.socket(family)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind((host, port))
    listener.listen(1024)
    return listener


def host_store(listener: socket.socket) -> Store:
    """Return a store that is served to others on ``listener``, from a thread of this process, until it is dropped."""
    host, port = listener.getsockname()[:2]
    return Store(host, port, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach())


def forget_world(store: Store) -> None:
    """Forget the store's latest world, whose ranks have all ended: nobody is to be seen where it was then."""
    store.delete_key(_CHALLENGE)


def last_seen(store: Store, rank: int) -> Sighting:
    """Return where a rank of the store's latest world was last seen, by what it told."""
    if not store.check([_CHALLENGE]):
        return Sighting()
    return _read(td.PrefixStore(store.get(_CHALLENGE).decode(), store), rank)


def _open_store(seat: Seat, address: str, limit_s: float) -> Store:
    """Return the store of this launch, serving it on ``address`` where nobody else does."""
    if seat.rank == 0 and not seat.store_is_served:
        return host_store(listen(address, seat.port))
    return _connect(seat, limit_s)


def _connect(seat: Seat, limit_s: float) -> Store:
    limit = timedelta(seconds=limit_s)
    return Store(seat.host, seat.port, is_master=False, wait_for_workers=False, timeout=limit)


def _agree_on_prefix(store: Store, seat: Seat, limit_s: float) -> str:
    """Return a name that only the ranks of this very attempt know.

    The counters of a launcher are of no use: torchrun counts restarts on each machine by itself. So rank 0 writes a
    challenge, every rank answers it with a word of its own, and rank 0 names all these words. Whoever finds its own
    word among them talks to the rank 0 of this attempt; answers to an earlier one are never named.
    """
    word, until = secrets.token_hex(8), time.monotonic() + limit_s
    if seat.rank == 0:
        prefix = f"timeloom/{secrets.token_hex(8)}"
        store.set(_CHALLENGE, prefix)
        answers = [word, *(_await(store, f"{prefix}/answer/{rank}", until, rank) for rank in range(1, seat.size))]
        store.set(f"{prefix}/all", " ".join(answers))
        return prefix
    while True:
        prefix = _await(store, _CHALLENGE, until, 0)
        store.set(f"{prefix}/answer/{seat.rank}", word)
        while store.get(_CHALLENGE).decode() == prefix:
            named = store.get(f"{prefix}/all").decode().split() if store.check([f"{prefix}/all"]) else []
            if named[seat.rank : seat.rank + 1] == [word]:
                return prefix
            _pause(until, 0)


def _await(store: Store, key: str, until: float, rank: int) -> str:
    while not store.check([key]):
        _pause(until, rank)
    return store.get(key).decode()


def _pause(until: float, rank: int) -> None:
    if time.monotonic() > until:
        raise LostRank(f"rank {rank} has not joined in time; did it start, and with the same number of ranks?")
    time.sleep(0.01)


def _read(store: td.Store, rank: int) -> Sighting:
    key = f"seen/{rank}"
    return Sighting.from_text(store.get(key).decode()) if store.check([key]) else Sighting()


class _Pulse:
    """A thread that keeps telling where this rank is, so that others can tell a busy rank from a dead one."""

    def __init__(self, store: td.Store, rank: int) -> None:
        self.look: Callable[[], Sighting] = Sighting
        self._store, self._rank, self._beats = store, rank, 0
        self._lock, self._stop = threading.Lock(), threading.Event()
        self.tell()
        threading.Thread(target=self._beat, name="pulse", daemon=True).start()

    def stop(self) -> None:
        """Tell no more."""
        self._stop.set()

    def tell(self) -> None:
        """Tell once, now."""
        with self._lock:
            self._beats += 1
            self._store.set(f"seen/{self._rank}", self.look().to_text())
            self._store.set(f"beat/{self._rank}", str(self._beats))

    def _beat(self) -> None:
        while not self._stop.wait(BEAT_S):
            try:
                self.tell()
            except td.DistError:
                # The store has ended, with the launcher or with rank 0: whoever waits for them will say so.
                return


class _Process(Transport):
    def __init__(
        self, store: Store, seat: Seat, device: torch.device, *, prefix: str, limits: Limits, check: bool
    ) -> None:
        self.rank, self.size = seat.rank, seat.size
        self._store = td.PrefixStore(prefix, store)
        # A store that does not answer is not waited for as long as a rank: who reads it wants to report.
        store.set_timeout(timedelta(seconds=_STORE_LIMIT_S))
        self._silent_with_store = set() if seat.store_is_served else {0}
        # A connection of its own: a thread that waits for an answer holds its connection.
        self._pulse = _Pulse(td.PrefixStore(prefix, _connect(seat, _STORE_LIMIT_S)), seat.rank)
        limit = timedelta(seconds=max(limits.first_s, limits.step_s))
        meet = td.PrefixStore(f"{prefix}/gloo", _connect(seat, limit.total_seconds()))
        td.init_process_group("gloo", store=meet, rank=seat.rank, world_size=seat.size, timeout=limit)
        backend = "gloo" if device.type == "cpu" else "nccl"
        kinds = {name: "gloo" if name == "control" else backend for name in GROUPS}
        if check:
            kinds |= {f"check-{name}": "gloo" for name in GROUPS}
        self._groups = {name: td.new_group(backend=kind, timeout=limit) for name, kind in kinds.items()}
        self._limited = {name for name, kind in kinds.items() if kind == "gloo"}

    def all_reduce(self, group: str, x: Tensor, how: Reduction) -> Wait:
        """Begin to replace ``x`` by the sum or the maximum over all ranks."""
        return self._start(
            group, lambda on: [td.all_reduce(x, _REDUCE[how], group=on, async_op=True)] if x.numel() else []
        )

    def broadcast(self, group: str, x: Tensor, root: int) -> Wait:
        """Begin to replace ``x`` by that of ``root``."""
        return self._start(group, lambda on: [td.broadcast(x, root, group=on, async_op=True)] if x.numel() else [])

    def all_to_all(
        self, group: str, out: Tensor, x: Tensor, *, sent: tuple[int, ...], received: tuple[int, ...]
    ) -> Wait:
        """Begin to send ``sent[r]`` rows of ``x`` to rank r and to write ``received[r]`` rows from there to ``out``."""
        return self._start(
            group, lambda on: [td.all_to_all_single(out, x, list(received), list(sent), group=on, async_op=True)]
        )

    def exchange(self, group: str, *, sends: Mapping[int, Tensor], receives: Mapping[int, Tensor]) -> Wait:
        """Begin to send a tensor to some ranks and to fill one from others."""

        def begin(on: td.ProcessGroup) -> list[td.Work]:
            messages = [td.P2POp(td.isend, x, peer, group=on) for peer, x in sends.items() if x.numel()]
            messages += [td.P2POp(td.irecv, x, peer, group=on) for peer, x in receives.items() if x.numel()]
            return td.batch_isend_irecv(messages) if messages else []

        return self._start(group, begin)

    def _start(self, group: str, begin: Callable[[td.ProcessGroup], list[td.Work]]) -> Wait:
        try:
            works = begin(self._groups[group])
        except RuntimeError as error:
            raise Broken(str(error), late=False) from error

        def wait(limit_s: float) -> None:
            until = time.monotonic() + limit_s
            try:
                for work in works:
                    if group in self._limited:
                        work.wait(timedelta(seconds=max(until - time.monotonic(), 0.01)))
                    else:
                        # This orders the stream and does not stop the CPU. NCCL's own watchdog keeps the limit.
                        work.wait()
            except RuntimeError as error:
                raise Broken(str(error), late=time.monotonic() > until - 0.01) from error

        return wait

    def watch(self, look: Callable[[], Sighting]) -> None:
        """Have others see, from now and until `close`, where this rank is."""
        self._pulse.look = look

    def publish(self) -> None:
        """Have others see at once where this rank is."""
        with contextlib.suppress(td.DistError):
            self._pulse.tell()

    def sightings(self) -> list[Sighting]:
        """Return where each rank was last seen."""
        try:
            return [_read(self._store, rank) for rank in range(self.size)]
        except td.DistError:
            return [Sighting()] * self.size

    def silent(self) -> set[int]:
        """Return the ranks that do not tell where they are for more than a second."""
        try:
            before = self._beats()
            time.sleep(_SILENT_BEATS * BEAT_S)
            after = self._beats()
        except td.DistError:
            return self._silent_with_store
        return {rank for rank in range(self.size) if before[rank] == after[rank]}

    def _beats(self) -> list[bytes]:
        return [self._store.get(f"beat/{rank}") for rank in range(self.size)]

    def close(self) -> None:
        """Let go of the groups, so that this process may join again."""
        self._pulse.stop()
        td.destroy_process_group()
