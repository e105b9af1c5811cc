"""Tiny cases worked out by hand, on each rank: equality with one process checks the dealing, not the meaning.

Two nodes with the features 1 and 2 and a model ``h_t = a h_{t-1} + w x`` with ``a = 3`` and ``w = 2``. The loss of a
window is the sum of h after its last snapshot. Over two snapshots h goes 0, (2, 4), (8, 16): the loss is 24. Its
gradients are ``dw = (a + 1) (1 + 2) = 12``, of which 9 come from the first snapshot and 3 from the second, and
``da = 2 + 4 = 6``, all of it from the second, which meets the state (2, 4).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.graph.tiny import Edge, TinyFeatures, TinyGraph, snapshot_of
from tests.train.test_systems import settings_of
from timeloom.dist import threads
from timeloom.dist.collectives import World
from timeloom.nn.heads import Head
from timeloom.plan.types import Unit
from timeloom.train.goals.goal import Draw, Loss, Seen
from timeloom.train.goals.values import ValueGoal
from timeloom.train.session import Session, open_session
from timeloom.train.worker import Learnt
from timeloom.train.workers import make_worker

MODEL = """
import torch
from timeloom import Model
from timeloom.nn.model import PerNode


class Line(Model):
    def __init__(self, num_in, settings):
        super().__init__()
        self.out_size = 1
        self.a = torch.nn.Parameter(torch.tensor(3.0))
        self.w = torch.nn.Parameter(torch.tensor(2.0))

    def memory(self):
        return (PerNode("h", (1,)),)

    def encode(self, view, x_NF):
        return (x_NF * self.w,)

    def recur(self, view, rows, state):
        h = self.a * state[0] + rows[0]
        return h, (h,)
"""
DRAW = Draw(seed=0, epoch=0)


class SumGoal(ValueGoal):
    """The sum of all rows."""

    def reads(self, t: int) -> None:
        return None

    def loss(self, head: Head, seen: Seen, draw: Draw) -> Loss | None:
        return Loss(seen.out_NH.sum(), 1)


def window(first: int) -> Unit:
    return Unit(first=first, last=first + 2, targets=(first + 1,), fresh=True)


@pytest.fixture
def settle(tmp_path: Path) -> Callable[..., Session]:
    (tmp_path / "line.py").write_text(MODEL)

    def settled(world: World | None, system: str, *tables: dict[str, Any]) -> Session:
        graph = TinyGraph([snapshot_of(t, 2, [Edge(0, 1, 0, 1.0)], alive=set()) for t in range(6)])
        rows = np.array([[[1.0], [2.0]]] * 6, np.float32)
        graph.features = TinyFeatures(rows, graph, fixed=True, degrees=None)
        settings = settings_of(
            tmp_path, system, {"model": {"name": f"{tmp_path / 'line.py'}:Line"}, "window": {"length": 2},
                               "inputs": {"features": "graph", "scale": "none"}}, *tables,
        )  # fmt: skip
        session = open_session(settings, graph, world=world)
        return replace(session, goal=SumGoal(session.feed, settings.task))

    return settled


def learnt_by(session: Session, *units: Unit) -> tuple[Learnt, float | None, float | None]:
    """Return what a rank learnt, and its gradients of w and a."""
    session.predictor.train()
    learnt = make_worker(session).learn(units, DRAW, None)
    grads = {name: parameter.grad for name, parameter in session.model.named_parameters()}
    w, a = (None if grad is None else float(grad) for grad in (grads["w"], grads["a"]))
    return learnt, w, a


@pytest.mark.parametrize("recompute", [False, True])
def test_a_relay_by_hand(settle: Callable[..., Session], recompute: bool) -> None:
    """The first rank hears of the loss through the state alone: its gradient is a = 3 times x."""

    def rank(world: World) -> tuple[Any, ...]:
        session = settle(world, "esdg", {"system": {"recompute": recompute}})
        learnt, w, a = learnt_by(session, window(0))
        sizes = dict(world.log[-6:])
        return learnt.loss, learnt.weight, w, a, sizes["state/relay"], sizes["state/relay/back"]

    first, second = threads.run(2, rank, check=True)
    # The state of two nodes travels, and no last rows: nobody is absent.
    assert first == (0.0, 1, 9.0, 0.0, (2,), (2,))
    assert second == (24.0, 0, 3.0, 6.0, (2,), (2,))


def test_an_alltoall_by_hand(settle: Callable[..., Session]) -> None:
    """Each rank has a snapshot and a node: w is met where the snapshot is, a where the node is (states 2 and 4)."""

    def rank(world: World) -> tuple[Any, ...]:
        learnt, w, a = learnt_by(settle(world, "esdg", {"system": {"time": "alltoall"}}), window(0))
        return learnt.loss, learnt.weight, w, a

    assert threads.run(2, rank, check=True) == [(0.0, 1, 9.0, 2.0), (24.0, 0, 3.0, 4.0)]


def test_a_pipeline_by_hand(settle: Callable[..., Session]) -> None:
    """Two windows on one rank: twice the loss and the gradients of one."""
    learnt, w, a = learnt_by(settle(None, "blad"), window(0), window(1))
    assert (learnt.loss, learnt.weight, w, a) == (48.0, 2, 24.0, 12.0)


def test_a_step_on_one_rank_by_hand(settle: Callable[..., Session]) -> None:
    learnt, w, a = learnt_by(settle(None, "psg"), window(0))
    assert (learnt.loss, learnt.weight, w, a) == (24.0, 1, 12.0, 6.0)
