"""One rank's part of training apart: its own steps, the rounds in which ranks agree, and who chooses the batch size.

What ranks decide follows from what one reduction gave all of them (`plan/batch/rounds.py`), so all take part in equally
many collectives, whatever their speeds. Rank 0 has the adjuster; its choice is a second collective, just as regular.

Shape letters: P parameters.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from timeloom.dist.collectives import Pending
from timeloom.dist.sync import Flags
from timeloom.errors import Diverged
from timeloom.plan.batch.rounds import Decision, Report, Rounds, pack, unpack, weight_of
from timeloom.plan.tune.adjuster import Observation
from timeloom.records import Averaged, Stepped
from timeloom.train.faults import named_by_all
from timeloom.train.goals.goal import Draw
from timeloom.train.hybrid.worker import HybridWorker
from timeloom.train.optim import gradient_norm, rate_in
from timeloom.train.trainer import Trainer

Clock = Callable[[], float]


@dataclass(frozen=True, slots=True)
class _Sent:
    """An average under way."""

    summed: Pending[Tensor]
    parameters_P: Tensor
    """As they were sent."""


class Apart:
    """It lives while a run trains."""

    def __init__(self, trainer: Trainer, worker: HybridWorker, clock: Clock) -> None:
        self._trainer, self._worker, self._clock = trainer, worker, clock
        session = trainer.session
        self._settings = session.settings.hybrid
        self.rounds = Rounds(self._settings, has_nodes=worker.has_nodes)
        chooses = session.world.rank == 0 and self._settings.adjuster != "fixed"
        self.adjuster = (
            self._settings.make_adjuster(worker.sizes, seed=session.settings.train.seed) if chooses else None
        )  # fmt: skip
        self._parameters = list(session.predictor.parameters())
        self._epoch_cells = self._settings.epoch_share * session.graph.num_nodes * session.split.train_stop
        self._sent: _Sent | None = None
        self._norm, self._noted = 0.0, (-1, 0)
        self.stopping = False
        """Some rank was asked to stop before the last round ended."""

    @property
    def epoch_is_over(self) -> bool:
        """Whether all ranks together went over as many targets as an epoch has."""
        return self._trainer.progress.nodes >= self._epoch_cells

    def round(self) -> Iterator[Stepped | Averaged]:
        """Collective. Train until the round is due, then agree; yield what came of it.

        After it all ranks have the same parameters where anything depends on that: where an epoch is over, or a run is
        to be saved or stopped. Else an overlapped average is still under way.
        """
        trainer, session = self._trainer, self._trainer.session
        session.world.begin_step(trainer.progress.step + 1)
        began = self._clock()
        self.rounds.begin(began)
        if self._settings.sync == "allreduce":
            self._step(together=True)
        while self._settings.sync != "allreduce" and not self.rounds.is_due(self._clock()):
            self._step(together=False)
        if self._settings.sync != "overlapped":
            yield from self._decided(self._average(), began)
            return
        if self._sent is not None:
            yield from self._decided(self._take_up(self._sent), began)
        if self.epoch_is_over or self.stopping or trainer.due:
            yield from self._decided(self._average(), began)
        else:
            parameters_P = self._flat()
            self._sent = _Sent(self._start(parameters_P), parameters_P)

    def _step(self, *, together: bool) -> None:
        """Learn from a batch; ``together``: collective, by the gradients of all ranks."""
        trainer, session, progress = self._trainer, self._trainer.session, self._trainer.progress
        began = self._clock()
        session.profile.begin()
        session.predictor.train()
        trainer.optimizer.zero_grad(set_to_none=True)
        draw = Draw(seed=session.settings.train.seed, epoch=progress.epoch)
        learnt = self._worker.learn((), draw, None)
        loss, weight = learnt.loss, learnt.weight
        if together:
            with session.profile.phase("communicate"):
                agreed = trainer.gradients.agree(weight, Flags(), loss=loss)
            loss, weight = agreed.loss * agreed.weight if agreed.weight else 0.0, agreed.weight
        elif weight:
            for parameter in self._parameters:
                if parameter.grad is not None:
                    parameter.grad.div_(weight)
        with session.profile.phase("other"):
            told = self._moved(loss / weight) if weight else None
        self.rounds.stepped(told, self._clock() - began, cells=self._worker.cells, edges=self._worker.edges)
        self._note()

    def _moved(self, loss: float) -> float:
        """Move the parameters by their gradients; return the loss, or nan where either is no number."""
        trainer, session = self._trainer, self._trainer.session
        self._norm = float(gradient_norm(self._parameters, session.settings.optim.clip))
        bad_input = session.feed.faults.first
        if bad_input or not (math.isfinite(loss) and math.isfinite(self._norm)):
            # All ranks hear of it when the round ends, and end with the same words.
            return math.nan
        for group in trainer.optimizer.param_groups:
            group["lr"] = self._rate
        trainer.optimizer.step()
        return loss

    @property
    def _rate(self) -> float:
        session, progress = self._trainer.session, self._trainer.progress
        return rate_in(session.settings.optim, progress.epoch, session.settings.train.epochs, progress.drops)

    def _note(self) -> None:
        """Remember what the step was spent on, for the first few steps of an epoch."""
        trainer, progress = self._trainer, self._trainer.progress
        epoch, count = self._noted
        self._noted = (progress.epoch, count + 1 if epoch == progress.epoch else 1)
        if self._noted[1] <= trainer.session.settings.train.spans:
            profile = trainer.session.profile
            trainer.spans.append((progress.step + 1, profile.began, profile.end()))

    def _average(self) -> Decision:
        """Collective. Replace the parameters by their average, and return what is decided."""
        averages = self._settings.sync != "allreduce"
        summed = self._start(self._flat() if averages else torch.empty(0, dtype=torch.float64)).finish()
        decision, averaged_P = self._decision(summed)
        if averaged_P is not None and averages:
            self._set(averaged_P)
        return decision

    def _take_up(self, sent: _Sent) -> Decision:
        """Collective. Take up an average that was started a round ago: move it by what was learnt meanwhile."""
        self._sent = None
        decision, averaged_P = self._decision(sent.summed.finish())
        if averaged_P is not None:
            self._set(averaged_P + (self._flat() - sent.parameters_P))
        return decision

    def _start(self, parameters_P: Tensor) -> Pending[Tensor]:
        """Collective. Begin to add up all ranks' parameters, by their weights, and their reports."""
        world, trainer = self._trainer.session.world, self._trainer
        mine = self.rounds.report(stop=trainer.session.should_stop(), save=trainer.is_due())
        weight = weight_of(mine, by_steps=self._settings.weigh_by_steps)
        report = torch.from_numpy(pack(mine, world.rank, world.size)).to(world.device)
        both = torch.cat([weight * parameters_P.to(world.device), report])
        return world.start_all_reduce(both, "average/round")

    def _decision(self, summed: Tensor) -> tuple[Decision, Tensor | None]:
        """Collective. Return what all ranks make of a round, and the average.

        None: nobody learnt, and all keep what they have.
        """
        world = self._trainer.session.world
        size = len(pack(Report(), world.rank, world.size))
        sums_P, reports = summed[: len(summed) - size], summed[len(summed) - size :]
        try:
            decision = self.rounds.take(unpack(reports.cpu().numpy()))
        except Diverged as error:
            # All ranks are here: the reports are the same on all of them.
            session = self._trainer.session
            what = named_by_all(world, session.feed.faults, session.predictor)
            raise Diverged(f"{error}{what and f'; {what}'}") from None
        return decision, sums_P / decision.total_weight if decision.total_weight else None

    def _flat(self) -> Tensor:
        """Return [P] all parameters, in double precision."""
        return torch.cat([parameter.detach().reshape(-1).double() for parameter in self._parameters])

    def _set(self, parameters_P: Tensor) -> None:
        parts = torch.split(parameters_P, [parameter.numel() for parameter in self._parameters])
        with torch.no_grad():
            for parameter, part in zip(self._parameters, parts, strict=True):
                parameter.copy_(part.view_as(parameter))

    def _decided(self, decision: Decision, began: float) -> Iterator[Stepped | Averaged]:
        """Collective. Choose the next batch size, note how far the run is, and tell it."""
        trainer, progress, size = self._trainer, self._trainer.progress, self._worker.action
        self._choose(decision)
        loss = math.nan if decision.loss is None else decision.loss
        progress.step += 1
        progress.losses.append(loss)
        progress.nodes += decision.cells
        progress.edges += decision.edges
        self.stopping, trainer.due = self.stopping or decision.stop, trainer.due or decision.save
        snapshots, nodes = self._shares(size)
        seconds = self._clock() - began
        yield Stepped(
            epoch=progress.epoch, step=progress.step, loss=loss, grad_norm=self._norm, learning_rate=self._rate,
            nodes=decision.cells, edges=decision.edges, seconds=seconds,
        )  # fmt: skip
        yield Averaged(
            epoch=progress.epoch, step=progress.step, snapshots=snapshots, nodes=nodes, steps=decision.steps, loss=loss,
            step_seconds=decision.step_seconds, seconds=seconds,
        )  # fmt: skip

    def _choose(self, decision: Decision) -> None:
        """Collective where sizes change. Let the first rank choose the next size, and all take it."""
        if self._settings.adjuster == "fixed":
            return
        action = self._worker.action
        if self.adjuster is not None and decision.loss is not None:
            action = self.adjuster.observe(Observation(loss=decision.loss, seconds=decision.step_seconds))
        told = self._trainer.session.world.broadcast(torch.tensor([action]), "control/action")
        self._worker.action = int(told)

    def _shares(self, action: int) -> tuple[float, float]:
        of_snapshots, of_nodes = divmod(action, len(self._settings.node_shares))
        return self._settings.snapshot_shares[of_snapshots], self._settings.node_shares[of_nodes]
