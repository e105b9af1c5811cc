"""Short histories of small graphs, and models that are taken over them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace

import numpy as np
import torch
from torch import Tensor

from tests.kernels.graphs import edge_list, snapshot_of
from tests.nn.reference import Choices, Moment
from timeloom.nn.model import Model, State, advance, start
from timeloom.nn.models import make_model
from timeloom.nn.settings import ModelSettings
from timeloom.train.localise import WholeView

KINDS = (
    "unweighted", "weighted", "negative", "parallel", "self loops", "isolated", "empty", "coming and going", "one node",
    "one node, alone", "few", "all of it",
)  # fmt: skip


def scene(kind: str, *, num_features: int = 3, num_snapshots: int = 5, seed: int = 0) -> list[Moment]:
    """Return a history of graphs of a kind; edges join nodes that are there, and features change."""
    rng = np.random.default_rng([seed, *kind.encode()])
    num_nodes = 1 if kind.startswith("one node") else 7
    return [_moment(kind, num_nodes, num_features, rng, t) for t in range(num_snapshots)]


def _moment(kind: str, num_nodes: int, num_features: int, rng: np.random.Generator, t: int) -> Moment:
    alive = _alive(kind, num_nodes, t)
    joined = [v for v, here in enumerate(alive) if here and not (kind in ("isolated", "all of it") and v == 5)]
    edges = []
    for u in joined:
        for v in joined:
            loops = kind in ("self loops", "all of it", "one node")
            copies = rng.integers(1, 4) if kind in ("parallel", "all of it") else 1
            if rng.random() < 0.35 and (u != v or loops):
                edges += [(u, v, _weight(kind, rng)) for _ in range(copies)]
    if kind in ("empty", "one node, alone") or (kind in ("coming and going", "all of it") and t == 2):
        edges = []
    if kind == "one node":
        edges = [(0, 0, 1.0 + t)]
    return Moment(edges=tuple(edges), alive=alive, x=torch.from_numpy(rng.normal(size=(num_nodes, num_features))))


def _alive(kind: str, num_nodes: int, t: int) -> tuple[bool, ...]:
    if kind in ("coming and going", "all of it"):
        # Node 0 goes and returns, 1 is born late, 2 never is, 3 goes for good.
        there = {0: t in (0, 1, 3), 1: t >= 3, 2: False, 3: t < 2}
        return tuple(there.get(v, True) for v in range(num_nodes))
    if kind == "few":
        return tuple(v <= t % 3 and t != 3 for v in range(num_nodes))
    return (True,) * num_nodes


def _weight(kind: str, rng: np.random.Generator) -> float:
    if kind == "negative":
        return float(rng.choice([-1.0, 1.0]) * rng.uniform(0.2, 2))
    return float(rng.uniform(0.2, 2)) if kind in ("weighted", "coming and going", "parallel", "all of it") else 1.0


def view_of(moment: Moment, t: int, dtype: torch.dtype = torch.float64) -> WholeView:
    """Return what a model is given of a moment."""
    weights = [weight for _, _, weight in moment.edges]
    given = None if all(weight == 1.0 for weight in weights) else weights
    snapshot = snapshot_of(edge_list([edge[:2] for edge in moment.edges], given, list(moment.alive)))
    return WholeView(replace(snapshot, t=t), dtype=dtype, device=torch.device("cpu"))


def settings_of(name: str, choices: Choices) -> ModelSettings:
    """Return the settings that make these choices."""
    return replace(ModelSettings(name=name), **asdict(choices))


def made(name: str, num_in: int, choices: Choices, *, seed: int = 0) -> Model:
    """Return a model in double precision whose every parameter is drawn anew: no bias that is 0 hides a mistake."""
    model = make_model(num_in, settings_of(name, choices)).double()
    rng = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(0.5 * torch.randn(parameter.shape, generator=rng, dtype=torch.float64))
    return model


def over(
    model: Model, moments: Sequence[Moment], *, hold: bool = True, state: State | None = None
) -> tuple[list[Tensor], State]:
    """Take a model over a history; return its outputs and its last state."""
    dtype = next(model.parameters()).dtype
    like = moments[0].x.to(dtype)
    state = start(model.memory(), len(like), like) if state is None else state
    outs = []
    for t, moment in enumerate(moments):
        out, state = advance(model, view_of(moment, t, dtype), moment.x.to(dtype), state, hold=hold)
        outs.append(out)
    return outs, state
