"""What lives while a run trains: parameters, optimizer, carried state, progress, and how they are saved."""

from __future__ import annotations

import dataclasses
import json
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NoReturn, get_origin, get_type_hints

import torch
from torch import Tensor

from timeloom.dist.sync import Agreement, Flags, Gradients
from timeloom.errors import BadRun, Diverged
from timeloom.plan.types import Outcome, Step, Unit
from timeloom.records import Resumed, RunDirectory, Saved, Stepped
from timeloom.train import checkpoint
from timeloom.train.control import Control
from timeloom.train.faults import named_by_all
from timeloom.train.goals.goal import Draw
from timeloom.train.optim import gradient_norm, make_optimizer, optimizer_tensors, rate_in, restore_optimizer
from timeloom.train.prefetch import Prefetch
from timeloom.train.profile import Part, clock_offset
from timeloom.train.session import Session, Stopped, scale_tensors
from timeloom.train.walk import Carry, carry_of
from timeloom.train.worker import Learnt, LiveWorker
from timeloom.train.workers import make_worker


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


def whole_number(value: Any) -> int:
    """Return a count that a checkpoint holds; refuse what is none."""
    if type(value) is not int or value < 0:
        raise ValueError(f"{value!r} is no count")
    return value


_KINDS: dict[Any, tuple[type, ...]] = {float | None: (float, int, type(None)), float: (float, int)}


def progress_of(state: dict[str, Any]) -> Progress:
    """Return how far a saved run was; refuse what says nothing of that kind."""
    found, kinds = Progress(**state), get_type_hints(Progress)
    for name, kind in kinds.items():
        value = getattr(found, name)
        if kind is int and name != "best_epoch":
            whole_number(value)
        elif not isinstance(value, _KINDS.get(kind, get_origin(kind) or kind)):
            raise TypeError(f"{name} is {value!r}")
    if not all(type(loss) is float for loss in found.losses) or not all(type(one) is dict for one in found.live):
        raise TypeError("losses or predictions are of another kind")
    return found


@dataclass(frozen=True, slots=True)
class Beside:
    """What a checkpoint holds beside what every run has."""

    tensors: dict[str, Tensor]
    state: dict[str, Any]


def nothing_beside() -> Beside:
    """Return that there is nothing."""
    return Beside({}, {})


class Trainer:
    """A session that learns, and saves what it learnt in a run directory.

    Of several ranks only the first has the directory; what is decided by the clock is decided there.
    """

    def __init__(self, session: Session, run: RunDirectory | None) -> None:
        self.session, self.run = session, run
        self.progress = Progress()
        self.worker = make_worker(session)
        self.optimizer = make_optimizer(session.predictor.parameters(), session.settings.optim)
        self.gradients = Gradients(session.world, list(session.predictor.parameters()))
        self._prefetch = Prefetch(session.feed, session.settings.task.ahead)
        self.control = Control(session)
        self.carry: Carry | None = None
        self.best: dict[str, Tensor] = {}
        self.spans: list[tuple[int, float, tuple[Part, ...]]] = []
        """Of some steps of the epoch under way: their number, when they began, and what they were spent on."""
        self.due = False
        """At the last step it was time to save."""
        self.beside: Callable[[], Beside] = nothing_beside
        """Collective. What else is to be saved."""
        self.beside_saved: Beside | None = None
        """What else the checkpoint held that the run goes on from."""
        self.stopping = False
        """Some rank was asked to stop before the last step ended."""
        self._saved_at = self._resumed_at = time.monotonic()
        self.ahead = clock_offset(session.world)
        """By how many seconds this rank's clock is ahead of that of the first one."""

    def step(self, step: Step, draw: Draw) -> Stepped:
        """Collective. Learn from some windows: forward, backward, one update. A loss that is no number stops here."""
        session, progress, began = self.session, self.progress, time.monotonic()
        units = step.units[session.world.rank]
        session.world.begin_step(progress.step + 1)
        session.profile.begin()
        self._read_ahead(step, draw)
        session.predictor.train()
        rate = rate_in(session.settings.optim, draw.epoch, session.settings.train.epochs, progress.drops)
        self.optimizer.zero_grad(set_to_none=True)
        learnt = self.worker.learn(units, draw, self.carry)
        with session.profile.phase("communicate"):
            agreed = self._agree(learnt)
        norm = 0.0
        if agreed.non_finite:
            self._diverged(units, agreed)
        if agreed.learnt:
            with session.profile.phase("other"):
                norm = float(gradient_norm(session.predictor.parameters(), session.settings.optim.clip))
                if not (math.isfinite(agreed.loss) and math.isfinite(norm)):
                    self._diverged(units, agreed)
                for group in self.optimizer.param_groups:
                    group["lr"] = rate
                self.optimizer.step()
        if units and (units[-1].keep >= 0 or units[-1].kept_from):
            self.carry = learnt.kept
        nodes, edges = self._sizes(step)
        told = agreed.loss if agreed.learnt else math.nan
        progress.step += 1
        progress.losses.append(told)
        progress.nodes += nodes
        progress.edges += edges
        self._note()
        return Stepped(
            epoch=progress.epoch, step=progress.step, loss=told, grad_norm=norm, learning_rate=rate, nodes=nodes,
            edges=edges, seconds=time.monotonic() - began,
        )  # fmt: skip

    def close(self) -> None:
        """Let go of the thread that reads ahead, and of the process that solves."""
        self._prefetch.close()
        self.worker.close()
        self.control.close()

    def move_to(self, session: Session) -> None:
        """Go on with the same parameters on a graph that has grown; what is carried grows with it."""
        assert isinstance(self.worker, LiveWorker), "graphs grow under the live protocol"
        self._prefetch.close()
        self._prefetch = Prefetch(session.feed, session.settings.task.ahead)
        self.session, self.worker = session, self.worker.moved(session)
        if self.carry is not None:
            self.carry = carry_of(session.model, self.carry.tensors(), session.graph.num_nodes)

    def _read_ahead(self, step: Step, draw: Draw) -> None:
        """Wait for what this step needs, and have what the next one needs made ready meanwhile."""
        with self.session.profile.phase("load"):
            self._prefetch.ready()
        soon = step.soon.get(self.session.world.rank, ())
        if self.session.settings.system.divide == "targets":
            # Not views of whole snapshots: what a sampled batch needs.
            self.worker.expect(soon, draw)
        else:
            self._prefetch.ask(soon)

    def _note(self) -> None:
        """Remember what the step was spent on, for the first few steps of an epoch."""
        if len(self.progress.losses) <= self.session.settings.train.spans:
            profile = self.session.profile
            self.spans.append((self.progress.step, profile.began, profile.end()))

    def _agree(self, learnt: Learnt) -> Agreement:
        """Collective. Make the gradients those of all ranks, and hear what the others want."""
        bad = not math.isfinite(learnt.loss) or bool(self.session.feed.faults.first)
        flags = Flags(stop=self.session.should_stop(), non_finite=bad, save=self.is_due())
        agreed = self.gradients.agree(learnt.weight, flags, loss=learnt.loss)
        self.due, self.stopping = agreed.save > 0, agreed.stop > 0
        return agreed

    def check_stop(self) -> None:
        """Leave here if a rank was asked to stop: all ranks do, after the same step."""
        if self.stopping:
            raise Stopped

    def _diverged(self, units: tuple[Unit, ...], agreed: Agreement) -> NoReturn:
        """Collective. Stop: a loss, a gradient or an input is no number, on this rank or on another."""
        session, progress = self.session, self.progress
        here = json.dumps([units[0].first, units[-1].last - 1] if units else []).encode()
        windows = [json.loads(one) for one in session.world.gather_bytes(here, "control/diverged")]
        bounds = [bound for window in windows for bound in window]
        snapshots = f"snapshots {min(bounds)} to {max(bounds)}" if bounds else "no snapshots"
        what = named_by_all(session.world, session.feed.faults, session.predictor)
        told = [] if math.isfinite(agreed.loss) or not agreed.weight else [f"the loss was {agreed.loss:g}"]
        raise Diverged(
            f"step {progress.step + 1} (epoch {progress.epoch}, {snapshots}) diverged: "
            f"{'; '.join([*told, *([what] if what else [])]) or 'the norm of the gradient was no number'}; the "
            f"parameters are as they were before it. Lower optim.rate (now {session.settings.optim.rate:g}) or "
            "optim.clip, or look for extreme values with 'timeloom info'"
        )

    def refuse_faults(self, where: str) -> None:
        """Collective. Stop where what was read of the graph since the last step, on any rank, is no number."""
        world, faults = self.session.world, self.session.feed.faults
        told = world.all_reduce(torch.tensor([bool(faults.first)], dtype=torch.uint8), "control/faulty", "max")
        if told.item():
            what = named_by_all(world, faults, torch.nn.Module())
            raise Diverged(
                f"{where}, after step {self.progress.step} (epoch {self.progress.epoch}): {what}; look for extreme "
                "values with 'timeloom info', and ingest the graph without them"
            )

    def _sizes(self, step: Step) -> tuple[int, int]:
        """Return the nodes and edges that all ranks' windows went over."""
        graph, units = self.session.graph, {unit for ours in step.units.values() for unit in ours}
        times = [t for unit in units for t in range(unit.first, unit.last)]
        return len(times) * graph.num_nodes, sum(graph.num_edges(t) for t in times)

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
        """Say whether the last checkpoint is old enough for the next, by the clock of the rank that writes it."""
        old = time.monotonic() - self._saved_at >= self.session.settings.train.save_seconds
        return old and self.run is not None

    def agree_due(self) -> bool:
        """Collective. Say whether it is time to save."""
        told = self.session.world.all_reduce(torch.tensor([self.is_due()], dtype=torch.uint8), "control/due", "max")
        return bool(told.item())

    def save(self) -> Saved:
        """Collective. Write a checkpoint, then remove older ones."""
        progress, now = self.progress, time.monotonic()
        progress.seconds += now - self._resumed_at
        self._resumed_at = now
        record = Saved(
            checkpoint=f"epoch-{progress.epoch:06d}-step-{progress.step:06d}", epoch=progress.epoch, step=progress.step
        )
        carried, beside = None if self.carry is None else self.worker.whole(self.carry), self.beside()
        if self.run is not None:
            self._write(self.run, record, carried, beside)
        self._saved_at, self.due = time.monotonic(), False
        return record

    def _write(self, run: RunDirectory, record: Saved, carried: Carry | None, beside: Beside) -> None:
        """Write a checkpoint, then remove older ones."""
        session, progress, scales = self.session, self.progress, self.session.feed.scales
        assert scales is not None
        run.append(record)
        tensors = _under("now", session.predictor.state_dict()) | _under("best", self.best)
        tensors |= _under("optimizer", optimizer_tensors(self.optimizer)) | _under("scales", scale_tensors(scales))
        tensors |= _under("beside", beside.tensors)
        if carried is not None:
            tensors |= {f"carry/{place:03d}": part for place, part in enumerate(carried.tensors())}
        state = {
            "progress": dataclasses.asdict(progress), "records_bytes": run.size(), "graph": session.graph.name,
            "decided": session.decided.as_json(), "control": self.control.state(), "beside": beside.state,
            "num_snapshots": session.split.test_stop + session.split.horizon, "num_nodes": session.graph.num_nodes,
        }  # fmt: skip
        checkpoint.save(run.checkpoints, record.checkpoint, tensors, state)
        checkpoint.keep(run.checkpoints, checkpoint.names(run.checkpoints)[-session.settings.train.keep :])

    def restore(self, saved: checkpoint.Checkpoint) -> Resumed:
        """Go back to a checkpoint: from here on everything is as if the run had never been interrupted."""
        with checkpoint.fitting(saved.name):
            self._take_up(saved)
            records_bytes = whole_number(saved.state["records_bytes"])
        if self.run is not None:
            self.run.check(records_bytes)
            # Later checkpoints know of records that are now forgotten.
            names = checkpoint.names(self.run.checkpoints)
            checkpoint.keep(self.run.checkpoints, names[: names.index(saved.name) + 1])
            self.run.truncate(records_bytes)
        return Resumed(checkpoint=saved.name, epoch=self.progress.epoch, step=self.progress.step)

    def _take_up(self, saved: checkpoint.Checkpoint) -> None:
        """Take up what was saved."""
        parts = grouped(saved.tensors)
        load_parameters(self.session, parts["now"], saved.name)
        self.best = parts.get("best", {})
        restore_optimizer(self.optimizer, parts.get("optimizer", {}))
        kept = {key: part.to(self.session.device) for key, part in parts.get("carry", {}).items()}
        if kept:
            parted = tuple(kept[key] for key in sorted(kept))
            self.carry = self.worker.own(carry_of(self.session.model, parted, self.session.graph.num_nodes))
        self.progress = progress_of(saved.state["progress"])
        self.control.restore(saved.state["control"])
        if saved.state["beside"]:
            self.beside_saved = Beside(parts.get("beside", {}), saved.state["beside"])

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
    """Return a checkpoint's tensors by what they are: now, best, optimizer, scales, carry, beside."""
    groups: dict[str, dict[str, Tensor]] = {}
    for key, tensor in tensors.items():
        folder, _, name = key.partition("/")
        groups.setdefault(folder, {})[name] = tensor
    return groups
