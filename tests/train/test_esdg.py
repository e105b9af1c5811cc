"""Ranks that take stretches of every window learn what one process learns, both ways (ESDG; T13, T16)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.graph.tiny import tiny
from tests.train.small_runs import graph_of, random_snapshots
from tests.train.test_systems import NODES, SNAPSHOTS, alone, assert_equal, settings_of, together
from timeloom.dist import threads
from timeloom.dist.collectives import World
from timeloom.errors import BadConfig
from timeloom.graph.dynamic import open_graph
from timeloom.graph.tasks import GraphLike
from timeloom.nn.models import MODELS
from timeloom.plan.batch.pieces import dealt
from timeloom.plan.batch.windows import training_windows
from timeloom.plan.types import Step, Unit
from timeloom.train.evaluate import evaluate, evaluate_baselines
from timeloom.train.goals.goal import Draw
from timeloom.train.ranks import refuse_impossible
from timeloom.train.session import open_session
from timeloom.train.settings import RunSettings
from timeloom.train.trainer import Trainer
from timeloom.train.walk import Carry, first_carry
from timeloom.train.workers import make_worker

MESSAGES = ("state/",)
ALLTOALL = {"system": {"time": "alltoall"}}
SERVED_BY_ALLTOALL = [
    name for name in MODELS if name not in ("tgcn_integrated", "dcrnn", "evolvegcn_o", "evolvegcn_h")
]  # fmt: skip


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Path:
    snapshots = random_snapshots(NODES, 9, SNAPSHOTS)
    # With two empty ones there is a snapshot after which there is nothing to predict.
    snapshots[3] = snapshots[4] = []
    return graph_of(tmp_path_factory.mktemp("esdg") / "graph", snapshots)


def stop_of(settings: Any) -> int:
    return open_session(settings, open_graph(settings.graph)).split.train_stop


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("ranks", [2, 3])
def test_a_relay_learns_what_one_process_learns(graph: Path, model: str, ranks: int) -> None:
    settings = settings_of(graph, "esdg", {"model": {"name": model}})
    stop = stop_of(settings)
    assert_equal(together(settings, ranks, stop), alone(settings, 1, stop), MESSAGES)


@pytest.mark.parametrize("model", SERVED_BY_ALLTOALL)
@pytest.mark.parametrize("ranks", [2, 3])
def test_an_alltoall_learns_what_one_process_learns(graph: Path, model: str, ranks: int) -> None:
    settings = settings_of(graph, "esdg", {"model": {"name": model}}, ALLTOALL)
    stop = stop_of(settings)
    assert_equal(together(settings, ranks, stop), alone(settings, 1, stop))


# Windows of 5 snapshots on 2 and 3 ranks are uneven; on 7 ranks some have no snapshot at all.
VARIANTS: dict[str, dict[str, Any]] = {
    "two layers": {"model": {"layers": 2}},
    "two windows a step": {"window": {"groups": 2}},
    "three windows a step": {"window": {"groups": 3}, "reuse": {"mode": "versions"}},
    "five snapshots": {"window": {"length": 5}},
    "one snapshot": {"window": {"length": 1}},
    "the last one's targets": {"window": {"length": 5, "targets": "last"}, "model": {"layers": 2}},
    "inherited": {"window": {"length": 3, "state": "inherit", "stride": 0}},
    "inherited from within": {"window": {"length": 5, "state": "inherit", "stride": 2}, "model": {"layers": 2}},
    "nobody holds": {"model": {"absent": "run"}},
    "links": {"task": {"name": "links"}},
    "versions": {"reuse": {"mode": "versions"}, "model": {"layers": 2}},
    "nothing kept": {"reuse": {"mode": "full", "cache": "off"}},
}


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize(
    ("model", "ranks"), [("gcn_gru", 2), ("gcn_gru", 7), ("wdgcn", 3), ("evolvegcn_o", 3), ("dcrnn", 2)]
)
def test_a_relay_is_exact_whatever_the_windows(graph: Path, model: str, ranks: int, variant: str) -> None:
    settings = settings_of(graph, "esdg", {"model": {"name": model}}, VARIANTS[variant])
    stop = stop_of(settings)
    assert_equal(together(settings, ranks, stop), alone(settings, 1, stop), MESSAGES)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize(
    ("model", "ranks"), [("gcn_gru", 2), ("gcn_gru", 7), ("wdgcn", 3), ("mpnn_lstm", 3), ("gat_lstm", 2)]
)
def test_an_alltoall_is_exact_whatever_the_windows(graph: Path, model: str, ranks: int, variant: str) -> None:
    settings = settings_of(graph, "esdg", {"model": {"name": model}}, ALLTOALL, VARIANTS[variant])
    stop = stop_of(settings)
    assert_equal(together(settings, ranks, stop), alone(settings, 1, stop))


# Nodes are born late, come and go; few of them are for training, so that rows of the others are not computed at all.
TINY: dict[str, dict[str, Any]] = {
    "classes": {"task": {"name": "classes", "node_split": "nodes"}, "split": {"train": 0.4}},
    "classes by two layers": {
        "task": {"name": "classes", "node_split": "nodes"}, "split": {"train": 0.4}, "model": {"layers": 2},
    },
    "inherited classes": {
        "task": {"name": "classes", "node_split": "nodes"}, "split": {"train": 0.5},
        "window": {"length": 4, "state": "inherit", "stride": 3},
    },
    "going on while absent": {"model": {"absent": "run"}, "window": {"length": 4}},
    "degrees": {"window": {"length": 4, "targets": "last", "groups": 2}},
}  # fmt: skip


def tiny_settings(tables: dict[str, Any], *more: dict[str, Any]) -> RunSettings:
    length = {"window": {"length": 4}, "split": {"train": 0.7}}
    return settings_of(Path(), "esdg", length, *more, tables)


@pytest.mark.parametrize("variant", TINY)
@pytest.mark.parametrize("model", ["gcn_gru", "gat_lstm", "tgcn_integrated", "evolvegcn_h", "sage_attention"])
@pytest.mark.parametrize("recompute", [False, True])
def test_a_relay_is_exact_where_nodes_come_and_go(variant: str, model: str, recompute: bool) -> None:
    graph = tiny(1, num_nodes=12, num_snapshots=12, weighted=True, labels="class", fixed_labels=True)
    settings = tiny_settings(TINY[variant], {"model": {"name": model}})
    again = replace(settings, system=replace(settings.system, recompute=recompute))
    stop = open_session(settings, graph).split.train_stop
    assert_equal(together(again, 3, stop, graph), alone(settings, 1, stop, graph), MESSAGES)


@pytest.mark.parametrize("variant", TINY)
@pytest.mark.parametrize("model", ["gcn_gru", "gat_lstm", "mpnn_lstm", "sage_attention"])
def test_an_alltoall_is_exact_where_nodes_come_and_go(variant: str, model: str) -> None:
    graph = tiny(1, num_nodes=12, num_snapshots=12, weighted=True, labels="class", fixed_labels=True)
    settings = tiny_settings(TINY[variant], {"model": {"name": model}}, ALLTOALL)
    stop = open_session(settings, graph).split.train_stop
    assert_equal(together(settings, 3, stop, graph), alone(settings, 1, stop, graph))


def test_the_rows_of_few_nodes_are_handed_on_where_few_are_read() -> None:
    graph = tiny(1, num_nodes=12, num_snapshots=12, weighted=True, labels="class", fixed_labels=True)
    session = open_session(tiny_settings(TINY["classes"], {"model": {"name": "gcn_gru"}}), graph)
    window = Unit(first=2, last=6, targets=(2, 3, 4, 5), fresh=True)
    mask = session.walker.demand(window, session.goal.reads).encoded[0][0]
    assert mask is not None
    walker, first = session.walker, dealt(window, 2)[0]
    walked = walker.go(
        first, walker.encode(first, session.goal.reads), first_carry(session.model, session.feed), session.goal.reads
    )
    assert [len(part) for part in walked.after.state] == [mask.sum()] * len(walked.after.state)
    assert mask.sum() < 8


def scores_of(settings: RunSettings, graph: GraphLike, world: World | None = None) -> dict[str, float]:
    session = open_session(settings, graph, world=world)
    evaluate_baselines(session, "test")
    return evaluate(make_worker(session), "test")


@pytest.mark.parametrize("state", ["zero", "inherit"])
@pytest.mark.parametrize(("way", "model"), [
    ({}, "gcn_gru"), ({}, "evolvegcn_o"), (ALLTOALL, "gcn_gru"),
    ({"system": {"divide": "windows", "pipeline": True}}, "gcn_gru"),
    ({"system": {"divide": "windows", "pipeline": True}}, "evolvegcn_o"),
])  # fmt: skip
def test_several_ranks_score_what_one_process_scores(way: dict[str, Any], model: str, state: str) -> None:
    graph = tiny(1, num_nodes=12, num_snapshots=16, weighted=True)
    settings = tiny_settings({"window": {"state": state, "stride": 0}}, {"model": {"name": model}}, way)
    wanted = scores_of(settings, graph)
    for found in threads.run(3, lambda world: scores_of(settings, graph, world), check=True):
        assert found == pytest.approx(wanted, rel=1e-12)


@pytest.mark.parametrize("state", ["zero", "inherit"])
@pytest.mark.parametrize("way", [{}, ALLTOALL])
def test_every_snapshot_is_scored_on_one_rank(way: dict[str, Any], state: str) -> None:
    graph = tiny(1, num_nodes=12, num_snapshots=16, weighted=True)
    settings = tiny_settings({"window": {"state": state, "stride": 0}}, {"model": {"name": "gcn_gru"}}, way)

    def seen(world: World) -> list[int]:
        return [one.t for one in make_worker(open_session(settings, graph, world=world)).see(6, 13)]

    times = threads.run(3, seen)
    assert sorted(t for mine in times for t in mine) == list(range(6, 13))
    assert all(times) == (state == "zero"), "without a past they are shared out"


def test_ranks_lay_rows_alike_whatever_their_snapshots_share(tmp_path: Path) -> None:
    """The first rank's snapshots are all equal, so that a table of them is short; the second one's differ."""
    snapshots = random_snapshots(NODES, 9, 12)
    graph = graph_of(tmp_path / "graph", [snapshots[0]] * 4 + snapshots[4:])
    tables = {
        "window": {"length": 8},
        "reuse": {"mode": "versions", "cache": "off"},
        "split": {"train": 0.8, "val": 0.1},
    }
    settings = settings_of(graph, "esdg", {"model": {"name": "gcn_gru"}}, ALLTOALL, tables)
    stop = stop_of(settings)
    assert_equal(together(settings, 2, stop), alone(settings, 1, stop))


@pytest.mark.parametrize("way", [{}, ALLTOALL])
@pytest.mark.parametrize("ranks", [(2, 1), (2, 3), (1, 3)])
def test_what_ranks_carry_is_saved_whole_and_dealt_out_to_others(way: dict[str, Any], ranks: tuple[int, int]) -> None:
    """A run is resumed on another number of ranks: the windows after the checkpoint give the same losses."""
    graph = tiny(1, num_nodes=12, num_snapshots=14, weighted=True)
    settings = tiny_settings(
        {"window": {"state": "inherit", "stride": 0, "length": 2}}, {"model": {"name": "wdgcn"}}, way
    )
    draw = Draw(seed=0, epoch=0)
    first, second = training_windows(settings.window, 4)

    def before(world: World) -> Carry:
        session = open_session(settings, graph, world=world)
        trainer = Trainer(session, None)
        trainer.step(Step(units=dict.fromkeys(range(world.size), (first,)), ends_epoch=False), draw)
        return trainer.worker.whole(trainer.carry or trainer.worker.start())

    def after(world: World, carry: Carry) -> float:
        trainer = Trainer(open_session(settings, graph, world=world), None)
        trainer.carry = trainer.worker.own(carry)
        return trainer.step(Step(units=dict.fromkeys(range(world.size), (second,)), ends_epoch=True), draw).loss

    carry = threads.run(ranks[0], before)[0]
    wanted = threads.run(1, before)[0]
    for part, other in zip(carry.tensors(), wanted.tensors(), strict=True):
        torch.testing.assert_close(part, other, rtol=1e-12, atol=1e-14)
    losses = [
        *threads.run(ranks[1], lambda world: after(world, carry)),
        *threads.run(1, lambda world: after(world, carry)),
    ]
    np.testing.assert_allclose(losses, losses[-1], rtol=1e-12)


@pytest.mark.parametrize(("model", "why"), [
    ("dcrnn", "its memory reads that of neighbours"), ("tgcn_integrated", "its memory reads that of neighbours"),
    ("evolvegcn_o", r"\(weight\) belongs to no node"), ("evolvegcn_h", r"\(weight\) belongs to no node"),
])  # fmt: skip
def test_alltoall_refuses_memories_that_cannot_be_dealt_out_and_names_the_relay(model: str, why: str) -> None:
    settings = tiny_settings({}, {"model": {"name": model}}, ALLTOALL)
    with pytest.raises(BadConfig, match=f"{why}.*use --set system.time=relay"):
        refuse_impossible(settings, 2)
    refuse_impossible(settings, 1)


def test_alltoall_refuses_rows_that_belong_to_no_node(tmp_path: Path) -> None:
    own = tmp_path / "own.py"
    own.write_text(ODD_MODEL)
    settings = tiny_settings({}, {"model": {"name": f"{own}:Odd"}}, ALLTOALL)
    with pytest.raises(BadConfig, match=r"rows that belong to no node.*system\.time=relay"):
        refuse_impossible(settings, 2)


ODD_MODEL = """
import torch
from timeloom import Model
from timeloom.nn.model import PerNode


class Odd(Model):
    def __init__(self, num_in, settings):
        super().__init__()
        self.out_size, self.weight = num_in, torch.nn.Parameter(torch.ones(num_in))

    def memory(self):
        return (PerNode("h", (self.out_size,)),)

    def encode(self, view, x_NF):
        return x_NF * self.weight, x_NF.mean(0, keepdim=True)

    def recur(self, view, rows, state):
        h = state[0] + rows[0] + rows[1]
        return h, (h,)
"""


@pytest.mark.parametrize("system", ["psg", "esdg", "blad"])
def test_statistics_of_batches_are_refused_on_several_ranks(system: str) -> None:
    settings = settings_of(Path(), system, {"model": {"name": "mpnn_lstm", "batch_norm": True}})
    with pytest.raises(BadConfig, match=r"batch normalisation.*model\.batch_norm=false"):
        refuse_impossible(settings, 2)


@pytest.mark.parametrize(("changes", "why"), [
    ({"system": {"divide": "time", "time": "alltoall", "recompute": True}}, "would send all rows twice"),
    ({"system": {"divide": "windows", "pipeline": True, "recompute": True}}, "leave one of them out"),
    ({"system": {"divide": "time", "pipeline": True}}, "leave one of them out"),
    ({"system": {"divide": "windows", "pipeline": True}, "model": {"dropout": 0.1}}, "model.dropout=0"),
])  # fmt: skip
def test_settings_that_contradict_each_other_are_refused(changes: dict[str, Any], why: str) -> None:
    with pytest.raises(BadConfig, match=why):
        tiny_settings({}, changes)
