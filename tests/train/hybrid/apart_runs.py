"""Runs of ranks that train apart, in threads, by clocks that tests wind; and the same rows made of whole snapshots."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tests.train.divided_runs import EXACT, parameters_of
from timeloom.config import build, merge
from timeloom.dist import threads
from timeloom.dist.collectives import World
from timeloom.graph.tasks import GraphLike
from timeloom.plan.batch.hybrid import HybridBatch
from timeloom.plan.types import Unit
from timeloom.records import Averaged, Record
from timeloom.systems import preset_of
from timeloom.train.goals.goal import Draw, Seen
from timeloom.train.hybrid.loop import train_apart
from timeloom.train.session import Session, open_session
from timeloom.train.settings import RunSettings
from timeloom.train.trainer import Trainer
from timeloom.train.walk import first_carry

ALL = Draw(seed=0, epoch=0)


def settings_of(*tables: dict[str, Any], system: str = "dynahb") -> RunSettings:
    few = {"hybrid": {"snapshot_shares": [0.4, 0.7], "start_snapshots": 0.4, "node_shares": [0.3, 0.6],
                      "start_nodes": 0.3, "builders": 0, "groups": 3}}  # fmt: skip
    return build(RunSettings, merge(preset_of(system).settings, few if system == "dynahb" else {}, EXACT, *tables))


@dataclass
class Clock:
    """Every look at it takes so long."""

    tick_s: float
    now_s: float = 0.0

    def __call__(self) -> float:
        self.now_s += self.tick_s
        return self.now_s


@dataclass(frozen=True)
class Told:
    """What came of a run on one rank."""

    records: list[Record]
    parameters: dict[str, Tensor]
    log: list[str]

    @property
    def rounds(self) -> list[Averaged]:
        return [record for record in self.records if isinstance(record, Averaged)]


def train_as_one(settings: RunSettings, graph: GraphLike, world: World | None, clock: Clock) -> Told:
    """Train to the end as one rank."""
    session = open_session(settings, graph, world=world)
    records = list(train_apart(Trainer(session, None), clock))
    return Told(records, parameters_of(session), [] if world is None else [name for name, _ in world.log])


def train_as(settings: RunSettings, graph: GraphLike, ticks_s: Sequence[float]) -> list[Told]:
    """Train to the end as ranks whose clocks tick so fast."""
    return threads.run(
        len(ticks_s), lambda world: train_as_one(settings, graph, world, Clock(ticks_s[world.rank])), check=True
    )  # fmt: skip


def whole_seen(session: Session, batch: HybridBatch, nodes: np.ndarray[Any, Any]) -> list[Seen]:
    """Return what a batch's targets come to where whole snapshots are gone over."""
    first, last = batch.cutout.first, batch.cutout.last
    unit = Unit(first=first, last=last, targets=tuple(range(first, last)), fresh=True)
    seen, _ = session.walker.walk(unit, first_carry(session.model, session.feed))
    rows = torch.from_numpy(nodes)
    return [Seen(one.t, one.out_NH[rows], one.born_N[rows], nodes) for one in seen]


def loss_of(session: Session, seen: Sequence[Seen]) -> tuple[Tensor, float]:
    """Return the sum of the losses, and the number of targets."""
    losses = [loss for one in seen if (loss := session.goal.loss(session.head, one, ALL)) is not None]
    total = torch.stack([loss.total for loss in losses]).sum() if losses else torch.zeros(())
    return total, float(sum(loss.count for loss in losses))
