"""Run directories with known contents, as several ranks would leave them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from timeloom.records import (
    Averaged,
    Batched,
    Deviated,
    Ended,
    EpochEnded,
    Evaluated,
    GraphFacts,
    Placed,
    Predicted,
    Record,
    RunDirectory,
    Saved,
    Scheduled,
    Spans,
    Started,
    Stepped,
    Traffic,
    Tuned,
    Warned,
)  # fmt: skip

CONFIG = """graph = "/data/{graph}"

[model]
name = "{model}"
hidden = 32

[task]
name = "degree"

[system]
name = "{system}"

[train]
seed = {seed}
"""
BEGAN = 1_760_000_000.0


@dataclass(frozen=True, kw_only=True)
class Fake:
    """A run that never was."""

    ranks: int = 2
    epochs: int = 8
    steps: int = 6
    """Of an epoch."""
    seed: int = 0
    system: str = "real"
    model: str = "tgcn"
    graph: str = "drift"
    slow: float = 1.0
    ended: bool = True
    spans: bool = True
    warning: str = ""
    predicts: str = "value"

    def records(self) -> list[Record]:
        """Return its records."""
        rng = np.random.default_rng([self.seed, len(self.system)])
        clock, told = BEGAN, list[Record]()
        told.append(Started(
            graph=self.graph, num_parameters=6_561, version="0.1.0",
            derived={"nodes": 2000, "updates an epoch": self.steps, "epochs at most": self.epochs, "chosen by": "mse"},
        ))  # fmt: skip
        told.append(self._facts())
        if self.warning:
            told.append(Warned(sentence=self.warning))
        told.append(self._schedule())
        for epoch in range(self.epochs):
            before = clock
            for step in range(self.steps):
                clock = self._step(told, rng, epoch, step, clock)
            told += self._epoch_end(rng, epoch, clock - before)
            clock += 0.02
        if self.ended:
            told += self._end(rng, clock - BEGAN)
        return told

    def _step(self, told: list[Record], rng: np.random.Generator, epoch: int, step: int, clock: float) -> float:
        number = epoch * self.steps + step + 1
        work = 0.1 * self.slow * rng.uniform(0.7, 1.3, self.ranks) * (1 + 0.5 * (np.arange(self.ranks) % 2))
        for rank in range(self.ranks if self.spans else 0):
            load, encode, recur, backward = work[rank] * np.array([0.1, 0.3, 0.2, 0.4])
            wait = work.max() - work[rank]
            at = np.cumsum([0.0, load, encode, recur, backward, wait, 0.008]).round(6).tolist()
            parts = [
                (phase, at[place], round(at[place + 1] - at[place], 6))
                for place, phase in enumerate(("load", "encode", "recur", "backward", "wait", "communicate"))
            ]
            # The halo is fetched behind the computation.
            parts.append(("communicate", at[1], round(encode * 0.8, 6)))
            told.append(Spans(rank=rank, epoch=epoch, step=number, began=clock, parts=tuple(parts)))
        seconds = float(work.max()) + 0.01
        told.append(Stepped(
            epoch=epoch, step=number, loss=float(np.exp(-number / 20) + 0.1 + 0.05 * rng.random()),
            grad_norm=float(rng.uniform(0.1, 1)), learning_rate=0.01, nodes=16_000, edges=80_000, seconds=seconds,
        ))  # fmt: skip
        return clock + seconds

    def _epoch_end(self, rng: np.random.Generator, epoch: int, seconds: float) -> list[Record]:
        loss = float(np.exp(-epoch / 3) + 0.12 + 0.01 * rng.random())
        told: list[Record] = [EpochEnded(
            epoch=epoch, loss=loss, learning_rate=0.01, nodes=96_000, edges=480_000, seconds=seconds
        )]  # fmt: skip
        for rank in range(self.ranks):
            told.append(Traffic(
                rank=rank, epoch=epoch, calls={"grad": self.steps, "halo": 4 * self.steps, "control": 2},
                sent_bytes={"grad": 26_244 * self.steps, "halo": 1_200_000 + 100_000 * rank, "control": 64},
                received_bytes={"grad": 26_244 * self.steps, "halo": 1_250_000, "control": 64},
                waited_s={"grad": 0.05 * seconds, "halo": 0.02 * seconds, "control": 0.0},
                peak_bytes=400_000_000 + 40_000_000 * rank + 2_000_000 * epoch, peak_device_bytes=0,
            ))  # fmt: skip
        baselines = {"zero": {"mse": 2.8, "mae": 1.46}, "persistence": {"mse": 0.214, "mae": 0.333}}
        scores = {"mse": loss * 1.1, "mae": loss * 1.5}
        if epoch == 0:
            trials = ((2, 0.25, 0.9, 0.8, 0.5, 1e6), (1, 0.5, 0.9, 0.85, 0.25, 0.0))
            told.append(Averaged(
                epoch=0, step=1, snapshots=0.2, nodes=0.05, steps=(4,) * self.ranks, loss=loss, step_seconds=0.1,
                seconds=0.4,
            ))  # fmt: skip
            told.append(Tuned(full=2, decayed=6, alpha=0.25, score=0.2, trials=trials))
        told.append(Averaged(
            epoch=epoch, step=epoch * self.steps + 1, snapshots=0.5, nodes=0.25, steps=(3,) * self.ranks, loss=loss,
            step_seconds=0.1, seconds=0.3,
        ))  # fmt: skip
        for rank in range(self.ranks):
            told.append(Batched(
                rank=rank, epoch=epoch, reused=30, unused=10, whole=1, built=2, waited_s=0.25, beside=12, beside_s=2.0,
                hidden_s=1.5,
            ))  # fmt: skip
        told.append(Placed(
            t=epoch, held_bytes=(1_000,) * self.ranks, capacity_bytes=2_000, kept_share=0.75, moved=4, rounds=3,
            swaps=1, overflows=int(epoch == 2), examples=(((7, 1, 50, 40),) if epoch == 2 else ()),
        ))  # fmt: skip
        told.append(Deviated(epoch=epoch, what="sym-lazy", deviation=0.001 * (epoch + 1)))
        told.append(Evaluated(epoch=epoch, split="val", scores=scores, baselines=baselines, seconds=0.05))
        return told

    def _facts(self) -> GraphFacts:
        t = np.arange(60)
        edges = (10_000 + 3_000 * np.sin(t / 6) + 40 * t).astype(int)
        overlap = np.concatenate([[1.0], 0.8 + 0.1 * np.cos(t[1:] / 4)]).round(4)
        return GraphFacts(
            graph=self.graph, nodes=2_000, edges=tuple(edges.tolist()), active=tuple((edges // 6).tolist()),
            overlap=tuple(overlap.tolist()), train_stop=41, val_stop=50, test_stop=59,
        )  # fmt: skip

    def _schedule(self) -> Scheduled:
        units = tuple(
            (step, rank, 3 * (step * self.ranks + rank), 3 * (step * self.ranks + rank) + 5,
             0.1 * self.slow * (1 + 0.5 * (rank % 2)))
            for step in range(self.steps) for rank in range(self.ranks)
        )  # fmt: skip
        return Scheduled(epoch=0, by="greedy", first_step=1, units=units, predicted_s=2.0, bound_s=1.9, solved_s=0.3)

    def _end(self, rng: np.random.Generator, seconds: float) -> list[Record]:
        scores = {"mse": 0.137 + 0.01 * rng.random(), "mae": 0.276}
        baselines = {"zero": {"mse": 2.81, "mae": 1.46}, "persistence": {"mse": 0.214, "mae": 0.333}}
        return [
            self._predicted(rng),
            Saved(checkpoint=f"epoch-{self.epochs:06d}", epoch=self.epochs, step=self.epochs * self.steps),
            Evaluated(epoch=self.epochs - 1, split="test", scores=scores, baselines=baselines, seconds=0.1),
            Ended(reason="epochs", epochs=self.epochs, best_epoch=self.epochs - 1, seconds=seconds),
        ]  # fmt: skip

    def _predicted(self, rng: np.random.Generator) -> Predicted:
        drawn = rng.gamma(2.0, 1.0, 400)
        guessed, classes = drawn + rng.normal(0, 0.35, 400), ("payment", "savings & loans", "<other>")
        truth, told = ([round(value, 4) for value in side.tolist()] for side in (drawn, guessed))
        if self.predicts == "value":
            return self._told("log(1 + in-degree)", (), truth, told)
        if self.predicts == "class":
            truth, told = ([float(min(max(int(value), 0), 2)) for value in side] for side in (truth, told))
            return self._told("class of a node", classes, truth, told)
        linked = [float(value > 1.7) for value in truth]
        shares = (1 / (1 + np.exp(1.7 - guessed))).round(4).tolist()
        return self._told("probability of a link", ("not linked", "linked"), linked, shares)

    def _told(self, what: str, classes: tuple[str, ...], truth: list[float], told: list[float]) -> Predicted:
        return Predicted(
            split="test", what=what, form=self.predicts, classes=classes, truth=tuple(truth), predicted=tuple(told)
        )

    def make(self, path: Path) -> Path:
        """Write it to a folder."""
        text = CONFIG.format(graph=self.graph, model=self.model, system=self.system, seed=self.seed)
        with RunDirectory.create(path, text, overwrite=True) as run:
            for record in self.records():
                run.append(record)
        return path
