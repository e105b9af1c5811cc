"""Wherever the rows of a window come from, the numbers are the same (T8, T9, T10)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

import pytest
import torch
from torch import Tensor

from tests.graph.tiny import TinyGraph, tiny
from timeloom.errors import BadConfig
from timeloom.graph.tasks import TaskSettings
from timeloom.nn.model import State, advance
from timeloom.nn.models import MODELS
from timeloom.nn.settings import ModelSettings
from timeloom.plan.batch.windows import WindowSettings
from timeloom.plan.types import Unit
from timeloom.train.goals.goal import Seen
from timeloom.train.session import Session, open_session
from timeloom.train.settings import ReuseSettings, RunSettings, TrainSettings
from timeloom.train.walk import Carry, first_carry

Mode = Literal["full", "delta", "versions"]
MODES: tuple[Mode, ...] = ("full", "delta", "versions")
WAYS = [(name, mode) for name in MODELS for mode in MODES if mode == "full" or name != "evolvegcn_h"]
COUNT = 7
CLOSE: dict[str, Any] = {"rtol": 1e-10, "atol": 1e-11}


def graph_of(features: Any = "fixed", seed: int = 0, num_nodes: int = 9) -> TinyGraph:
    return tiny(seed, num_nodes=num_nodes, num_snapshots=COUNT, weighted=True, features=features)


def session_of(
    name: str, mode: Mode, graph: TinyGraph, *, layers: int = 1, absent: Literal["hold", "run"] = "hold",
    norm: Any = "sym", cache: Literal["auto", "off"] = "off", hidden: int = 4,
) -> Session:  # fmt: skip
    model = ModelSettings(name=name, hidden=hidden, heads=2, span=3, layers=layers, absent=absent, norm=norm)
    settings = RunSettings(
        graph="", model=model, task=TaskSettings(name="degree"), window=WindowSettings(length=3),
        train=TrainSettings(precision="float64", device="cpu"), reuse=ReuseSettings(mode=mode, cache=cache),
    )  # fmt: skip
    session = open_session(settings, graph)
    rng = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in session.predictor.parameters():
            parameter.copy_(0.6 * torch.randn(parameter.shape, generator=rng, dtype=torch.float64))
    return session


def by_hand(session: Session, unit: Unit, carry: Carry, *, hold: bool) -> list[Seen]:
    """Take the model over the window as it is written: one snapshot after the other, all of it."""
    state: State = carry.state
    out, born, seen = carry.out_NH, carry.born_N, []
    for t in range(unit.first, unit.last):
        view = session.feed.view(t)
        told, state = advance(session.model, view, session.feed.rows(t), state, hold=hold)
        born = born | view.alive_N
        out = torch.where((view.alive_N if hold else born)[:, None], told, out)
        if t in unit.targets:
            seen.append(Seen(t, out, born))
    return seen


def gradients(session: Session, seen: list[Seen]) -> list[Tensor | None]:
    rng = torch.Generator().manual_seed(2)
    loss = torch.stack(
        [(one.out_NH * torch.randn(one.out_NH.shape, generator=rng, dtype=torch.float64)).sum() for one in seen]
    )
    return list(torch.autograd.grad(loss.sum(), list(session.model.parameters()), allow_unused=True))


def agree(session: Session, unit: Unit, *, hold: bool = True) -> None:
    carry = first_carry(session.model, session.feed)
    for _ in range(2):  # the second time much is remembered
        mine, _ = session.walker.walk(unit, carry)
        theirs = by_hand(session, unit, carry, hold=hold)
        assert [one.t for one in mine] == [one.t for one in theirs] == list(unit.targets)
        for one, other in zip(mine, theirs, strict=True):
            torch.testing.assert_close(one.out_NH, other.out_NH, **CLOSE)
            assert torch.equal(one.born_N, other.born_N)
        for one_g, other_g in zip(gradients(session, mine), gradients(session, theirs), strict=True):
            same(one_g, other_g)


def same(one: Tensor | None, other: Tensor | None) -> None:
    """Compare two gradients; none at all is 0."""
    if one is not None and other is not None:
        torch.testing.assert_close(one, other, **CLOSE)
        return
    for gradient in (one, other):
        assert gradient is None or not gradient.any()


@pytest.mark.parametrize(
    ("name", "mode", "features"),
    [(*way, shown) for way in WAYS for shown in ("fixed", "stored", "log") if shown == "fixed" or way[1] != "delta"],
)
def test_every_way_to_the_rows_gives_what_the_model_says(name: str, mode: Mode, features: str) -> None:
    session = session_of(name, mode, graph_of(features))
    agree(session, Unit(first=0, last=5, targets=(0, 2, 4), fresh=True))


@pytest.mark.parametrize("layers", [2, 3])
@pytest.mark.parametrize(("name", "mode"), WAYS)
def test_so_it_does_with_layers_on_top_of_each_other(name: str, layers: int, mode: Mode) -> None:
    session = session_of(name, mode, graph_of(seed=layers), layers=layers)
    agree(session, Unit(first=1, last=6, targets=(5,), fresh=True))
    agree(session, Unit(first=1, last=6, targets=(2, 4), fresh=True))


@pytest.mark.parametrize(("name", "mode"), WAYS)
def test_so_it_does_where_absent_nodes_go_on(name: str, mode: Mode) -> None:
    session = session_of(name, mode, graph_of(seed=3), absent="run")
    agree(session, Unit(first=0, last=6, targets=(1, 5), fresh=True), hold=False)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("cache", ["auto", "off"])
@pytest.mark.parametrize("norm", ["sym", "both", "mean", "sum"])
@pytest.mark.parametrize(("name", "hidden"), [("tgcn", 1), ("gcn_gru", 2), ("gcn_gru", 6), ("evolvegcn_o", 3)])
def test_so_it_does_for_every_norm_and_order_of_products(
    name: str, hidden: int, norm: str, cache: Literal["auto", "off"], mode: Mode
) -> None:
    session = session_of(name, mode, graph_of(seed=5), norm=norm, hidden=hidden, cache=cache)
    agree(session, Unit(first=0, last=5, targets=(1, 4), fresh=True))


@pytest.mark.parametrize(("name", "mode"), WAYS)
def test_what_goes_on_to_the_next_window_is_the_same(name: str, mode: Mode) -> None:
    session, plain = session_of(name, mode, graph_of(seed=4)), session_of(name, "full", graph_of(seed=4))
    unit = Unit(first=0, last=4, targets=(3,), fresh=True, keep=2)
    _, kept = session.walker.walk(unit, first_carry(session.model, session.feed))
    _, wanted = plain.walker.walk(replace(unit, last=3, targets=(2,)), first_carry(plain.model, plain.feed))
    assert kept is not None
    assert wanted is not None
    for one, other in zip(kept.tensors(), wanted.tensors(), strict=True):
        torch.testing.assert_close(one, other, **CLOSE)


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize(("name", "mode"), WAYS)
@pytest.mark.parametrize("keep", [-1, 4])
def test_rows_that_nobody_reads_change_nothing_that_is_read(name: str, layers: int, mode: Mode, keep: int) -> None:
    session = session_of(name, mode, graph_of(seed=6, num_nodes=16), layers=layers)
    masks = torch.rand((COUNT, 16), generator=torch.Generator().manual_seed(5)) < 0.15

    def reads(t: int) -> Any:
        return masks[t].numpy()

    unit = Unit(first=0, last=5, targets=(2, 4), fresh=True, keep=keep)
    carry = first_carry(session.model, session.feed)
    for _ in range(2):
        some, kept = session.walker.walk(unit, carry, reads)
        everything, kept_all = session.walker.walk(unit, carry)
        rng = torch.Generator().manual_seed(2)
        mine = theirs = torch.zeros((), dtype=torch.float64)
        for one, other in zip(some, everything, strict=True):
            torch.testing.assert_close(one.out_NH[masks[one.t]], other.out_NH[masks[one.t]], **CLOSE)
            chosen = torch.randn(other.out_NH.shape, generator=rng, dtype=torch.float64) * masks[one.t][:, None]
            mine, theirs = mine + (one.out_NH * chosen).sum(), theirs + (other.out_NH * chosen).sum()
        assert (kept is None) == (kept_all is None) == (keep < 0)
        if kept is not None and kept_all is not None:
            for one_part, other_part in zip(kept.tensors(), kept_all.tensors(), strict=True):
                torch.testing.assert_close(one_part, other_part, **CLOSE)
        parameters = list(session.model.parameters())
        for one_g, other_g in zip(
            torch.autograd.grad(mine, parameters, allow_unused=True),
            torch.autograd.grad(theirs, parameters, allow_unused=True), strict=True,
        ):  # fmt: skip
            same(one_g, other_g)


@pytest.mark.parametrize("features", ["stored", "log"])
def test_steps_between_sums_of_changing_features_are_refused(features: str) -> None:
    with pytest.raises(BadConfig, match="needs features that are the same in all snapshots"):
        session_of("tgcn", "delta", graph_of(features))


@pytest.mark.parametrize("mode", ["delta", "versions"])
def test_rows_of_a_model_that_reads_all_at_once_are_not_shared(mode: Mode) -> None:
    with pytest.raises(BadConfig, match="model evolvegcn_h reads a snapshot's nodes or edges all at once"):
        session_of("evolvegcn_h", mode, graph_of())
