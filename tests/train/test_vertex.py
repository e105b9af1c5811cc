"""Ranks that own some of the nodes each learn what one process learns (SPEC T15, T37)."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.graph.tiny import TinyGraph, tiny
from tests.train.divided_runs import (
    Told,
    assert_same,
    learn,
    learn_divided,
    owned_by,
    parameters_of,
    settings_of,
    take_steps,
)
from timeloom.config import dump
from timeloom.dist import threads
from timeloom.dist.collectives import World
from timeloom.errors import BadConfig
from timeloom.nn.model import Memory, Model, PerNode, Rows, State, View
from timeloom.nn.models import MODELS
from timeloom.nn.settings import ModelSettings
from timeloom.plan.partition.hashed import hash_owners
from timeloom.plan.partition.own import OwnNodes
from timeloom.plan.types import Unit
from timeloom.records import RunDirectory
from timeloom.train import checkpoint
from timeloom.train.choose import decided_of
from timeloom.train.encode import Encoder
from timeloom.train.feed import Feed
from timeloom.train.goals.goal import Draw
from timeloom.train.holding import HOLDS_ALL, Holding, HoldsOwn
from timeloom.train.part_view import PartView
from timeloom.train.session import Session, open_session, scales_of, unit_randomness
from timeloom.train.settings import RunSettings
from timeloom.train.trainer import Trainer, grouped

NODES = 11
# More layers than one, which make rows shorter before they are sent for; nothing is kept from epoch to epoch.
DEEP: dict[str, Any] = {"model": {"layers": 2, "hidden": 2, "heads": 1}, "reuse": {"cache": "off"}}


@pytest.fixture(scope="module")
def graph() -> TinyGraph:
    """Weights, nodes that come and go, and an almost empty snapshot."""
    return tiny(1, num_nodes=NODES, num_snapshots=11, weighted=True)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("ranks", [2, 3])
def test_every_model_learns_what_one_process_learns(graph: TinyGraph, model: str, ranks: int) -> None:
    settings = settings_of({"model": {"name": model}})
    assert_same(learn_divided(settings, graph, ranks), learn(settings, graph))


@pytest.mark.parametrize("model", MODELS)
def test_layers_on_top_of_each_other_learn_what_one_process_learns(graph: TinyGraph, model: str) -> None:
    settings = settings_of(DEEP, {"model": {"name": model}})
    assert_same(learn_divided(settings, graph, 3), learn(settings, graph))


@pytest.mark.parametrize("model", ["tgcn", "gat_lstm", "evolvegcn_h", "dcrnn"])
@pytest.mark.parametrize(
    "owners",
    [[0] * NODES, [1] * (NODES - 1) + [0], [2, 0, 0, 2, 2, 2, 2, 2, 2, 2, 2], [0, 1, 2, 2, 2, 2, 2, 2, 2, 2, 2]],
)
@pytest.mark.parametrize("task", ["degree", "links"])
def test_uneven_parts_and_ranks_without_nodes_change_nothing(
    graph: TinyGraph, monkeypatch: pytest.MonkeyPatch, model: str, owners: list[int], task: str
) -> None:
    owned_by(monkeypatch, owners)
    # Node 0 is never there, so a rank may own a node and have nothing to learn.
    settings = settings_of(DEEP, {"model": {"name": model}, "task": {"name": task, "num_negatives": 3}})
    assert_same(learn_divided(settings, graph, 3, steps=4), learn(settings, graph, steps=4))


def test_parts_without_edges_between_them_have_empty_halos(monkeypatch: pytest.MonkeyPatch) -> None:
    apart = tiny(4, num_nodes=8, share=0.5)
    kept = [replace(one, keys=one.keys[one.sources % 2 == one.targets % 2]) for one in apart.all]
    graph = TinyGraph(kept)
    owned_by(monkeypatch, [0, 1] * 4)
    settings = settings_of(DEEP, {"model": {"name": "dcrnn"}})
    told = learn_divided(settings, graph, 2, steps=4)
    assert_same(told, learn(settings, graph, steps=4))
    sizes = [shape[0] for name, shape in told[0].log if name.startswith("halo")]
    assert sizes
    assert not any(sizes)


@pytest.mark.parametrize(
    "window",
    [
        {"state": "zero"},
        {"state": "zero", "groups": 2},
        {"state": "zero", "targets": "last"},
        {"targets": "last"},
        {"stride": 2},
    ],
)
@pytest.mark.parametrize("model", ["tgcn", "evolvegcn_o", "sage_attention"])
@pytest.mark.parametrize("absent", ["hold", "run"])
def test_windows_of_every_kind_are_served(graph: TinyGraph, window: dict[str, Any], model: str, absent: str) -> None:
    settings = settings_of({"window": window, "model": {"name": model, "absent": absent}})
    assert_same(learn_divided(settings, graph, 2, steps=5), learn(settings, graph, steps=5))


TASKS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"name": "signal", "loss": "mae"}, {"labels": "value", "features": "stored"}),
    ({"name": "degree", "residual": True}, {"features": "fixed"}),
    ({"name": "classes", "class_weights": "balanced"}, {"labels": "class"}),
    ({"name": "classes", "node_split": "nodes"}, {"labels": "class", "fixed_labels": True, "features": "log"}),
    ({"name": "links", "num_negatives": 7, "most_pairs": 6, "negatives": ["random", "historical", "inductive"]}, {}),
    ({"name": "links", "decoder": "dot", "train_negatives": 2, "num_negatives": 2}, {}),
    ({"name": "edge_classes", "most_pairs": 5}, {"weighted": True}),
    ({"name": "edge_classes", "class_weights": "balanced"}, {"num_types": 2}),
]


@pytest.mark.parametrize(("task", "kind"), TASKS)
@pytest.mark.parametrize("ranks", [2, 3])
def test_every_task_is_learnt_and_scored_as_in_one_process(
    task: dict[str, Any], kind: dict[str, Any], ranks: int
) -> None:
    graph = tiny(2, num_nodes=NODES, num_snapshots=12, **kind)
    asked = {"features": "auto", "lags": 2} if task["name"] == "signal" else {"features": "auto"}
    settings = settings_of({"task": task, "inputs": asked, "model": {"name": "gcn_gru"}})
    assert_same(learn_divided(settings, graph, ranks, steps=5), learn(settings, graph, steps=5))


@pytest.mark.parametrize("by", ["hash", "random", "metis", "load"])
def test_any_partition_may_divide_the_nodes(graph: TinyGraph, by: str) -> None:
    if by == "metis":
        pytest.importorskip("pymetis")
    settings = settings_of({"system": {"partition": {"by": by, "seed": 3}}})
    assert_same(learn_divided(settings, graph, 2, steps=3), learn(settings, graph, steps=3))


@pytest.mark.parametrize("model", ["gcn_gru", "gat_lstm", "sage_linear", "mpnn_lstm"])
def test_sending_for_a_halo_early_changes_the_order_and_nothing_else(graph: TinyGraph, model: str) -> None:
    settings = settings_of(DEEP, {"model": {"name": model, "layers": 1}, "window": {"length": 4}})
    late = replace(settings, system=replace(settings.system, overlap=False))
    early, plain = (learn_divided(one, graph, 2, steps=3) for one in (settings, late))
    assert early[0].losses == plain[0].losses
    assert all(torch.equal(early[0].parameters[name], value) for name, value in plain[0].parameters.items())
    assert sorted(early[0].log) == sorted(plain[0].log)


@pytest.mark.parametrize("model", ["gcn_gru", "gat_lstm"])
def test_the_halo_of_the_next_snapshot_is_sent_for_before_this_one_is_computed(
    graph: TinyGraph, monkeypatch: pytest.MonkeyPatch, model: str
) -> None:
    seen: dict[bool, list[str]] = {True: [], False: []}

    def run(world: World, overlap: bool) -> None:
        settings = settings_of(DEEP, {"model": {"name": model}, "system": {"overlap": overlap}})
        session = open_session(settings, graph, world=world)
        if world.rank == 0:
            watch_order(session.walker.encoder, seen[overlap], monkeypatch)
        session.walker.encoder.encode((1, 2, 4), (None, None, None))

    for overlap in (True, False):
        with monkeypatch.context():
            threads.run(2, lambda world, overlap=overlap: run(world, overlap))  # type: ignore[misc]
        monkeypatch.undo()
    assert seen[False] == ["make 1", "sent 1", "make 2", "sent 2", "make 4", "sent 4"]
    assert seen[True] == ["sent 1", "sent 2", "make 1", "sent 4", "make 2", "make 4"]


def watch_order(encoder: Encoder, seen: list[str], patch: pytest.MonkeyPatch) -> None:
    """Note when a snapshot's rows are sent for on this rank, and when they are made."""
    made, views = encoder._make, dict[int, PartView]()
    for t in (1, 2, 4):
        view = encoder._feed.view(t)
        assert isinstance(view, PartView)
        views[t] = view

    def make(view: View, x_NF: Tensor) -> Any:
        seen.append(f"make {view.t}")
        return made(view, x_NF)

    encoder._make = make
    crossing = next(iter(views.values())).crossing
    sent = crossing.start_halo
    halos = {id(view._side(False).halo): t for t, view in views.items()}

    def start_halo(halo: Any, own_OF: Tensor, name: str) -> Any:
        seen.append(f"sent {halos[id(halo)]}")
        return sent(halo, own_OF, name)

    patch.setattr(crossing, "start_halo", start_halo)


def test_ranks_keep_sums_together_however_much_room_each_has(graph: TinyGraph) -> None:
    settings = settings_of({"model": {"layers": 2}})
    # On rank 1 there is room for nothing, so that it makes again what rank 0 could keep.
    tight = replace(settings, train=replace(settings.train, cache_bytes=0))

    def run(world: World) -> tuple[Told, int]:
        session = open_session(tight if world.rank else settings, graph, world=world)
        trainer = Trainer(session, None)
        losses, norms = take_steps(trainer, 6)
        kept = session.walker.encoder.aggregates.memory_bytes
        return Told(losses, norms, parameters_of(session), {}, {}, list(world.log)), kept

    told = threads.run(2, run, check=True)
    wanted = learn(settings, graph, steps=6)
    assert_same([one for one, _ in told], replace(wanted, scores={}, baselines={}))
    assert [kept for _, kept in told] == [0, 0]


def test_sums_that_fit_everywhere_are_exchanged_for_once(graph: TinyGraph) -> None:
    settings = settings_of({"model": {"layers": 1}})
    few, many = (learn_divided(settings, graph, 2, steps=steps)[0].log for steps in (6, 18))
    count = [sum(name.startswith("halo") for name, _ in log) for log in (few, many)]
    assert count[0] == count[1] > 0


@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize("model", ["wdgcn", "evolvegcn_o", "sage_linear"])
def test_a_run_of_two_ranks_goes_on_with_another_number_of_them(
    graph: TinyGraph, tmp_path: Path, model: str, ranks: int
) -> None:
    settings = settings_of({"model": {"name": model, "layers": 2}})
    save_after(settings, graph, 3, tmp_path / "run")

    def go_on(world: World | None) -> tuple[list[float], dict[str, Tensor]]:
        # Each rank reads it by itself: an optimizer goes on with the very tensors that it is given.
        saved = checkpoint.latest(tmp_path / "run" / "checkpoints")
        assert any(key.startswith("carry/") for key in saved.tensors)
        scales, decided = scales_of(grouped(saved.tensors)["scales"]), decided_of(saved.state["decided"])
        session = open_session(settings, graph, scales=scales, decided=decided, world=world)
        trainer = Trainer(session, None)
        trainer.restore(saved)
        return take_steps(trainer, 5)[0], parameters_of(session)

    found = [go_on(None)] if ranks == 1 else threads.run(ranks, go_on, check=True)
    wanted = learn(settings, graph, steps=8)
    for losses, parameters in found:
        np.testing.assert_allclose(losses, wanted.losses[3:], rtol=1e-10)
        for name, value in wanted.parameters.items():
            torch.testing.assert_close(parameters[name], value, rtol=1e-10, atol=1e-12)


def save_after(settings: RunSettings, graph: TinyGraph, steps: int, path: Path) -> None:
    """Let two ranks save after some steps, in the middle of an epoch."""

    def run(world: World) -> None:
        directory = None if world.rank else RunDirectory.create(path, dump(settings), overwrite=False)
        trainer = Trainer(open_session(settings, graph, world=world), directory)
        take_steps(trainer, steps)
        trainer.save()
        if directory is not None:
            directory.close()

    threads.run(2, run, check=True)


def test_what_a_rank_holds_shrinks_with_the_number_of_ranks() -> None:
    graph = tiny(6, num_nodes=120, num_snapshots=5, share=0.02, features="stored")

    def held(world: World) -> int:
        settings = settings_of({"inputs": {"features": "graph"}, "split": {"train": 0.4, "val": 0.3}})
        feed = open_session(settings, graph, world=world).feed
        room = feed.room.left
        for t in range(len(graph)):
            feed.facts(t), feed.view(t), feed.rows(t), feed.label(t)
        assert not feed._snapshots._made, "no whole snapshot is kept"
        assert len(feed._near) == 1, "but the one that was read last"
        assert isinstance(feed.view(0), PartView)
        assert feed.rows(0).shape == (feed.num_nodes, 3)
        return room - feed.room.left

    most = [max(threads.run(ranks, held)) for ranks in (2, 4, 8)]
    assert most[1] < 0.7 * most[0]
    assert most[2] < 0.7 * most[1]


class ReadsEdges(Model):
    """A model that reads the edges themselves, as layers of other libraries do."""

    def __init__(self, num_in: int, settings: ModelSettings) -> None:
        super().__init__()
        self.out_size = num_in
        self.weight = torch.nn.Parameter(torch.ones(1))

    def memory(self) -> Memory:
        return (PerNode("h", (self.out_size,)),)

    def encode(self, view: View, x_NF: Tensor) -> Rows:
        sources, targets = view.edge_index
        return (x_NF.index_add(0, targets, x_NF.index_select(0, sources)) * self.weight,)

    def recur(self, view: View, rows: Rows, state: State) -> tuple[Tensor, State]:
        return rows[0], rows


class SeesAll(ReadsEdges):
    """A model that takes the mean of all nodes."""

    sees_all = True

    def encode(self, view: View, x_NF: Tensor) -> Rows:
        return ((x_NF - x_NF.mean(0)) * self.weight,)


@pytest.mark.parametrize(
    ("tables", "reason"),
    [
        ({"model": {"name": "mpnn_lstm", "batch_norm": True}}, "batch normalisation.*model.batch_norm=false"),
        ({"model": {"name": f"{__file__}:SeesAll"}}, "all nodes of a snapshot together.*psg or esdg"),
        ({"model": {"name": f"{__file__}:ReadsEdges"}}, "reads edge_index.*psg or esdg"),
        ({"reuse": {"mode": "versions"}}, "reuse.mode=versions.*nodes are divided.*reuse.mode=full"),
        ({"reuse": {"mode": "delta"}, "inputs": {"features": "graph"}}, "reuse.mode=delta.*nodes are divided"),
    ],
)
def test_what_cannot_be_divided_is_refused_with_a_way_out(tables: dict[str, Any], reason: str) -> None:
    graph = tiny(1, num_nodes=NODES, features="fixed")
    with pytest.raises(BadConfig, match=reason):
        threads.run(2, lambda world: open_session(settings_of(tables), graph, world=world))
    # One process serves all of it.
    open_session(settings_of(tables), graph)


@pytest.mark.parametrize("model", ["tgcn", "gat_lstm", "evolvegcn_h", "sage_attention"])
@pytest.mark.parametrize("task", ["degree", "links"])
def test_short_products_are_near_those_of_one_process(graph: TinyGraph, model: str, task: str) -> None:
    # Ranks differ in whether all of their nodes are there, and with it in the precision of their rows.
    settings = settings_of(
        {"model": {"name": model, "layers": 2}, "train": {"precision": "bf16"}},
        {"task": {"name": task, "num_negatives": 3}},
    )
    told = learn_divided(settings, graph, 2, steps=4)
    np.testing.assert_allclose(told[0].losses, learn(settings, graph, steps=4).losses, rtol=0.03)


def test_computing_again_is_refused_where_nodes_are_divided() -> None:
    with pytest.raises(BadConfig, match=r"system.recompute=true with system.divide=nodes.*leave it out"):
        settings_of({"system": {"recompute": True}})


def test_ranks_draw_their_dropout_apart_and_a_repeated_run_draws_the_same(graph: TinyGraph) -> None:
    session = open_session(settings_of({"model": {"layers": 2, "dropout": 0.5}}), graph)
    unit = Unit(first=0, last=3, targets=(2,), fresh=True)

    def drawn(rank: int, *, divided: bool) -> list[float]:
        nodes = OwnNodes(hash_owners(graph.num_nodes, 2, 0), rank)
        world = cast(World, SimpleNamespace(rank=rank, size=2))
        feed = replace_holding(session, HoldsOwn(nodes, world, overlaps=True) if divided else HOLDS_ALL)
        with unit_randomness(replace(session, world=world, feed=feed), Draw(seed=0, epoch=0), unit):
            return torch.rand(4).tolist()

    assert drawn(0, divided=True) == drawn(0, divided=True) != drawn(1, divided=True)
    assert drawn(0, divided=False) == drawn(1, divided=False)


def replace_holding(session: Session, held: Holding) -> Feed:
    feed = copy.copy(session.feed)
    feed.holding = held
    return feed
