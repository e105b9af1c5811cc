"""Training computes what is written down here in plain torch, and goes by validation alone."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.train.small_runs import drift, graph_of, history, of_kind, random_snapshots, same_bits, saved, small
from timeloom.cli import run as cli_run
from timeloom.config import build, merge
from timeloom.errors import BadConfig, Diverged, TooLarge
from timeloom.graph.dynamic import open_graph
from timeloom.plan.batch.windows import WindowSettings, training_windows
from timeloom.plan.types import Unit
from timeloom.records import Record
from timeloom.train import checkpoint, loop
from timeloom.train.feed import Feed
from timeloom.train.goals.goal import Draw
from timeloom.train.optim import rate_in
from timeloom.train.runs import resume, train
from timeloom.train.session import open_session, unit_randomness
from timeloom.train.settings import OptimSettings, RunSettings
from timeloom.train.trainer import Trainer

# Node 2 is absent in snapshots 2 and 5, node 3 is born in snapshot 2 and absent in 6; six snapshots are for training.
SNAPSHOTS = [
    [(0, 1), (1, 2)], [(1, 2), (2, 0), (0, 2)], [(0, 1), (3, 0)], [(3, 2), (0, 2), (1, 2)], [(1, 0), (2, 3)],
    [(0, 3), (3, 1), (1, 0)], [(2, 1), (0, 1)], [(3, 2), (2, 0), (1, 3)], [(0, 3)],
]  # fmt: skip
NUM_NODES, TRAINED = 4, 6
EXACT: dict[str, Any] = {
    "model": {"name": "gcn_gru", "hidden": 3, "norm": "mean"},
    "inputs": {"features": "degree", "scale": "none"},
    "task": {"residual": False},
    "train": {"precision": "float64", "log_steps": True, "epochs": 2},
    "window": {"length": 2},
    "optim": {"name": "sgd", "rate": 0.1, "momentum": 0.0, "clip": 0.0},
}
Params = dict[str, Tensor]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A graph of four nodes."""
    return graph_of(tmp_path_factory.mktemp("graphs") / "tiny", SNAPSHOTS)


@pytest.fixture(scope="module")
def drifting(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A graph of 24 nodes."""
    return drift(tmp_path_factory.mktemp("graphs") / "drift")


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Leave torch with one thread."""
    yield
    torch.set_num_threads(1)


def adjacency(t: int) -> Tensor:
    """Return [v, u] = 1 for every edge u -> v."""
    matrix = torch.zeros(NUM_NODES, NUM_NODES, dtype=torch.float64)
    for u, v in SNAPSHOTS[t]:
        matrix[v, u] = 1.0
    return matrix


def alive(t: int) -> Tensor:
    there = torch.zeros(NUM_NODES, dtype=torch.bool)
    there[[node for edge in SNAPSHOTS[t] for node in edge]] = True
    return there


def label(t: int) -> Tensor:
    return torch.log1p(adjacency(t).sum(1))


def one_snapshot(p: Params, t: int, h: Tensor) -> Tensor:
    """Return the new state of a graph convolution (mean, self loops) and a GRU; absent nodes keep theirs."""
    loops = adjacency(t) + torch.diag(alive(t).double())
    mean = loops / loops.sum(1).clamp(min=1.0)[:, None]
    x = torch.stack([adjacency(t).sum(1), adjacency(t).sum(0)], 1)
    z = torch.relu(mean @ x @ p["model.convolution.weight"] + p["model.convolution.bias"])
    see = (z @ p["model.gru.weight_in"] + p["model.gru.bias_in"]).chunk(3, 1)
    was = (h @ p["model.gru.weight_h"].t() + p["model.gru.bias_h"]).chunk(3, 1)
    reset, update = torch.sigmoid(see[0] + was[0]), torch.sigmoid(see[1] + was[1])
    new = (1 - update) * torch.tanh(see[2] + reset * was[2]) + update * h
    return torch.where(alive(t)[:, None], new, h)


def target_scale() -> tuple[Tensor, Tensor]:
    """Return mean and deviation of the labels to be predicted in training, of nodes that are there."""
    told = torch.cat([label(t + 1)[alive(t)] for t in range(TRAINED)])
    return told.mean(), told.std(correction=0)


def loss_at(p: Params, t: int, h: Tensor, since: int) -> Tensor:
    """Return the mean square error of active nodes that were there since a snapshot."""
    born = torch.stack([alive(s) for s in range(since, t + 1)]).any(0)
    counts = (alive(t) | alive(t + 1)) & born
    mean, deviation = target_scale()
    told = (h @ p["head.linear.weight"].t() + p["head.linear.bias"])[:, 0]
    return torch.square(told - (label(t + 1) - mean) / deviation)[counts].mean()


def window_loss(
    p: Params, first: int, last: int, targets: range, h: Tensor, since: int = 0
) -> tuple[Tensor, list[Tensor]]:
    """Return the loss of a window and the state after each of its snapshots; it knows of nodes since a snapshot."""
    losses, states = [], []
    for t in range(first, last):
        h = one_snapshot(p, t, h)
        states.append(h)
        if t in targets:
            losses.append(loss_at(p, t, h, since))
    return torch.stack(losses).mean(), states


Update = Callable[[Params, dict[str, Tensor], dict[str, dict[str, Tensor]], int], Params]


def sgd(p: Params, g: Params, memory: dict[str, Params], step: int, *, momentum: float, decay: float = 0.0) -> Params:
    after = {}
    for name in p:
        gradient = g[name] + decay * p[name]
        memory.setdefault(name, {})["m"] = momentum * memory.get(name, {}).get("m", torch.zeros(())) + gradient
        after[name] = p[name] - 0.1 * memory[name]["m"]
    return after


def adam(p: Params, g: Params, memory: dict[str, Params], step: int, *, decay: float, apart: bool) -> Params:
    after = {}
    for name in p:
        kept = memory.setdefault(name, {"m": torch.zeros(()), "v": torch.zeros(())})
        gradient = g[name] if apart else g[name] + decay * p[name]
        start = p[name] * (1 - 0.1 * decay) if apart else p[name]
        kept["m"] = 0.9 * kept["m"] + 0.1 * gradient
        kept["v"] = 0.999 * kept["v"] + 0.001 * gradient**2
        m, v = kept["m"] / (1 - 0.9**step), kept["v"] / (1 - 0.999**step)
        after[name] = start - 0.1 * m / (v.sqrt() + 1e-8)
    return after


def written_out(
    start: Params, *, length: int, stride: int, state: str, targets: str, clip: float, update: Update,
) -> tuple[list[float], list[float], Params]:  # fmt: skip
    """Return the losses and the norms of the gradients of two epochs, and the parameters after them."""
    p, memory, losses, norms = {name: value.clone() for name, value in start.items()}, {}, [], []
    memory = dict[str, dict[str, Tensor]]()
    for _ in range(2):
        first, h = 0, torch.zeros(NUM_NODES, 3, dtype=torch.float64)
        while state == "inherit" or first + length <= TRAINED:
            last = min(first + length, TRAINED)
            for value in p.values():
                value.requires_grad_()
            asked = range(first, last) if targets == "all" else range(last - 1, last)
            if state == "zero":
                h = torch.zeros_like(h)
            loss, states = window_loss(p, first, last, asked, h, first if state == "zero" else 0)
            g = dict(zip(p, torch.autograd.grad(loss, list(p.values())), strict=True))
            norms.append(math.sqrt(sum(float(one.square().sum()) for one in g.values())))
            losses.append(float(loss.detach()))
            share = min(1.0, clip / (norms[-1] + 1e-6)) if clip else 1.0
            g = {name: one * share for name, one in g.items()}
            p = update({name: value.detach() for name, value in p.items()}, g, memory, len(losses))
            if last == TRAINED and state == "inherit":
                break
            # Here backpropagation is cut: the next window starts from a number.
            h = states[min(stride, last - first) - 1].detach()
            first += stride
    return losses, norms, p


CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "inherit": ({}, {}),
    "inherit, overlapping": ({"window": {"length": 3, "stride": 1}}, {"length": 3, "stride": 1}),
    "inherit, last": ({"window": {"length": 4, "stride": 2, "targets": "last"}}, {"length": 4, "targets": "last"}),
    "a shorter last window": ({"window": {"length": 4}}, {"length": 4, "stride": 4}),
    "one window": ({"window": {"length": 99}}, {"length": 99, "stride": 99}),
    "zero": ({"window": {"state": "zero", "length": 3, "shuffle": False}}, {"length": 3, "stride": 1, "state": "zero"}),
    "zero, last, strided": (
        {"window": {"state": "zero", "stride": 3, "targets": "last", "shuffle": False}},
        {"stride": 3, "state": "zero", "targets": "last"},
    ),
    "clipped": ({"optim": {"clip": 0.05}}, {"clip": 0.05}),
    "not clipped": ({"optim": {"clip": 1e6}}, {"clip": 1e6}),
    "momentum": (
        {"optim": {"momentum": 0.8, "weight_decay": 0.2}},
        {"update": lambda p, g, m, n: sgd(p, g, m, n, momentum=0.8, decay=0.2)},
    ),
    "adam": (
        {"optim": {"name": "adam", "weight_decay": 0.2}},
        {"update": lambda p, g, m, n: adam(p, g, m, n, decay=0.2, apart=False)},
    ),
    "adamw": (
        {"optim": {"name": "adamw", "weight_decay": 0.2}},
        {"update": lambda p, g, m, n: adam(p, g, m, n, decay=0.2, apart=True)},
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_two_epochs_equal_a_calculation_written_out(tiny: Path, tmp_path: Path, case: str) -> None:
    changes, asked = CASES[case]
    settings = small(EXACT, changes)
    session = open_session(build(RunSettings, merge(settings, {"graph": str(tiny)})), open_graph(tiny))
    assert session.split.train_stop == TRAINED
    train(tiny, tmp_path / "run", settings)
    plain = {"length": 2, "stride": 2, "state": "inherit", "targets": "all", "clip": 0.0}
    losses, norms, after = written_out(
        session.predictor.state_dict(),
        **{**plain, "update": lambda p, g, m, n: sgd(p, g, m, n, momentum=0.0), **asked},
    )
    steps = of_kind(tmp_path / "run", "stepped")
    assert [step["loss"] for step in steps] == pytest.approx(losses, rel=1e-11)
    assert [step["grad_norm"] for step in steps] == pytest.approx(norms, rel=1e-9)
    if case == "clipped":
        assert min(norms) > 0.05
    found = saved(tmp_path / "run").tensors
    for name, value in after.items():
        torch.testing.assert_close(found[f"now/{name}"], value.detach(), rtol=1e-10, atol=1e-12)
    epochs = of_kind(tmp_path / "run", "epoch_ended")
    half = len(losses) // 2
    assert [epoch["loss"] for epoch in epochs] == pytest.approx([np.mean(losses[:half]), np.mean(losses[half:])])


def test_the_written_out_gradient_depends_on_where_it_is_cut(tiny: Path) -> None:
    """Were the state not detached at a window's edge, the test above would see it."""
    session = open_session(build(RunSettings, merge(small(EXACT), {"graph": str(tiny)})), open_graph(tiny))
    p = {name: value.clone().requires_grad_() for name, value in session.predictor.state_dict().items()}
    _, states = window_loss(p, 0, 2, range(2), torch.zeros(NUM_NODES, 3, dtype=torch.float64))
    through, _ = window_loss(p, 2, 4, range(2, 4), states[-1])
    cut, _ = window_loss(p, 2, 4, range(2, 4), states[-1].detach())
    name = "model.gru.weight_in"
    (whole,) = torch.autograd.grad(through, [p[name]], retain_graph=True)
    (part,) = torch.autograd.grad(cut, [p[name]])
    assert float((whole - part).abs().max()) > 1e-3


def test_the_state_that_is_inherited_is_kept_from_before_the_update(tiny: Path, tmp_path: Path) -> None:
    """Window 2 starts from what window 1 computed with the parameters it had (SPEC section 1)."""
    train(tiny, tmp_path / "run", small(EXACT, {"train": {"epochs": 1, "save_seconds": 0.0, "keep": 9}}))
    session = open_session(build(RunSettings, merge(small(EXACT), {"graph": str(tiny)})), open_graph(tiny))
    first = session.predictor.state_dict()
    _, states = window_loss(first, 0, 2, range(2), torch.zeros(NUM_NODES, 3, dtype=torch.float64))
    found = checkpoint.load(tmp_path / "run" / "checkpoints", "epoch-000000-step-000001").tensors
    torch.testing.assert_close(found["carry/000"], states[-1])
    torch.testing.assert_close(found["carry/001"], states[-1])
    assert found["carry/002"].tolist() == [True, True, True, False]


@pytest.mark.parametrize(
    ("given", "formula"),
    [
        ({}, lambda epoch: 0.4),
        ({"schedule": "cosine"}, lambda epoch: 0.4 * (1 + math.cos(math.pi * epoch / 10)) / 2),
        ({"schedule": "step", "step_epochs": 3, "factor": 0.5}, lambda epoch: 0.4 * 0.5 ** (epoch // 3)),
        ({"warmup_epochs": 3}, lambda epoch: 0.4 * min(epoch + 1, 4) / 4),
        (
            {"warmup_epochs": 2, "schedule": "cosine"},
            lambda epoch: 0.4 * ((epoch + 1) / 3 if epoch < 2 else (1 + math.cos(math.pi * (epoch - 2) / 8)) / 2),
        ),
        (
            {"warmup_epochs": 2, "schedule": "step", "step_epochs": 4, "factor": 0.1},
            lambda epoch: 0.4 * ((epoch + 1) / 3 if epoch < 2 else 0.1 ** ((epoch - 2) // 4)),
        ),
    ],
)
def test_the_rate_follows_its_formula(
    tiny: Path, tmp_path: Path, given: dict[str, Any], formula: Callable[[int], float]
) -> None:
    settings = small(EXACT, {"train": {"epochs": 10, "patience": 0}, "optim": {"rate": 0.4, **given}})
    train(tiny, tmp_path / "run", settings)
    wanted = [formula(epoch) for epoch in range(10)]
    assert [epoch["learning_rate"] for epoch in of_kind(tmp_path / "run", "epoch_ended")] == pytest.approx(wanted)
    by_step = [of_kind(tmp_path / "run", "stepped", epoch=epoch) for epoch in range(10)]
    assert all(step["learning_rate"] == pytest.approx(wanted[step["epoch"]]) for steps in by_step for step in steps)
    assert all(len(steps) == 3 for steps in by_step)
    chosen = OptimSettings(rate=0.4, **given)
    assert [rate_in(chosen, epoch, 10, 0) for epoch in range(10)] == pytest.approx(wanted)


def validated_as(monkeypatch: pytest.MonkeyPatch, values: list[float]) -> None:
    """Let validations come out so; the test, which comes last, as 0."""
    told = iter([*values, *[0.0] * 2])
    monkeypatch.setattr(loop, "evaluate", lambda session, part: {"mse": next(told)})


def test_a_standstill_of_validation_lowers_the_rate(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    validated_as(monkeypatch, [5.0, 6.0, 4.0, 4.0, 7.0, 8.0, 9.0, 3.0, 3.5, 3.6])
    optim = {"schedule": "plateau", "step_epochs": 2, "factor": 0.5, "rate": 0.4}
    train(tiny, tmp_path / "run", small(EXACT, {"train": {"epochs": 10, "patience": 0}, "optim": optim}))
    # Validation stood still in epochs 3 and 4, then 5 and 6, then 8 and 9.
    wanted = [0.4] * 5 + [0.2] * 2 + [0.1] * 3
    assert [epoch["learning_rate"] for epoch in of_kind(tmp_path / "run", "epoch_ended")] == pytest.approx(wanted)
    rates = [of_kind(tmp_path / "run", "stepped", epoch=epoch)[0]["learning_rate"] for epoch in range(10)]
    assert rates == pytest.approx(wanted)
    assert saved(tmp_path / "run").state["progress"]["drops"] == 3


@pytest.mark.parametrize(
    ("every", "patience", "epochs", "reason", "best"),
    [(1, 3, 6, "patience", 2), (1, 0, 8, "epochs", 7), (2, 4, 8, "epochs", 7), (1, 4, 7, "patience", 2)],
)
def test_training_stops_when_validation_has_not_improved_for_long(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, every: int, patience: int, epochs: int, reason: str,
    best: int,
) -> None:  # fmt: skip
    by_epoch = [5.0, 6.0, 4.0, 4.0, math.nan, 8.0, 4.5, 3.0]
    validated_as(monkeypatch, by_epoch[every - 1 :: every])
    chosen = {"epochs": 8, "patience": patience, "validate_every": every, "save_seconds": 0.0, "keep": 99}
    result = train(tiny, tmp_path / "run", small(EXACT, {"train": chosen}))
    (ended,) = of_kind(tmp_path / "run", "ended")
    assert ended == {"kind": "ended", "reason": reason, "epochs": epochs, "best_epoch": best}
    assert result.best_epoch == best
    assert len(of_kind(tmp_path / "run", "evaluated", split="val")) == epochs // every
    assert [record["epoch"] for record in of_kind(tmp_path / "run", "evaluated", split="test")] == [best]


def test_the_best_parameters_are_those_of_the_best_epoch_and_they_are_tested(
    drifting: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = small({"train": {"epochs": 3, "patience": 0}, "optim": {"rate": 0.05}})
    result = train(drifting, tmp_path / "three", settings)
    validated_as(monkeypatch, [5.0, 6.0, 7.0])
    train(drifting, tmp_path / "first", settings)
    monkeypatch.undo()
    train(drifting, tmp_path / "one", merge(settings, {"train": {"epochs": 1}}))
    first, one = saved(tmp_path / "first").tensors, saved(tmp_path / "one").tensors
    assert all(first[name.replace("now/", "best/")].equal(one[name]) for name in one if name.startswith("now/"))
    assert same_bits(
        {name: value for name, value in first.items() if name.startswith("now/")},
        {name: value for name, value in saved(tmp_path / "three").tensors.items() if name.startswith("now/")},
    )
    assert result.scores != train(drifting, tmp_path / "again", merge(settings, {"train": {"epochs": 1}})).scores


def with_other(snapshots: list[list[tuple[int, int]]], after: int) -> list[list[tuple[int, int]]]:
    """Return the same snapshots up to one, and others after it."""
    others = random_snapshots(12, 30, len(snapshots), seed=99)
    return [edges if t <= after else others[t] for t, edges in enumerate(snapshots)]


def test_nothing_but_the_test_depends_on_labels_of_the_test(tmp_path: Path) -> None:
    snapshots = random_snapshots(12, 30, 14)
    # 13 predictions: 9 for training, 2 for validation (labels of snapshots 10 and 11), 2 for the test.
    settings = small({"train": {"epochs": 8, "patience": 2}, "optim": {"rate": 0.2}})
    graph_of(tmp_path / "a", snapshots)
    graph_of(tmp_path / "b", with_other(snapshots, 11))
    for name in "ab":
        train(tmp_path / name, tmp_path / f"run-{name}", {**settings, "graph": "g"})
    a, b = history(tmp_path / "run-a"), history(tmp_path / "run-b")
    differing = [(left, right) for left, right in zip(a, b, strict=True) if left != right]
    kinds = [(left["kind"], left.get("split")) for left, _ in differing]
    assert kinds == [("started", None), ("graph_facts", None), ("evaluated", "test"), ("predicted", "test")]
    assert {**differing[0][0], "graph": ""} == {**differing[0][1], "graph": ""}
    assert same_bits(saved(tmp_path / "run-a").tensors, saved(tmp_path / "run-b").tensors)


def test_no_parameter_depends_on_labels_of_validation(tmp_path: Path) -> None:
    snapshots = random_snapshots(12, 30, 14)
    settings = small({"train": {"epochs": 4, "patience": 0}})
    graph_of(tmp_path / "a", snapshots)
    graph_of(tmp_path / "b", with_other(snapshots, 9))
    for name in "ab":
        train(tmp_path / name, tmp_path / f"run-{name}", settings)
    now = [
        {name: one for name, one in saved(tmp_path / f"run-{which}").tensors.items() if not name.startswith("best")}
        for which in "ab"
    ]
    assert same_bits(*now)
    assert of_kind(tmp_path / "run-a", "epoch_ended") == of_kind(tmp_path / "run-b", "epoch_ended")
    assert of_kind(tmp_path / "run-a", "evaluated") != of_kind(tmp_path / "run-b", "evaluated")


DROPPING: dict[str, Any] = {"model": {"name": "mpnn_lstm", "layers": 2, "dropout": 0.4}}


@pytest.mark.parametrize("changes", [{}, DROPPING, {"window": {"state": "zero"}}, {"task": {"name": "links"}}])
def test_the_same_seed_gives_the_same_bits_and_another_seed_others(
    drifting: Path, tmp_path: Path, changes: dict[str, Any]
) -> None:
    for name, seed, stray in (("a", 5, 1), ("b", 5, 2), ("c", 6, 1)):
        torch.manual_seed(stray)
        before = torch.get_rng_state()
        train(drifting, tmp_path / name, small({"train": {"seed": seed}}, changes))
        assert torch.equal(torch.get_rng_state(), before), "the global generator is as it was"
    assert history(tmp_path / "a") == history(tmp_path / "b")
    assert same_bits(saved(tmp_path / "a").tensors, saved(tmp_path / "b").tensors)
    assert of_kind(tmp_path / "a", "epoch_ended") != of_kind(tmp_path / "c", "epoch_ended")


def test_dropout_is_keyed_by_seed_epoch_and_window(drifting: Path, tmp_path: Path) -> None:
    def drawn(seed: int, epoch: int, first: int) -> bytes:
        chosen = build(RunSettings, small({"graph": str(drifting), "train": {"seed": seed}}))
        unit = Unit(first=first, last=4, targets=(3,), fresh=True)
        with unit_randomness(open_session(chosen, open_graph(drifting)), Draw(seed=seed, epoch=epoch), unit):
            return torch.rand(8).numpy().tobytes()

    keys = [(seed, epoch, first) for seed in (0, 1) for epoch in (0, 1) for first in (0, 1)]
    assert len({drawn(*key) for key in keys}) == len(keys)
    assert [drawn(*key) for key in keys] == [drawn(*key) for key in keys]
    for dropout in (0.0, 0.5):
        train(drifting, tmp_path / str(dropout), small({"model": {"dropout": dropout}, "train": {"log_steps": True}}))
    kept, dropped = (of_kind(tmp_path / str(dropout), "stepped")[0]["loss"] for dropout in (0.0, 0.5))
    assert kept != dropped


@pytest.mark.parametrize("changes", [{}, {"task": {"name": "classes"}}, {"window": {"state": "zero"}}])
def test_nothing_changes_where_snapshots_are_read_again_and_again(
    drifting: Path, tmp_path: Path, changes: dict[str, Any]
) -> None:
    for size in (0, 4000, 10**9):
        train(drifting, tmp_path / str(size), small({"train": {"cache_bytes": size}}, changes))
    for size in (0, 4000):
        assert history(tmp_path / str(size)) == history(tmp_path / str(10**9))
        assert same_bits(saved(tmp_path / str(size)).tensors, saved(tmp_path / str(10**9)).tensors)


def test_threads_are_as_many_as_asked_for_and_change_nothing_much(drifting: Path, tmp_path: Path) -> None:
    for threads in (1, 2):
        train(drifting, tmp_path / str(threads), small({"train": {"threads": threads}}))
        assert torch.get_num_threads() == threads
        assert of_kind(tmp_path / str(threads), "started")[0]["derived"]["threads"] == threads
    one, two = (of_kind(tmp_path / str(threads), "epoch_ended")[-1]["loss"] for threads in (1, 2))
    assert one == pytest.approx(two, rel=1e-4)


def test_precisions_are_near_each_other_and_what_they_say(drifting: Path, tmp_path: Path) -> None:
    losses = {}
    for precision in ("float64", "float32", "bf16"):
        settings = small({"train": {"precision": precision, "epochs": 5}, "model": {"hidden": 8}})
        result = train(drifting, tmp_path / precision, settings)
        losses[precision] = [epoch["loss"] for epoch in of_kind(tmp_path / precision, "epoch_ended")]
        assert all(math.isfinite(score) for score in result.scores.values())
        wanted = torch.float64 if precision == "float64" else torch.float32
        tensors = saved(tmp_path / precision).tensors
        assert {value.dtype for name, value in tensors.items() if name.startswith("now/")} == {wanted}
    assert losses["float32"] == pytest.approx(losses["float64"], rel=1e-4)
    assert losses["bf16"] == pytest.approx(losses["float32"], rel=0.03)
    assert losses["bf16"] != losses["float32"]
    assert all(last[-1] < last[0] for last in losses.values())


def test_under_bf16_what_is_carried_between_windows_is_not_rounded(drifting: Path, tmp_path: Path) -> None:
    settings = small({"train": {"precision": "bf16", "save_seconds": 0.0, "keep": 99, "epochs": 1}})
    train(drifting, tmp_path / "run", settings)
    carried = checkpoint.load(tmp_path / "run" / "checkpoints", "epoch-000000-step-000001").tensors["carry/000"]
    assert carried.dtype == torch.float32


def test_the_loss_goes_down_and_persistence_is_beaten(tmp_path: Path) -> None:
    graph = drift(tmp_path / "g", num_nodes=200, num_edges=1000, num_snapshots=40, num_communities=4, lag=3)
    result = train(graph, tmp_path / "run", small({"train": {"epochs": 12}, "model": {"hidden": 16}}))
    losses = [epoch["loss"] for epoch in of_kind(tmp_path / "run", "epoch_ended")]
    assert losses[-1] < 0.9 * losses[0]
    assert result.scores["mse"] < 0.8 * result.baselines["persistence"]["mse"]
    assert result.scores["mse"] < result.baselines["mean"]["mse"]


EXPLOSIVE: dict[str, Any] = {
    "optim": {"name": "sgd", "rate": 99.0, "clip": 0.0},
    "train": {"epochs": 200, "patience": 0, "save_seconds": 0.0},
}


def test_a_loss_that_is_no_number_ends_the_run_and_changes_no_parameter(
    drifting: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(Diverged, match=r"step \d+ \(epoch \d+, snapshots \d to \d\) diverged.*optim.rate \(now 99\)"):
        train(drifting, tmp_path / "run", small(EXPLOSIVE))
    assert all(bool(value.isfinite().all()) for name, value in saved(tmp_path / "run").tensors.items() if "now" in name)
    with pytest.raises(Diverged, match=r"the parameters are as they were before it"):
        resume(tmp_path / "run")
    sets = [
        f"--set={table}.{key}={value}"
        for table, keys in small(EXPLOSIVE).items()
        for key, value in keys.items()
    ]  # fmt: skip
    assert cli_run(["train", str(drifting), "--out", str(tmp_path / "again"), "--quiet", *sets]) == 7
    told = capsys.readouterr().err
    assert told.startswith("timeloom: step ")
    assert told.count("\n") == 1


@pytest.mark.parametrize("what", ["rows", "label"])
def test_the_snapshots_of_a_loss_that_is_no_number_are_named(
    drifting: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    true = getattr(Feed, what)

    def spoilt(feed: Feed, t: int) -> Any:
        return true(feed, t) + (float("inf") if t == 4 and feed.scales is not None else 0.0)

    monkeypatch.setattr(Feed, what, spoilt)
    # Inputs of snapshot 4 are of the second window, its labels belong to the prediction after snapshot 3.
    with pytest.raises(Diverged, match=r"step 2 \(epoch 0, snapshots 3 to 5\) diverged: the loss was (nan|inf)"):
        train(drifting, tmp_path / "run", small({"task": {"residual": False}}))


SPIKY = '''
import torch
from timeloom import Model
class Spiky(Model):
    """The root of a parameter that is 0 has no gradient there."""
    def __init__(self, num_in, settings):
        super().__init__()
        self.out_size = num_in
        self.spike = torch.nn.Parameter(torch.zeros(num_in))
    def memory(self):
        return ()
    def encode(self, view, x_NF):
        return (x_NF,)
    def recur(self, view, rows, state):
        return rows[0] * torch.sqrt(self.spike * self.spike) + rows[0], ()
'''


def test_a_gradient_that_is_no_number_is_named(drifting: Path, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(SPIKY)
    with pytest.raises(Diverged, match=r"step 1 \(epoch 0, .* the gradient of model.spike .*was no number"):
        train(drifting, tmp_path / "run", small(), model=f"{tmp_path}/own.py:Spiky")


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("[enforce fail at alloc_cpu.cpp:117] DefaultCPUAllocator: can't allocate memory: you tried 9 GB"),
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
        MemoryError(),
    ],
)
def test_out_of_memory_is_said_with_a_way_out(
    drifting: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def step(*arguments: object) -> None:
        raise error

    monkeypatch.setattr(Trainer, "step", step)
    found = "alloc_cpu|CUDA out of memory|no more could be had"
    with pytest.raises(
        TooLarge,
        match=rf"out of memory \(.*({found}).*\): .*lower window.length \(now 3\) and model.hidden .*cache_bytes=0",
    ):
        train(drifting, tmp_path / "run", small())


def test_an_error_of_another_kind_is_not_called_out_of_memory(
    drifting: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def step(*arguments: object) -> None:
        raise RuntimeError("shapes do not fit")

    monkeypatch.setattr(Trainer, "step", step)
    with pytest.raises(RuntimeError, match="shapes do not fit"):
        train(drifting, tmp_path / "run", small())


def test_every_kind_of_record_is_written_and_shown(drifting: Path, tmp_path: Path) -> None:
    shown: list[Record] = []
    settings = small({"train": {"log_steps": True, "epochs": 2}})
    train(drifting, tmp_path / "run", settings, show=shown.append)
    told = [record.kind for record in shown]
    resume(tmp_path / "run", {"train": {"epochs": 3}}, show=shown.append)
    lines = [line.split('"')[3] for line in (tmp_path / "run" / "records.jsonl").read_text().splitlines()]
    steps = len(training_windows(WindowSettings(length=3), 6))
    epoch = ["stepped"] * steps + ["epoch_ended", "evaluated"] + ["spans"] * min(steps, 3)
    start = ["started", "graph_facts"]
    assert lines == [*start, *epoch, *epoch, "saved", "resumed", *epoch, "saved", "evaluated", "predicted", "ended"]
    assert told == [*start, *epoch, *epoch, "saved", "evaluated", "predicted", "ended"]
    assert [record.kind for record in shown[len(told) :]] == [
        "started",
        "resumed",
        *epoch,
        "saved",
        "evaluated",
        "predicted",
        "ended",
    ]
    train(drifting, tmp_path / "quiet", small())
    assert of_kind(tmp_path / "quiet", "stepped") == []
    counted = [record for record in history(tmp_path / "run") if record["kind"] == "stepped"]
    assert [step["step"] for step in counted] == list(range(1, 3 * steps + 1))
    assert [step["epoch"] for step in counted] == [0] * steps + [1] * steps + [2] * steps
    for number in range(3):
        (ended,) = of_kind(tmp_path / "run", "epoch_ended", epoch=number)
        ours = [step for step in counted if step["epoch"] == number]
        assert ended["nodes"] == sum(step["nodes"] for step in ours) == 24 * 6
        graph = open_graph(drifting)
        assert ended["edges"] == sum(step["edges"] for step in ours) == sum(len(graph.snapshot(t)) for t in range(6))
        assert ended["loss"] == pytest.approx(np.mean([step["loss"] for step in ours]))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_tensorboard_can_read_what_is_written(drifting: Path, tmp_path: Path) -> None:
    module: Any = importlib.import_module("tensorboard.backend.event_processing.event_accumulator")

    train(drifting, tmp_path / "run", small({"train": {"tensorboard": True, "epochs": 3}}))
    events = module.EventAccumulator(str(tmp_path / "run" / "tensorboard"))
    events.Reload()
    assert set(events.Tags()["scalars"]) >= {"step/loss", "epoch/loss", "epoch/learning_rate", "val/mse", "test/mse"}
    ended = of_kind(tmp_path / "run", "epoch_ended")
    told = [(event.step, event.value) for event in events.Scalars("epoch/loss")]
    assert told == [(record["epoch"], pytest.approx(record["loss"])) for record in ended]
    scores = [record["scores"]["mse"] for record in of_kind(tmp_path / "run", "evaluated", split="val")]
    assert [event.value for event in events.Scalars("val/mse")] == pytest.approx(scores)
    assert [event.step for event in events.Scalars("step/loss")] == list(range(1, 7))
    train(drifting, tmp_path / "none", small())
    assert not (tmp_path / "none" / "tensorboard").exists()


def test_without_tensorboard_a_run_that_asks_for_it_is_refused(
    drifting: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(name: str) -> None:
        raise ImportError(name)

    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(BadConfig, match=r"pip install 'timeloom\[tensorboard\]'"):
        train(drifting, tmp_path / "run", small({"train": {"tensorboard": True}}))
    assert not (tmp_path / "run").exists(), "what is asked for can be asked for again, in the same place"
