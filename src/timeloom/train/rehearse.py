"""What memory a step takes, before the first one is taken: it is rehearsed on small graphs that resemble the run's.

The same code goes forward and back over made-up graphs of a few thousand nodes while the bytes that malloc has lent
are watched. What a step holds grows in proportion to nodes and to edges, so that three sizes tell what it comes to.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from timeloom.graph.tasks import SplitSettings
from timeloom.plan.batch.windows import WindowSettings, training_windows
from timeloom.plan.schedule.choose import ScheduleSettings
from timeloom.plan.types import Unit
from timeloom.train.goals.goal import Draw
from timeloom.train.made_up import Likeness, MadeUpGraph, likeness_of
from timeloom.train.session import Session, open_session
from timeloom.train.whole import WholeWorker

SMALL_NUMBERS = 1 << 25
"""Below so many numbers of outputs in a window a step takes little, and rehearsing takes longer than a step."""
_NODES = 4096  # two blocks, so that each of two threads has one
_DRAW = Draw(seed=0, epoch=0)


class _Mallinfo(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost",
        )
    ]  # fmt: skip


def lent_bytes() -> Callable[[], int] | None:
    """Return what counts the bytes that malloc has lent (None where it is not glibc's)."""
    try:
        told = ctypes.CDLL(None).mallinfo2
    except (AttributeError, OSError, TypeError):
        return None
    told.restype = _Mallinfo

    def lent() -> int:
        info = told()
        return int(info.uordblks + info.hblkhd)

    return lent


class _Watching(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes the most that was lent after any operation of torch."""

    def __init__(self, lent: Callable[[], int]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._lent, self.most = lent, 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        self.most = max(self.most, self._lent())
        return out


def measured_bytes(session: Session, units: tuple[Unit, ...], lent: Callable[[], int]) -> int:
    """Return the most that a step over some windows holds at once, beyond what is kept between steps."""
    worker, parameters, held = WholeWorker(session), list(session.predictor.parameters()), 0
    for _ in range(2):  # the first time caches are filled
        for parameter in parameters:
            parameter.grad = None
        before = lent() - session.walker.free_bytes
        with _Watching(lent) as watching:
            worker.learn(units, _DRAW, None)
        held = watching.most - before
    for parameter in parameters:
        parameter.grad = None
    return held


def predicted_bytes(session: Session, *, always: bool = False) -> int | None:
    """Return what a step of the run is going to hold at once; None where nobody can tell, or (but for ``always``) where
    it is little.
    """
    graph, lent = session.graph, lent_bytes()
    if session.settings.system.unit == "trapezoid":
        # What is left of decayed snapshots depends on how well nodes of this graph fall into chunks.
        return None
    numbers = graph.num_nodes * _window_of(session).length * session.model.out_size
    if session.device.type != "cpu" or lent is None or (numbers < SMALL_NUMBERS and not always):
        return None
    told = likeness_of(graph, session.split.train_stop - 1)
    sizes = [(_NODES, told), (2 * _NODES, told), (_NODES, replace(told, edges=2.0 * told.edges + 4.0))]
    each = [_rehearsed(session, nodes, like, lent) for nodes, like in sizes]
    return round(_extrapolated(each, graph.num_nodes, told.edges * graph.num_nodes))


def _window_of(session: Session) -> WindowSettings:
    """Return the windows of a run, no longer than the snapshots that there are."""
    window, most = session.settings.window, session.split.train_stop
    schedule = session.settings.schedule
    groups = window.groups if schedule.scheduler == "in_order" else schedule.limit
    return replace(window, length=min(window.length, most), stride=min(window.stride, most), groups=groups)


def _rehearsed(session: Session, num_nodes: int, told: Likeness, lent: Callable[[], int]) -> tuple[int, float, int]:
    """Return nodes, edges of a snapshot, and the bytes that a step held."""
    settings, window, encoder = session.settings, _window_of(session), session.walker.encoder
    needed = window.length + (window.groups - 1) * window.step
    first = training_windows(window, session.split.train_stop)[: window.groups]
    times = tuple(range(first[0].first, first[-1].last))
    small = replace(
        settings, split=SplitSettings(), window=window,
        train=replace(
            settings.train, protocol="fixed", device="cpu", threads=torch.get_num_threads(), cache_bytes=1 << 32
        ),
        schedule=ScheduleSettings(),
        reuse=replace(settings.reuse, mode=encoder.mode(times) if encoder.asked.by_node else "full"),
    )  # fmt: skip
    count = settings.task.ahead + max(3, math.ceil(needed / small.split.train) + 1)
    graph = MadeUpGraph(session.graph, told, num_nodes=num_nodes, num_snapshots=count)
    rehearsing = open_session(small, graph, decided=session.decided)
    units = tuple(training_windows(window, rehearsing.split.train_stop)[: window.groups])
    edges = sum(graph.num_edges(t) for t in range(window.length)) / window.length
    return num_nodes, edges, measured_bytes(rehearsing, units, lent)


def _extrapolated(each: Sequence[tuple[int, float, int]], num_nodes: int, num_edges: float) -> float:
    """Return the bytes of so many nodes and edges: a constant, so much a node and so much an edge."""
    terms = torch.tensor([[1.0, nodes, edges] for nodes, edges, _ in each], dtype=torch.float64)
    held = torch.tensor([float(most) for _, _, most in each], dtype=torch.float64)
    law = torch.linalg.solve(terms, held)
    return float(law @ torch.tensor([1.0, num_nodes, num_edges], dtype=torch.float64))
