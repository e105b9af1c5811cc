"""Small runs of FlareDTDG, and what they are compared with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from tests.train.divided_runs import EXACT
from timeloom.config import build, merge
from timeloom.dist.collectives import World
from timeloom.graph.snapshot import Snapshot
from timeloom.graph.tasks import GraphLike
from timeloom.nn.model import PerNode, advance
from timeloom.plan.batch.order import Chunking, chunk_order
from timeloom.plan.batch.trapezoid import trapezoids_of_epoch
from timeloom.plan.types import Unit
from timeloom.systems import preset_of
from timeloom.train.feed import Scales
from timeloom.train.flare import epoch
from timeloom.train.goals.goal import Draw, Seen
from timeloom.train.localise import WholeView
from timeloom.train.session import Session, open_session
from timeloom.train.settings import RunSettings
from timeloom.train.walk import Carry, first_carry
from timeloom.train.worker import Worker
from timeloom.train.workers import make_worker

SMALL: dict[str, Any] = {key: table for key, table in EXACT.items() if key != "window"}
FLARE: dict[str, Any] = {"flare": {"full": 2, "decayed": 2, "chunks": 3, "alpha": 0.5}}


def flare_settings_of(*tables: dict[str, Any]) -> RunSettings:
    return build(RunSettings, merge(preset_of("flare").settings, SMALL, FLARE, *tables))


def plain_settings_of(*tables: dict[str, Any]) -> RunSettings:
    """Return the settings of one process that takes whole snapshots."""
    wanted = merge(SMALL, *tables)
    wanted.pop("flare", None)
    return build(RunSettings, wanted)


def units_of(settings: RunSettings, session: Session, number: int = 0) -> list[Unit]:
    """Return the windows of an epoch."""
    steps = trapezoids_of_epoch(
        settings.flare, session.split.train_stop, seed=settings.train.seed, epoch=number
    )  # fmt: skip
    return [unit for units in steps for unit in units]


def whole_units(units: Sequence[Unit]) -> list[Unit]:
    """Return the same windows without chunks, as other systems take them."""
    return [replace(unit, chunks=(), kept_from=()) for unit in units]


def seed_weights(session: Session) -> None:
    """Set the parameters to numbers that threads cannot mix up as they draw them."""
    rng = np.random.default_rng(5)
    with torch.no_grad():
        for parameter in session.predictor.parameters():
            parameter.copy_(torch.from_numpy(rng.normal(scale=0.3, size=tuple(parameter.shape))))


def gradients(
    settings: RunSettings, graph: GraphLike, units: Sequence[Unit] | None = None, *, world: World | None = None,
    number: int = 0, scales: Scales | None = None,
) -> list[tuple[float, dict[str, Tensor]]]:  # fmt: skip
    """Return loss and gradient after each window of an epoch; the parameters stay as they are."""
    session = open_session(settings, graph, world=world, scales=scales)
    seed_weights(session)
    worker: Worker = make_worker(session)
    session.predictor.train()
    carry: Carry | None = None
    found = []
    for unit in units_of(settings, session, number) if units is None else units:
        session.predictor.zero_grad(set_to_none=True)
        learnt = worker.learn((unit,), Draw(seed=0, epoch=number), carry)
        if unit.keep >= 0 or unit.kept_from:
            carry = learnt.kept
        grads = {
            name: parameter.grad.clone()
            for name, parameter in session.predictor.named_parameters()
            if parameter.grad is not None
        }
        found.append((learnt.loss, grads))
    return found


def assert_same_gradients(
    found: Sequence[tuple[float, dict[str, Tensor]]], wanted: Sequence[tuple[float, dict[str, Tensor]]]
) -> None:
    assert len(found) == len(wanted)
    for (loss, grads), (wanted_loss, wanted_grads) in zip(found, wanted, strict=True):
        np.testing.assert_allclose(loss, wanted_loss, rtol=1e-10, atol=1e-12)
        assert grads.keys() == wanted_grads.keys()
        for name, grad in wanted_grads.items():
            torch.testing.assert_close(grads[name], grad, rtol=1e-10, atol=1e-12)


def summed(ranks: Sequence[Sequence[tuple[float, dict[str, Tensor]]]]) -> list[tuple[float, dict[str, Tensor]]]:
    """Return the sum over ranks of the losses and gradients of each window."""
    found = []
    for parts in zip(*ranks, strict=True):
        grads: dict[str, Tensor] = {}
        for _, mine in parts:
            for name, grad in mine.items():
                grads[name] = grads[name] + grad if name in grads else grad
        found.append((sum(loss for loss, _ in parts), grads))
    return found


def chunked_as(patch: pytest.MonkeyPatch, chunking: Chunking) -> None:
    """Let nodes lie in these chunks, whatever was asked for."""
    patch.setattr(epoch, "chunking_of", lambda session: chunking)


def by_definition(
    settings: RunSettings, graph: GraphLike, chunking: Chunking, *, number: int = 0
) -> list[tuple[float, dict[str, Tensor]]]:
    """Return loss and gradient of each window as SPEC section 7 states it: all nodes, masks, and every state stored.

    Without `temporal_halo=exchange` snapshots that have shrunk lose their edges between owners.
    """
    session = open_session(plain_settings_of(*_tables(settings)), graph)
    seed_weights(session)
    model, goal = session.model, session.goal
    session.predictor.train()
    order = chunk_order(chunking, seed=settings.train.seed, epoch=number)
    place_N = order.place_Q[chunking.numbers]
    stored: dict[int, Carry] = {}
    found = []
    for unit in units_of(settings, session, number):
        session.predictor.zero_grad(set_to_none=True)
        stored = {} if unit.fresh else stored
        start, now, losses = first_carry(model, session.feed), dict[int, Carry](), []
        for place, t in enumerate(range(unit.first, unit.last)):
            chosen_N = place_N < unit.chunks[place] * chunking.num_owners
            kept = stored.get(t - 1, start)
            before = now.get(t - 1, kept)
            shrunk = unit.chunks[place] < settings.flare.chunks
            masked = induced(graph.snapshot(t), chosen_N, None if exchanges(settings, shrunk) else chunking.owner_N)
            view = WholeView(masked, dtype=session.feed.dtype, device=session.device)
            before = Carry(
                tuple(part if isinstance(slot, PerNode) or place else slot.start
                      for slot, part in zip(model.memory(), before.state, strict=True)),
                before.out_NH, before.born_N,
            )  # fmt: skip
            hold = settings.model.absent == "hold"
            out_NH, state = advance(model, view, session.feed.rows(t), before.state, hold=hold)
            alive_N = torch.from_numpy(graph.snapshot(t).alive)
            born_N = before.born_N | alive_N
            here_N = alive_N if hold else born_N
            shown_NH = torch.where(here_N[:, None], out_NH, before.out_NH)
            # Nodes outside the block go on as they were stored.
            mask_N, old = torch.from_numpy(chosen_N), stored.get(t, start)
            now[t] = Carry(
                tuple(_rows_where(mask_N, new, was) if isinstance(slot, PerNode) else new
                      for slot, new, was in zip(model.memory(), state, old.state, strict=True)),
                _rows_where(mask_N, shown_NH, old.out_NH), torch.where(mask_N, born_N, old.born_N),
            )  # fmt: skip
            if t in unit.targets:
                seen = Seen(t, _rows_where(mask_N, shown_NH, torch.zeros_like(shown_NH)), born_N & mask_N)
                losses.append(goal.loss(session.head, seen, Draw(seed=0, epoch=number)))
        told = [loss.total / loss.count for loss in losses if loss is not None]
        mean = torch.stack(told).mean() if told else torch.zeros(())
        if told:
            mean.backward()  # type: ignore[no-untyped-call]
        stored = {t: Carry(tuple(p.detach() for p in one.state), one.out_NH.detach(), one.born_N)
                  for t, one in now.items()} if settings.flare.state == "inherit" else {}  # fmt: skip
        grads = {name: p.grad.clone() for name, p in session.predictor.named_parameters() if p.grad is not None}
        found.append((float(mean.detach()), grads))
    return found


def _tables(settings: RunSettings) -> list[dict[str, Any]]:
    model = settings.model
    return [{"model": {"name": model.name, "layers": model.layers, "absent": model.absent}}]


def exchanges(settings: RunSettings, shrunk: bool) -> bool:
    return not shrunk or settings.flare.temporal_halo == "exchange"


def _rows_where(mask_N: Tensor, new: Tensor, old: Tensor) -> Tensor:
    return torch.where(mask_N.view(-1, *[1] * (new.dim() - 1)), new, old)


def induced(snapshot: Snapshot, chosen_N: NDArray[np.bool_], owner_N: NDArray[np.int32] | None) -> Snapshot:
    """Return the edges between chosen nodes, and of those between nodes of one owner where owners are given."""
    sources, targets = snapshot.sources, snapshot.targets
    kept = chosen_N[sources] & chosen_N[targets]
    if owner_N is not None:
        kept &= owner_N[sources] == owner_N[targets]
    weights = None if snapshot.stored_weights is None else snapshot.stored_weights[kept]
    return replace(snapshot, keys=snapshot.keys[kept], stored_weights=weights, alive=snapshot.alive & chosen_N)
