"""Windows of one update give the mean of their gradients, however much they share (T11, T12)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.graph.tiny import TinyGraph, tiny
from timeloom.graph.tasks import TaskSettings
from timeloom.nn.models import MODELS
from timeloom.nn.settings import ModelSettings
from timeloom.plan.batch.windows import WindowSettings
from timeloom.plan.types import Step, Unit
from timeloom.records import RunDirectory
from timeloom.train.encode import Encoder
from timeloom.train.goals.goal import Draw
from timeloom.train.session import Session, open_session
from timeloom.train.settings import OptimSettings, ReuseSettings, RunSettings, TrainSettings
from timeloom.train.trainer import Trainer
from timeloom.train.whole import WholeWorker

DRAW = Draw(seed=0, epoch=0)


def units_of(*firsts: int, length: int = 3) -> tuple[Unit, ...]:
    return tuple(
        Unit(first=first, last=first + length, targets=tuple(range(first, first + length)), fresh=True)
        for first in firsts
    )


def graph_of(features: Any = "fixed") -> TinyGraph:
    return tiny(0, num_nodes=9, num_snapshots=9, weighted=True, features=features)


def session_of(name: str, mode: Any, task: Any = "degree", features: Any = "fixed", layers: int = 1) -> Session:
    settings = RunSettings(
        graph="", model=ModelSettings(name=name, hidden=4, heads=2, span=3, layers=layers),
        task=TaskSettings(name=task), window=WindowSettings(length=3, state="zero", groups=2),
        train=TrainSettings(precision="float64", device="cpu"), reuse=ReuseSettings(mode=mode),
        optim=OptimSettings(name="sgd", rate=0.1, clip=0.0),
    )  # fmt: skip
    return open_session(settings, graph_of(features))


def step_of(session: Session, path: Path, units: tuple[Unit, ...]) -> tuple[float, list[torch.Tensor]]:
    """Take one step; return the loss, and by how much every parameter moved."""
    before = [value.clone() for value in session.predictor.state_dict().values()]
    with RunDirectory.create(path, "", overwrite=True) as run:
        told = Trainer(session, run).step(Step(units={0: units}, ends_epoch=True), DRAW)
    after = session.predictor.state_dict().values()
    return told.loss, [new - old for new, old in zip(after, before, strict=True)]


@pytest.mark.parametrize(("name", "mode"), [
    (name, mode) for name in MODELS for mode in ("full", "delta", "versions") if mode == "full" or name != "evolvegcn_h"
])  # fmt: skip
@pytest.mark.parametrize("firsts", [(0, 1), (0, 4), (2, 3, 4)])
def test_a_step_is_the_mean_of_its_windows(name: str, mode: str, firsts: tuple[int, ...], tmp_path: Path) -> None:
    units = units_of(*firsts)
    loss, moved = step_of(session_of(name, mode), tmp_path / "all", units)
    alone = [step_of(session_of(name, "full"), tmp_path / "one", (unit,)) for unit in units]
    assert loss == pytest.approx(sum(told for told, _ in alone) / len(units), rel=1e-12)
    for place, one in enumerate(moved):
        mean = torch.stack([parts[place] for _, parts in alone]).mean(0)
        torch.testing.assert_close(one, mean, rtol=1e-10, atol=1e-12)


def test_rows_that_windows_share_are_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, ...]] = []
    honest = Encoder.encode

    def counting(self: Encoder, times: tuple[int, ...], wanted: Any) -> Any:
        asked.append(times)
        return honest(self, times, wanted)

    monkeypatch.setattr(Encoder, "encode", counting)
    step_of(session_of("gcn_gru", "versions"), tmp_path / "run", units_of(0, 1))
    assert asked == [(0, 1, 2, 3)]
    asked.clear()
    step_of(session_of("gcn_gru", "full"), tmp_path / "run", units_of(0, 1))
    assert asked == [(0, 1, 2), (1, 2, 3)]


def test_no_more_than_one_window_is_held_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    alive: list[int] = []
    held = 0
    honest = WholeWorker.loss

    class Mark(torch.autograd.Function):
        """Passes a loss on; while its graph lives, so does a window's."""

        @staticmethod
        def forward(ctx: Any, loss: torch.Tensor) -> torch.Tensor:
            nonlocal held
            held += 1
            alive.append(held)
            return loss.clone()

        @staticmethod
        def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
            nonlocal held
            held -= 1
            return gradients[0]

    def watched(self: WholeWorker, *given: Any) -> Any:
        loss, kept = honest(self, *given)
        return Mark.apply(loss), kept  # type: ignore[no-untyped-call]

    monkeypatch.setattr(WholeWorker, "loss", watched)
    step_of(session_of("tgcn", "versions"), tmp_path / "run", units_of(0, 1, 2, 3))
    assert alive == [1, 1, 1, 1]


def test_a_window_without_targets_counts_as_one(tmp_path: Path) -> None:
    units = units_of(0, 1)
    both = (units[0], Unit(first=1, last=4, targets=(), fresh=True))
    loss, moved = step_of(session_of("gcn_gru", "versions"), tmp_path / "both", both)
    alone, moved_alone = step_of(session_of("gcn_gru", "versions"), tmp_path / "alone", units[:1])
    assert loss == pytest.approx(alone / 2)
    for one, other in zip(moved, moved_alone, strict=True):
        torch.testing.assert_close(one, other / 2, rtol=1e-12, atol=1e-14)
