"""What lives while a run trains: parameters, optimizer, carried state, progress, and how they are saved."""

from __future__ import annotations

import dataclasses
import math
import time
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from timeloom.errors import BadRun, Diverged
from timeloom.plan.types import Outcome, Unit
from timeloom.records import Resumed, RunDirectory, Saved, Stepped
from timeloom.train import checkpoint
from timeloom.train.goals.goal import Draw
from timeloom.train.groups import Groups
from timeloom.train.optim import gradient_norm, make_optimizer, optimizer_tensors, rate_in, restore_optimizer
from timeloom.train.session import Session, scale_tensors, step_randomness
from timeloom.train.walk import Carry, carry_of, first_carry, goes_on


@dataclass
class Progress:
    """How far a run is. It is saved as JSON, and a resumed run goes on from it."""

    epoch: int = 0
    """Epochs that are over, or snapshots that were predicted and learnt (live)."""
    step: int = 0
    losses: list[float] = field(default_factory=list)
    """Of the steps of the epoch under way: a resumed plan is told them again."""
    nodes: int = 0
    edges: int = 0
    best: float | None = None
    best_epoch: int = -1
    stale: int = 0
    """Validations since the best one."""
    drops: int = 0
    """How often the rate was lowered because validation came to a standstill."""
    since_drop: int = 0
    seconds: float = 0.0
    ended: str = ""
    """Why the run ended; empty while it goes on."""
    live: list[dict[str, Any]] = field(default_factory=list)
    """What came of every prediction so far (live)."""


class Trainer:
    """A session that learns, and saves what it learnt in a run directory."""

    def __init__(self, session: Session, run: RunDirectory) -> None:
        self.session, self.run = session, run
        self.progress = Progress()
        self.optimizer = make_optimizer(session.predictor.parameters(), session.settings.optim)
        self.carry: Carry | None = None
        self.best: dict[str, Tensor] = {}
        self._saved_at = self._resumed_at = time.monotonic()

    def step(self, units: tuple[Unit, ...], draw: Draw) -> Stepped:
        """Learn from some windows: forward, backward, one update. A loss that is no number changes nothing."""
        session, progress, began = self.session, self.progress, time.monotonic()
        session.predictor.train()
        rate = rate_in(session.settings.optim, draw.epoch, session.settings.train.epochs, progress.drops)
        with step_randomness(session, draw.epoch, progress.step):
            self.optimizer.zero_grad(set_to_none=True)
            loss, kept = self._go_back(units, draw)
            norm = 0.0
            if loss is not None:
                norm = float(gradient_norm(session.predictor.parameters(), session.settings.optim.clip))
                self._refuse_divergence(units, loss, norm)
                for group in self.optimizer.param_groups:
                    group["lr"] = rate
                self.optimizer.step()
        if units[-1].keep >= 0:
            self.carry = kept
        nodes, edges = (sum(sizes) for sizes in zip(*(self._sizes(unit) for unit in units), strict=True))
        told = math.nan if loss is None else loss
        progress.step += 1
        progress.losses.append(told)
        progress.nodes += nodes
        progress.edges += edges
        return Stepped(
            epoch=progress.epoch, step=progress.step, loss=told, grad_norm=norm, learning_rate=rate, nodes=nodes,
            edges=edges, seconds=time.monotonic() - began,
        )  # fmt: skip

    def _go_back(self, units: tuple[Unit, ...], draw: Draw) -> tuple[float | None, Carry | None]:
        """Leave the gradient of the mean of the windows' losses; return that mean (None: no target), and what is kept.

        Of several windows one is computed and let go after the other; what they share is made once (SPEC section 5).
        """
        session, losses, kept = self.session, list[float](), None
        with session.computing():
            groups = session.walker.groups(units, session.goal.reads) if len(units) > 1 else None
        for unit in units:
            loss, kept = self.loss(unit, draw, groups)
            if loss is not None:
                losses.append(float(loss.detach()))
                (loss / len(units)).backward()  # type: ignore[no-untyped-call]
        if groups is not None:
            groups.go_back()
        return (sum(losses) / len(units) if losses else None), kept

    def before(self, unit: Unit) -> Carry:
        """Return what a window starts from."""
        if unit.fresh or self.carry is None:
            return first_carry(self.session.model, self.session.feed)
        return goes_on(self.session.model, self.carry)

    def loss(self, unit: Unit, draw: Draw, groups: Groups | None = None) -> tuple[Tensor | None, Carry | None]:
        """Return the mean of the losses of the window's targets (None: it has none), and what is kept."""
        session, carry = self.session, self.before(unit)
        with session.computing():
            seen, kept = session.walker.walk(unit, carry, session.goal.reads, groups)
            losses = [
                loss for one in seen if (loss := session.goal.loss(session.head, one, draw)) is not None
            ]  # fmt: skip
        return (torch.stack(losses).mean() if losses else None), kept

    def _refuse_divergence(self, units: tuple[Unit, ...], loss: float, norm: float) -> None:
        if math.isfinite(loss) and math.isfinite(norm):
            return
        named = ((name, parameter.grad) for name, parameter in self.session.predictor.named_parameters())
        bad = [name for name, gradient in named if gradient is not None and not torch.isfinite(gradient).all()]
        what = f"the gradient of {bad[0]} (and {len(bad) - 1} more)" if bad else "the gradient"
        step, snapshots = self.progress.step + 1, f"snapshots {units[0].first} to {units[-1].last - 1}"
        where = f"step {step} (epoch {self.progress.epoch}, {snapshots})"
        found = f"the loss was {loss:g}" if not math.isfinite(loss) else f"{what} was no number"
        raise Diverged(
            f"{where} diverged: {found}; the parameters are as they were before it. Lower optim.rate (now "
            f"{self.session.settings.optim.rate:g}) or optim.clip, or look for extreme values with 'timeloom info'"
        )

    def _sizes(self, unit: Unit) -> tuple[int, int]:
        """Return the nodes and edges that a window went over."""
        count = unit.last - unit.first
        edges = sum(len(self.session.feed.view(t).edges) for t in range(unit.first, unit.last))
        return count * self.session.feed.graph.num_nodes, edges

    def outcome(self, place: int) -> Outcome:
        """Return what the step at this place of the epoch came to."""
        return Outcome(loss=self.progress.losses[place], seconds=0.0)

    def remember_best(self, value: float) -> bool:
        """Say whether a validation is the best so far; if it is, keep the parameters."""
        progress = self.progress
        before = float("nan") if progress.best is None else progress.best
        better = self.session.goal.is_better(self.session.metric, value, before)
        if better:
            progress.best, progress.best_epoch, progress.stale, progress.since_drop = value, progress.epoch, 0, 0
            self.best = {name: value.detach().clone() for name, value in self.session.predictor.state_dict().items()}
        else:
            progress.stale += 1
            progress.since_drop += 1
        return better

    def is_due(self) -> bool:
        """Say whether the last checkpoint is old enough for the next."""
        return time.monotonic() - self._saved_at >= self.session.settings.train.save_seconds

    def save(self) -> Saved:
        """Write a checkpoint, then remove older ones."""
        session, progress = self.session, self.progress
        now = time.monotonic()
        progress.seconds += now - self._resumed_at
        self._resumed_at = now
        record = Saved(
            checkpoint=f"epoch-{progress.epoch:06d}-step-{progress.step:06d}", epoch=progress.epoch, step=progress.step
        )
        self.run.append(record)
        feed = session.feed
        assert feed.scales is not None
        tensors = _under("now", session.predictor.state_dict()) | _under("best", self.best)
        tensors |= _under("optimizer", optimizer_tensors(self.optimizer)) | _under("scales", scale_tensors(feed.scales))
        if self.carry is not None:
            tensors |= {f"carry/{place:03d}": part for place, part in enumerate(self.carry.tensors())}
        state = {
            "progress": dataclasses.asdict(progress), "records_bytes": self.run.size(), "graph": feed.graph.name,
            "decided": session.decided.as_json(),
            "num_snapshots": session.split.test_stop + session.split.horizon, "num_nodes": feed.graph.num_nodes,
        }  # fmt: skip
        checkpoint.save(self.run.checkpoints, record.checkpoint, tensors, state)
        names = checkpoint.names(self.run.checkpoints)
        checkpoint.keep(self.run.checkpoints, names[-session.settings.train.keep :])
        self._saved_at = time.monotonic()
        return record

    def restore(self, saved: checkpoint.Checkpoint) -> Resumed:
        """Go back to a checkpoint: from here on everything is as if the run had never been interrupted."""
        parts = grouped(saved.tensors)
        load_parameters(self.session, parts["now"], saved.name)
        self.best = parts.get("best", {})
        restore_optimizer(self.optimizer, parts.get("optimizer", {}))
        kept = {key: part.to(self.session.device) for key, part in parts.get("carry", {}).items()}
        self.carry = (
            carry_of(self.session.model, tuple(kept[key] for key in sorted(kept)), self.session.feed) if kept else None
        )
        self.progress = Progress(**saved.state["progress"])
        # Later checkpoints know of records that are now forgotten.
        names = checkpoint.names(self.run.checkpoints)
        checkpoint.keep(self.run.checkpoints, names[: names.index(saved.name) + 1])
        self.run.truncate(saved.state["records_bytes"])
        return Resumed(checkpoint=saved.name, epoch=self.progress.epoch, step=self.progress.step)

    def use_best(self) -> None:
        """Set the parameters to the best ones."""
        if self.best:
            self.session.predictor.load_state_dict(self.best)


def load_parameters(session: Session, tensors: dict[str, Tensor], name: str) -> None:
    """Set the parameters to those of a checkpoint, if they are of this model."""
    try:
        session.predictor.load_state_dict(tensors)
    except RuntimeError as error:
        why = " ".join(str(error).split())
        raise BadRun(
            f"checkpoint {name} does not fit the model {session.settings.model.name!r} of this run ({why}): was the "
            "model's file or config.toml changed since?"
        ) from None


def _under(folder: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {f"{folder}/{name}": tensor for name, tensor in tensors.items()}


def grouped(tensors: dict[str, Tensor]) -> dict[str, dict[str, Tensor]]:
    """Return a checkpoint's tensors by what they are: now, best, optimizer, scales, carry."""
    groups: dict[str, dict[str, Tensor]] = {}
    for key, tensor in tensors.items():
        folder, _, name = key.partition("/")
        groups.setdefault(folder, {})[name] = tensor
    return groups
