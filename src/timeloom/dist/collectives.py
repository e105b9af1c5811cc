"""What ranks do together: every collective has a name, is checked, counted and limited in time.

A name is a group, or a group and a purpose: ``"grad"``, ``"halo/layer0"``. Collectives of one group must be begun in
the same order on all ranks, so a group belongs to the first thread that uses it. Nothing is ever pickled.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
import torch
from torch import Tensor

from timeloom.dist.fingerprint import Call, admit, compare, compare_pair
from timeloom.dist.lost import describe
from timeloom.dist.tally import Tallies, Tally
from timeloom.dist.transport import Broken, Reduction, Sighting, Transport, Wait
from timeloom.errors import LostRank

GROUPS = ("grad", "halo", "state", "average", "fetch", "control")
"""In the order in which they are made on all ranks. `control` is always on the CPU."""
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How long a rank waits for the others before it says who is missing."""

    first_s: float = 300.0
    """Until the second step begins: ranks load, compile and build at their own pace."""
    step_s: float = 100.0


class Pending(Generic[T]):
    """A collective that has begun; the tensors it was given belong to it until `finish`."""

    __slots__ = ("_finish", "_held", "_result")

    def __init__(self, finish: Callable[[], None], result: T, held: object) -> None:
        self._finish: Callable[[], None] | None = finish
        self._result = result
        # gloo reads from these after the call has returned.
        self._held = held

    def finish(self) -> T:
        """Collective. Wait for the end and return the result."""
        assert self._finish is not None, "a collective is finished once"
        finish, self._finish = self._finish, None
        finish()
        self._held = None
        return self._result


class World:
    """One rank's view of all ranks."""

    def __init__(
        self, transport: Transport, *, device: torch.device, limits: Limits, check: bool, local_size: int
    ) -> None:  # fmt: skip
        self.rank, self.size, self.device = transport.rank, transport.size, device
        self.local_size = local_size
        """How many ranks share this machine."""
        self.log: list[tuple[str, tuple[int, ...]]] = []
        """The name and shape of all that was begun here, in order; kept under ``check`` only."""
        self._transport, self._limits, self._check = transport, limits, check
        self._tallies = Tallies()
        self._owners: dict[str, int] = {}
        self._lock = threading.Lock()
        self._counts: dict[str, int] = {}
        self._at, self._failure, self._gave_up = "", "", False
        self._step, self._steps_begun = -1, 0
        transport.watch(self._look)

    @property
    def tallies(self) -> dict[str, Tally]:
        """What each name came to so far."""
        return self._tallies.read()

    def take_tallies(self) -> dict[str, Tally]:
        """Return what each name came to since this was called last."""
        return self._tallies.take()

    def begin_step(self, step: int) -> None:
        """Say which step is next; its number stands in every report from here on."""
        self._step = step
        self._steps_begun += 1

    def start_all_reduce(self, x: Tensor, name: str, how: Reduction = "sum") -> Pending[Tensor]:
        """Collective. Begin to replace ``x`` by its sum or maximum (where nothing is NaN) over all ranks."""
        self._admit(x, name)
        assert x.dtype != torch.bool, f"{name}: truth values have no sum; send uint8"
        call = self._next(name, f"all_reduce {how} {x.dtype} {tuple(x.shape)}")
        moved = 2 * (self.size - 1) * x.nbytes // self.size
        self._count(call, x, moved, moved)
        return self._begin(call, lambda: self._transport.all_reduce(call.group, x, how), x, x)

    def all_reduce(self, x: Tensor, name: str, how: Reduction = "sum") -> Tensor:
        """Collective. Replace ``x`` by its sum or maximum (where nothing is NaN) over all ranks, and return it."""
        return self.start_all_reduce(x, name, how).finish()

    def broadcast(self, x: Tensor, name: str, *, root: int = 0) -> Tensor:
        """Collective. Replace ``x`` by that of ``root``, and return it."""
        self._admit(x, name)
        assert 0 <= root < self.size, f"{name}: rank {root} of {self.size}"
        call = self._next(name, f"broadcast from {root} {x.dtype} {tuple(x.shape)}")
        is_root = root == self.rank
        self._count(call, x, x.nbytes * (self.size - 1) * is_root, x.nbytes * (not is_root))
        return self._begin(call, lambda: self._transport.broadcast(call.group, x, root), x, x).finish()

    def start_all_to_all(
        self, x: Tensor, name: str, *, sent: Sequence[int], received: Sequence[int]
    ) -> Pending[Tensor]:
        """Collective. Begin to send ``sent[r]`` rows of ``x`` to rank r, in order; the result is what came, by rank."""
        self._admit(x, name)
        sent, received = tuple(sent), tuple(received)
        assert len(sent) == len(received) == self.size, f"{name}: {sent} and {received} for {self.size} ranks"
        assert sum(sent) == len(x), f"{name}: {sent} of {len(x)} rows"
        assert sent[self.rank] == received[self.rank], f"{name}: rank {self.rank} keeps {sent}, {received}"
        call = self._next(name, f"all_to_all {x.dtype} rows of {tuple(x.shape[1:])}", sent=sent, received=received)
        row, own = x.element_size() * x.shape[1:].numel(), sent[self.rank]
        self._count(call, x, row * (sum(sent) - own), row * (sum(received) - own))
        out = x.new_empty(sum(received), *x.shape[1:])
        transport = self._transport
        return self._begin(
            call, lambda: transport.all_to_all(call.group, out, x, sent=sent, received=received), out, (x, out)
        )

    def all_to_all(self, x: Tensor, name: str, *, sent: Sequence[int], received: Sequence[int]) -> Tensor:
        """Collective. Send ``sent[r]`` rows of ``x`` to rank r, in order; return what every rank sent here, by rank."""
        return self.start_all_to_all(x, name, sent=sent, received=received).finish()

    def start_exchange(
        self, name: str, *, sends: Mapping[int, Tensor], receives: Mapping[int, Tensor]
    ) -> Pending[None]:
        """Begin to send a tensor to some ranks and to fill one from others; only these take part."""
        for peer, x in [*sends.items(), *receives.items()]:
            self._admit(x, name)
            assert 0 <= peer < self.size, f"{name}: rank {peer} of {self.size}"
            assert peer != self.rank, f"{name}: rank {peer} would send to itself"
        outgoing = {peer: self._message(name, f">{peer}", x) for peer, x in sends.items()}
        incoming = {peer: self._message(name, f"<{peer}", x) for peer, x in receives.items()}
        awaited = {peer: (f"{_group(name)}<{self.rank}", call.sequence) for peer, call in outgoing.items()}
        awaited |= {peer: (f"{_group(name)}>{self.rank}", call.sequence) for peer, call in incoming.items()}
        call = Call(
            group=_group(name), name=name, label=self._label(name), what="messages", sequence=0, messages=awaited
        )
        for x in [*sends.values(), *receives.values()]:
            self._note(name, x)
        self._tallies.add_call(name, sum(x.nbytes for x in sends.values()), sum(x.nbytes for x in receives.values()))

        def start() -> Wait:
            told = self._compare_messages(call.group, outgoing, incoming) if self._check else None
            wait = self._transport.exchange(call.group, sends=sends, receives=receives)
            return wait if told is None else _both(told, wait)

        return self._begin(call, start, None, (dict(sends), dict(receives)), compared=True)

    def gather_bytes(self, data: bytes, name: str) -> list[bytes]:
        """Collective. Return what every rank gave, on every rank; ``name`` is of the control group."""
        each = (1,) * self.size
        lengths = self.all_to_all(torch.full((self.size,), len(data)), f"{name}/length", sent=each, received=each)
        copies = _as_tensor(data * self.size)
        came = self.all_to_all(copies, name, sent=[len(data)] * self.size, received=lengths.tolist())
        return [part.numpy().tobytes() for part in torch.split(came, lengths.tolist())]

    def broadcast_bytes(self, data: bytes, name: str, *, root: int = 0) -> bytes:
        """Collective. Return what ``root`` gave; ``name`` is of the control group."""
        length = int(self.broadcast(torch.tensor([len(data)]), f"{name}/length", root=root))
        mine = _as_tensor(data if self.rank == root else bytes(length))
        return self.broadcast(mine, name, root=root).numpy().tobytes()

    def barrier(self, name: str) -> None:
        """Collective. Return when every rank is here."""
        self.all_reduce(torch.zeros(1, dtype=torch.uint8, device=self._device_of(name)), name, "max")

    def fail(self, error: BaseException) -> None:
        """Tell the other ranks why this one ends, so that they can say it."""
        if not isinstance(error, LostRank):
            self._failure = f"{type(error).__name__}: {error}"
        self._transport.publish()

    def close(self) -> None:
        """Collective. Leave when every rank has come to its end."""
        self.barrier("control/end")
        self._transport.close()

    def _device_of(self, name: str) -> torch.device:
        return torch.device("cpu") if _group(name) == "control" else self.device

    def _admit(self, x: Tensor, name: str) -> None:
        group = _group(name)
        assert group in GROUPS, f"{name}: no group {group!r}; there are {', '.join(GROUPS)}"
        admit(x, name, self._device_of(name))
        owner, here = self._owners.setdefault(group, threading.get_ident()), threading.get_ident()
        # The gradient of a tensor on a GPU is computed by a thread of torch's own, while ours waits for it.
        in_backward = self.device.type != "cpu" and torch._C._current_graph_task_id() != -1
        assert owner == here or in_backward, (
            f"{name}: a second thread uses the group {group}; ranks would not agree on the order"
        )

    def _label(self, name: str) -> str:
        return name if self._step < 0 else f"{name}/step {self._step}"

    def _look(self) -> Sighting:
        with self._lock:
            return Sighting(self._at, dict(self._counts), self._failure, self._gave_up)

    def _enter(self, label: str, counted: str) -> int:
        """Be seen at ``label``; return how often ``counted`` was counted, this time included."""
        with self._lock:
            self._at = label
            count = self._counts[counted] = self._counts.get(counted, 0) + 1
        return count

    def _next(self, name: str, what: str, *, sent: tuple[int, ...] = (), received: tuple[int, ...] = ()) -> Call:
        group, label = _group(name), self._label(name)
        sequence = self._enter(label, group)
        return Call(
            group=group, name=name, label=label, what=what, sequence=sequence, sent=sent, received=received
        )  # fmt: skip

    def _message(self, name: str, way: str, x: Tensor) -> Call:
        group, label = _group(name), self._label(name)
        sequence = self._enter(label, f"{group}{way}")
        what = f"message {x.dtype} {tuple(x.shape)}"
        return Call(group=group, name=name, label=label, what=what, sequence=sequence)

    def _note(self, name: str, x: Tensor) -> None:
        if self._check:
            self.log.append((name, tuple(x.shape)))

    def _count(self, call: Call, x: Tensor, sent_bytes: int, received_bytes: int) -> None:
        self._note(call.name, x)
        self._tallies.add_call(call.name, sent_bytes, received_bytes)

    def _begin(
        self, call: Call, start: Callable[[], Wait], result: T, held: object, *, compared: bool = False
    ) -> Pending[T]:
        def begin() -> Wait:
            if self._check and not compared:
                self._compare(call)
            return start()

        wait = self._guarded(call, begin)
        return Pending(lambda: self._guarded(call, lambda: wait(self._limit_s)), result, held)

    @property
    def _limit_s(self) -> float:
        return self._limits.step_s if self._steps_begun > 1 else self._limits.first_s

    def _guarded(self, call: Call, work: Callable[[], T]) -> T:
        """Do ``work``, count the time it takes, and say who is missing where it cannot be done."""
        limit_s, began = self._limit_s, time.perf_counter()
        try:
            return work()
        except Broken as broken:
            self._transport.publish()
            silent = self._transport.silent()
            told = describe(
                call, self._transport.sightings(), silent, limit_s=limit_s if broken.late else None
            )  # fmt: skip
            self._gave_up = True
            self._transport.publish()
            raise LostRank(told) from broken
        finally:
            self._tallies.add_wait(call.name, time.perf_counter() - began)

    def _compare(self, call: Call) -> None:
        each = (1,) * self.size
        prints = call.print_to(self.size).repeat(self.size, 1)
        found = torch.empty_like(prints)
        self._transport.all_to_all(f"check-{call.group}", found, prints, sent=each, received=each)(self._limit_s)
        compare(call, self.rank, list(found))

    def _compare_messages(self, group: str, outgoing: Mapping[int, Call], incoming: Mapping[int, Call]) -> Wait:
        """Send fingerprints ahead of messages, compare those that come, and return the wait for those that went."""
        prints = {peer: call.print_to(self.size) for peer, call in outgoing.items()}
        found = {peer: torch.empty_like(call.print_to(self.size)) for peer, call in incoming.items()}
        told = self._transport.exchange(f"check-{group}", sends=prints, receives={})
        self._transport.exchange(f"check-{group}", sends={}, receives=found)(self._limit_s)
        for peer, call in incoming.items():
            compare_pair(call, self.rank, peer, found[peer])
        return told


def _group(name: str) -> str:
    return name.partition("/")[0]


def _as_tensor(data: bytes) -> Tensor:
    return torch.from_numpy(np.frombuffer(bytearray(data), np.uint8))


def _both(first: Wait, second: Wait) -> Wait:
    def wait(limit_s: float) -> None:
        first(limit_s)
        second(limit_s)

    return wait
