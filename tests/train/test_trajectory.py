"""A run that changes its way from window to window learns what a run learns that never does (T9)."""

from __future__ import annotations

from itertools import cycle
from typing import Any

import pytest
import torch

from tests.train.test_reuse import graph_of
from timeloom.graph.tasks import TaskSettings
from timeloom.nn.settings import ModelSettings
from timeloom.plan.batch.windows import WindowSettings, training_windows
from timeloom.plan.types import Unit
from timeloom.train.choose import Mode
from timeloom.train.encode import Encoder
from timeloom.train.goals.goal import Draw
from timeloom.train.session import open_session
from timeloom.train.settings import ReuseSettings, RunSettings, TrainSettings
from timeloom.train.whole import WholeWorker

STEPS = 20


def losses_of(name: str, precision: Any, *, groups: int, cache: Any, mode: Any = "full") -> list[float]:
    """Return the losses of some steps of plain gradient descent."""
    settings = RunSettings(
        graph="", model=ModelSettings(name=name, hidden=4, heads=2), task=TaskSettings(name="degree"),
        window=WindowSettings(length=3, state="zero", groups=groups),
        train=TrainSettings(precision=precision, device="cpu"), reuse=ReuseSettings(mode=mode, cache=cache),
    )  # fmt: skip
    session = open_session(settings, graph_of(seed=1))
    worker, parameters = WholeWorker(session), list(session.predictor.parameters())
    units = training_windows(settings.window, session.split.train_stop)
    steps = cycle([tuple(units[first : first + groups]) for first in range(0, len(units) - groups + 1, groups)])
    told: list[float] = []
    for _ in range(STEPS):
        step: tuple[Unit, ...] = next(steps)
        session.predictor.zero_grad(set_to_none=True)
        learnt = worker.learn(step, Draw(seed=0, epoch=0), None)
        told.append(learnt.loss / learnt.weight)
        with torch.no_grad():
            for parameter in parameters:
                if parameter.grad is not None:
                    parameter.sub_(parameter.grad, alpha=0.003 / learnt.weight)
    return told


@pytest.mark.parametrize(("precision", "tolerance"), [("float64", 1e-10), ("float32", 1e-6)])
@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("name", ["gcn_gru", "tgcn", "gat_lstm", "evolvegcn_o", "mpnn_lstm"])
def test_any_mixture_of_ways_gives_the_same_losses(
    name: str, groups: int, precision: str, tolerance: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = losses_of(name, precision, groups=groups, cache="off")
    assert abs(plain[-1] - plain[0]) > 1e-4, "nothing is learnt"
    ways: cycle[Mode] = cycle(("delta", "full", "versions"))
    asked: list[Mode] = []

    def mixed(self: Encoder, times: tuple[int, ...]) -> Mode:
        asked.append(next(ways))
        return asked[-1]

    monkeypatch.setattr(Encoder, "mode", mixed)
    for cache in ("off", "auto"):
        mixture = losses_of(name, precision, groups=groups, cache=cache)
        assert set(asked) == {"delta", "full", "versions"}
        assert mixture == pytest.approx(plain, rel=tolerance, abs=tolerance)
