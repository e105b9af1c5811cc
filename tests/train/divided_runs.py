"""Runs of one process and of ranks among which nodes are divided, and what is compared of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.graph.tiny import TinyGraph
from timeloom.config import build, merge
from timeloom.dist import threads
from timeloom.dist.collectives import World
from timeloom.graph.tasks import GraphLike
from timeloom.plan.partition.choose import PartitionSettings
from timeloom.plan.partition.owners import Owners
from timeloom.systems import preset_of
from timeloom.train import holding
from timeloom.train.evaluate import evaluate, evaluate_baselines
from timeloom.train.goals.goal import Draw
from timeloom.train.planning import plan_epoch
from timeloom.train.session import Session, open_session
from timeloom.train.settings import RunSettings
from timeloom.train.trainer import Trainer

STEPS = 10
EXACT: dict[str, Any] = {
    "graph": "in memory",
    "model": {"hidden": 4, "heads": 2, "span": 3},
    "window": {"length": 3},
    "inputs": {"features": "degree"},
    "task": {"residual": False},
    "split": {"train": 0.6, "val": 0.2},
    "train": {"precision": "float64", "threads": 1, "device": "cpu", "cache_bytes": 1 << 24},
}


@dataclass(frozen=True)
class Told:
    """What came of a run on one rank."""

    losses: list[float]
    norms: list[float]
    parameters: dict[str, Tensor]
    scores: dict[str, float]
    baselines: dict[str, dict[str, float]]
    log: list[tuple[str, tuple[int, ...]]]


def settings_of(*tables: dict[str, Any]) -> RunSettings:
    return build(RunSettings, merge(preset_of("vertex").settings, EXACT, *tables))


def take_steps(trainer: Trainer, steps: int) -> tuple[list[float], list[float]]:
    """Take the next steps of a run, from where it is; return their losses and the norms of their gradients."""
    session, progress = trainer.session, trainer.progress
    settings, losses, norms = session.settings, list[float](), list[float]()
    while len(losses) < steps:
        plan = plan_epoch(settings, session.split.train_stop, epoch=progress.epoch, ranks=session.world.size)
        step, place = next(plan), 0
        while len(losses) < steps:
            if place >= len(progress.losses):
                told = trainer.step(step, Draw(seed=settings.train.seed, epoch=progress.epoch))
                losses.append(told.loss)
                norms.append(told.grad_norm)
            if step.ends_epoch:
                progress.epoch, progress.losses, trainer.carry = progress.epoch + 1, [], None
                break
            step, place = plan.send(trainer.outcome(place)), place + 1
    return losses, norms


def parameters_of(session: Session) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in session.predictor.state_dict().items()}


def learn(settings: RunSettings, graph: GraphLike, world: World | None = None, *, steps: int = STEPS) -> Told:
    """Take some steps as one rank, then score the validation part."""
    session = open_session(settings, graph, world=world)
    trainer = Trainer(session, None)
    losses, norms = take_steps(trainer, steps)
    baselines = evaluate_baselines(session, "val")
    scores = evaluate(trainer.worker, "val")
    log = [] if world is None else list(world.log)
    return Told(losses, norms, parameters_of(session), scores, baselines, log)


def learn_divided(settings: RunSettings, graph: GraphLike, ranks: int, *, steps: int = STEPS) -> list[Told]:
    """Take the steps as so many ranks."""
    return threads.run(ranks, lambda world: learn(settings, graph, world, steps=steps), check=True)


def assert_same(found: Sequence[Told], wanted: Told) -> None:
    """Check that ranks learnt what one process did, and that they exchanged the same things in the same order."""
    for rank in found:
        np.testing.assert_allclose(rank.losses, wanted.losses, rtol=1e-10, atol=1e-12)
        np.testing.assert_allclose(rank.norms, wanted.norms, rtol=1e-10, atol=1e-12)
        for name, value in wanted.parameters.items():
            torch.testing.assert_close(rank.parameters[name], value, rtol=1e-10, atol=1e-12)
        assert rank.scores.keys() == wanted.scores.keys()
        for name, score in wanted.scores.items():
            np.testing.assert_allclose(rank.scores[name], score, rtol=1e-9, atol=1e-12, err_msg=name)
        for name, scores in wanted.baselines.items():
            np.testing.assert_allclose(
                [rank.baselines[name][metric] for metric in scores], list(scores.values()), rtol=1e-9, err_msg=name
            )
    for rank in found[1:]:
        assert _by_group(rank.log) == _by_group(found[0].log)
        assert all(torch.equal(rank.parameters[name], value) for name, value in found[0].parameters.items())


def _by_group(log: list[tuple[str, tuple[int, ...]]]) -> dict[str, list[str]]:
    """Return what was exchanged in each group, in order; groups may belong to different threads."""
    groups: dict[str, list[str]] = {}
    for name, _ in log:
        groups.setdefault(name.partition("/")[0], []).append(name)
    return groups


def owned_by(patch: pytest.MonkeyPatch, owners: Sequence[int]) -> None:
    """Let these ranks own the nodes, whatever partition is asked for."""

    def given(graph: TinyGraph, t_stop: int, ranks: int, settings: PartitionSettings) -> Owners:
        return Owners(owner_N=np.array(owners, np.int32), num_ranks=ranks, name="given")

    patch.setattr(holding, "partition", given)
