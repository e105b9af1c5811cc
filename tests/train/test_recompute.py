"""Gradient checkpointing: what is computed a second time gives the same numbers, and less is held meanwhile."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.graph.tiny import tiny
from tests.train.test_systems import alone, assert_equal, settings_of
from timeloom.nn.models import MODELS
from timeloom.plan.types import Unit
from timeloom.train.goals.goal import Draw
from timeloom.train.session import open_session
from timeloom.train.workers import make_worker

AGAIN: dict[str, Any] = {"system": {"recompute": True}}


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize(("state", "stride"), [("zero", 0), ("inherit", 0), ("inherit", 2)])
def test_a_recomputed_window_teaches_the_same(model: str, state: str, stride: int) -> None:
    graph = tiny(1, num_nodes=12, num_snapshots=14, weighted=True)
    window = {"window": {"state": state, "length": 5, "stride": stride, "groups": 2 if state == "zero" else 1}}
    plain = settings_of(Path(), "psg", {"model": {"name": model, "layers": 2}, "split": {"train": 0.8}}, window)
    again = settings_of(Path(), "psg", {"model": {"name": model, "layers": 2}, "split": {"train": 0.8}}, window, AGAIN)
    stop = open_session(plain, graph).split.train_stop
    assert_equal([alone(again, 1, stop, graph)], alone(plain, 1, stop, graph))


def test_dropout_draws_the_same_the_second_time() -> None:
    """The gradient is that of the loss: with other draws going back, it would not be what small steps find."""
    graph = tiny(1, num_nodes=12, num_snapshots=14, weighted=True)
    settings = settings_of(
        Path(), "psg", {"model": {"layers": 2, "dropout": 0.5}, "window": {"length": 9}, "split": {"train": 0.8}}, AGAIN
    )
    session = open_session(settings, graph)
    worker, unit = make_worker(session), Unit(first=0, last=9, targets=(4, 8), fresh=True)
    weight = dict(session.predictor.named_parameters())["head.linear.weight"]

    def loss() -> float:
        session.predictor.zero_grad()
        return worker.learn((unit,), Draw(seed=0, epoch=0), None).loss

    session.predictor.train()
    first = next(session.model.parameters())
    for parameter in (weight, first):
        loss()
        assert parameter.grad is not None
        told, step = float(parameter.grad.flatten()[0]), 1e-6
        parameter.data.view(-1)[0] += step
        up = loss()
        parameter.data.view(-1)[0] -= 2 * step
        down = loss()
        parameter.data.view(-1)[0] += step
        assert told == pytest.approx((up - down) / (2 * step), rel=1e-5)


PEAK = """
import sys
from pathlib import Path
import torch
from timeloom.graph.synth import PowerLaw, synth
from timeloom.config import build
from timeloom.graph.dynamic import open_graph
from timeloom.plan.types import Step, Unit
from timeloom.train.goals.goal import Draw
from timeloom.train.session import open_session
from timeloom.train.settings import RunSettings
from timeloom.train.trainer import Trainer

path, model, again = Path(sys.argv[1]), sys.argv[2], sys.argv[3] == "again"
if not path.exists():
    synth(PowerLaw(num_nodes=20_000, num_edges=40_000, num_snapshots=28, turnover=0.02), path)
settings = build(RunSettings, {
    "graph": str(path), "model": {"name": model, "hidden": 32},
    "window": {"length": 25, "state": "zero", "targets": "last"}, "split": {"train": 0.95, "val": 0.02},
    "train": {"threads": 1, "device": "cpu", "cache_bytes": 0}, "reuse": {"mode": "full"},
    "system": {"recompute": again},
})
trainer = Trainer(open_session(settings, open_graph(path)), None)
unit = Unit(first=0, last=25, targets=(24,), fresh=True)
before = int(Path("/proc/self/status").read_text().split("VmRSS:")[1].split()[0])
trainer.step(Step(units={0: (unit,)}, ends_epoch=True), Draw(seed=0, epoch=0))
peak = int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0])
print((peak - before) >> 10)
"""


@pytest.mark.slow
@pytest.mark.parametrize("model", ["wdgcn", "dcrnn"])
def test_recomputing_takes_less_memory(model: str, tmp_path: Path) -> None:
    peaks = {
        how: int(subprocess.run(
            [sys.executable, "-c", PEAK, str(tmp_path / "g"), model, how], capture_output=True, text=True, check=True,
        ).stdout)
        for how in ("once", "again")
    }  # fmt: skip
    assert peaks["again"] < 0.6 * peaks["once"], peaks
