"""Several ranks learn what one process learns from the same windows: losses, gradients and parameters."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.train.small_runs import graph_of, random_snapshots
from timeloom.config import build, merge
from timeloom.dist import threads
from timeloom.dist.collectives import World
from timeloom.graph.dynamic import open_graph
from timeloom.graph.tasks import GraphLike
from timeloom.nn.models import MODELS
from timeloom.plan.schedule.schedule import Schedule, schedule_of
from timeloom.plan.types import Plan, Step
from timeloom.systems import preset_of
from timeloom.train.goals.goal import Draw
from timeloom.train.planning import plan_epoch
from timeloom.train.session import open_session
from timeloom.train.settings import RunSettings
from timeloom.train.trainer import Trainer

NODES, SNAPSHOTS, STEPS = 11, 10, 10
EXACT: dict[str, Any] = {
    "model": {"hidden": 4, "heads": 2, "span": 3},
    "window": {"length": 3},
    "inputs": {"features": "degree"},
    "task": {"residual": False},
    "split": {"train": 0.7},
    "train": {"precision": "float64", "threads": 1, "device": "cpu", "cache_bytes": 1 << 24},
}


@dataclass(frozen=True)
class Learnt:
    """What came of some steps on one rank."""

    losses: list[float]
    norms: list[float]
    parameters: dict[str, Tensor]
    log: list[tuple[str, tuple[int, ...]]]


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Snapshots of random edges; one of them is empty, so a window may be almost so."""
    snapshots = random_snapshots(NODES, 25, SNAPSHOTS)
    snapshots[3] = []
    return graph_of(tmp_path_factory.mktemp("systems") / "graph", snapshots)


def settings_of(graph: Path, system: str, *tables: dict[str, Any]) -> RunSettings:
    return build(RunSettings, merge({"graph": str(graph)}, preset_of(system).settings, EXACT, *tables))


def learn(
    settings: RunSettings, world: World | None, plan: Callable[[int], Any], graph: GraphLike | None = None,
    steps: int = STEPS,
) -> Learnt:  # fmt: skip
    """Take some steps of a plan as one rank of a world, from weights that threads cannot mix up as they draw them."""
    session = open_session(settings, graph or open_graph(settings.graph), world=world)
    rng = np.random.default_rng(5)
    with torch.no_grad():
        for parameter in session.predictor.parameters():
            parameter.copy_(torch.from_numpy(rng.normal(scale=0.3, size=tuple(parameter.shape))))
    trainer, losses, norms, epoch = Trainer(session, None), list[float](), list[float](), 0
    while len(losses) < steps:
        steps_of_epoch, place = plan(epoch), 0
        step: Step = next(steps_of_epoch)
        while len(losses) < steps:
            told = trainer.step(step, Draw(seed=settings.train.seed, epoch=epoch))
            losses.append(told.loss)
            norms.append(told.grad_norm)
            if step.ends_epoch:
                break
            step, place = steps_of_epoch.send(trainer.outcome(place)), place + 1
        trainer.progress.epoch, trainer.progress.losses, trainer.carry, epoch = epoch + 1, [], None, epoch + 1
    parameters = {name: value.detach().clone() for name, value in session.predictor.state_dict().items()}
    return Learnt(losses, norms, parameters, [] if world is None else list(world.log))


def on_one_rank(step: Step) -> Step:
    """Return a step whose windows are all those of the first rank, each of them once."""
    units = tuple(dict.fromkeys(unit for ours in step.units.values() for unit in ours))
    return replace(step, units={0: units})


def alone(settings: RunSettings, ranks: int, stop: int, graph: GraphLike | None = None) -> Learnt:
    """Take the steps of so many ranks in one process."""

    return learn(settings, None, lambda epoch: in_one(plan_epoch(settings, stop, epoch=epoch, ranks=ranks)), graph)


def in_one(steps: Plan) -> Plan:
    """Yield the steps of several ranks for one process."""
    step = next(steps)
    while True:
        outcome = yield on_one_rank(step)
        step = steps.send(outcome)


def together(settings: RunSettings, ranks: int, stop: int, graph: GraphLike | None = None) -> list[Learnt]:
    """Take the steps as so many ranks."""

    def plan(epoch: int) -> Any:
        return plan_epoch(settings, stop, epoch=epoch, ranks=ranks)

    return threads.run(ranks, lambda world: learn(settings, world, plan, graph), check=True)


def assert_equal(found: list[Learnt], wanted: Learnt, messages: tuple[str, ...] = ()) -> None:
    """``messages`` have names that begin so: they are between two ranks, and no collectives."""
    for rank in found:
        np.testing.assert_allclose(rank.losses, wanted.losses, rtol=1e-10, atol=1e-12)
        np.testing.assert_allclose(rank.norms, wanted.norms, rtol=1e-10, atol=1e-12)
        for name, value in wanted.parameters.items():
            torch.testing.assert_close(rank.parameters[name], value, rtol=1e-10, atol=1e-12)
    for rank in found[1:]:
        logs = [[name for name, _ in one.log if not name.startswith(messages)] for one in (rank, found[0])]
        assert logs[0] == logs[1]
        assert all(torch.equal(rank.parameters[name], value) for name, value in found[0].parameters.items())


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("ranks", [2, 3])
def test_psg_learns_what_one_process_learns(graph: Path, model: str, ranks: int) -> None:
    settings = settings_of(graph, "psg", {"model": {"name": model}})
    stop = open_session(settings, open_graph(graph)).split.train_stop
    # Four windows: with three ranks the second step has one window, and two ranks have nothing to do.
    assert stop == 6
    assert_equal(together(settings, ranks, stop), alone(settings, ranks, stop))


@pytest.mark.parametrize("model", MODELS)
def test_a_schedule_learns_what_one_process_learns(graph: Path, model: str) -> None:
    """T11, T13: two windows on a rank, one, or none."""
    settings = settings_of(graph, "real", {"model": {"name": model}})
    for steps in ([[[0, 1], [2]], [[3], []]], [[[1, 3], [], [0]], [[], [], [2]]]):
        ranks, schedule = len(steps[0]), schedule_of(steps, len(steps[0]))

        def plan(epoch: int, schedule: Schedule = schedule, ranks: int = ranks) -> Any:
            return plan_epoch(settings, 6, epoch=epoch, ranks=ranks, schedule=schedule)

        found = threads.run(ranks, lambda world, plan=plan: learn(settings, world, plan), check=True)  # type: ignore[misc]
        assert_equal(found, learn(settings, None, lambda epoch, plan=plan: in_one(plan(epoch))))  # type: ignore[misc]
