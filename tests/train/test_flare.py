"""FlareDTDG in the data plane: what shrunk windows come to, on one rank and on several (SPEC T17 to T22)."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from tests.graph.tiny import TinyGraph, tiny
from tests.train.divided_runs import assert_same, learn_divided, owned_by
from tests.train.flare_runs import (
    assert_same_gradients,
    by_definition,
    chunked_as,
    flare_settings_of,
    gradients,
    plain_settings_of,
    summed,
    units_of,
    whole_units,
)
from timeloom.dist import threads
from timeloom.dist.collectives import World
from timeloom.nn.models import MODELS
from timeloom.plan.batch.order import Chunking
from timeloom.plan.schedule.overlap_times import MlpTimes, Times
from timeloom.train.flare import turns
from timeloom.train.flare.epoch import Epoch, Stores
from timeloom.train.session import open_session
from timeloom.train.settings import RunSettings

NODES = 11
WHOLE: list[dict[str, Any]] = [{"alpha": 1.0}, {"decayed": 0}, {"full": 3, "decayed": 0}, {"history": "full"}]


@pytest.fixture(scope="module")
def graph() -> TinyGraph:
    """Weights, nodes that come and go, and an almost empty snapshot."""
    return tiny(1, num_nodes=NODES, num_snapshots=13, weighted=True)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("flare", WHOLE)
def test_windows_in_which_nothing_shrinks_are_truncated_backpropagation(
    graph: TinyGraph, model: str, flare: dict[str, Any]
) -> None:
    """T18: values and gradients of the worker that takes whole snapshots, window by window."""
    table = {"model": {"name": model, "layers": 2}}
    settings = flare_settings_of(table, {"flare": flare})
    units = units_of(settings, open_session(settings, graph))
    assert any(not unit.fresh for unit in units)
    assert_same_gradients(
        gradients(settings, graph), gradients(plain_settings_of(table), graph, whole_units(units))
    )  # fmt: skip


@pytest.mark.parametrize("absent", ["hold", "run"])
@pytest.mark.parametrize("loss", ["last", "blocks"])
@pytest.mark.parametrize("state", ["inherit", "zero"])
def test_losses_states_and_absent_nodes_are_as_in_whole_windows(
    graph: TinyGraph, absent: str, loss: str, state: str
) -> None:
    """T18 for every kind of loss and state."""
    table = {"model": {"name": "tgcn", "absent": absent}}
    settings = flare_settings_of(table, {"flare": {"alpha": 1.0, "loss": loss, "state": state}})
    units = units_of(settings, open_session(settings, graph))
    assert_same_gradients(
        gradients(settings, graph), gradients(plain_settings_of(table), graph, whole_units(units))
    )  # fmt: skip


def chunking(ranks: int, per_owner: int = 3) -> Chunking:
    rng = np.random.default_rng(ranks)
    owner_N = (np.arange(NODES) % ranks).astype(np.int32)
    return Chunking(owner_N, rng.integers(0, per_owner, NODES).astype(np.int32), ranks, per_owner)


def by_ranks(patch: pytest.MonkeyPatch, settings: RunSettings, graph: TinyGraph, chunks: Chunking) -> list[Any]:
    """Return the summed losses and gradients of ranks that own these chunks."""
    chunked_as(patch, chunks)
    if chunks.num_owners == 1:
        return gradients(settings, graph)
    owned_by(patch, chunks.owner_N.tolist())
    return summed(
        threads.run(chunks.num_owners, lambda world: gradients(settings, graph, world=world), check=True)
    )  # fmt: skip


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_shrunk_windows_are_what_the_definition_says_on_any_number_of_ranks_that_exchange(
    graph: TinyGraph, monkeypatch: pytest.MonkeyPatch, model: str, ranks: int
) -> None:
    """T17, T20: against masks over all nodes, with every state stored."""
    table = {"model": {"name": model, "layers": 2}, "flare": {"temporal_halo": "exchange", "loss": "blocks"}}
    settings = flare_settings_of(table)
    found = by_ranks(monkeypatch, settings, graph, chunking(ranks))
    assert_same_gradients(found, by_definition(settings, graph, chunking(ranks)))


@pytest.mark.parametrize("model", MODELS)
def test_ranks_that_drop_edges_learn_what_one_learns_without_them(
    graph: TinyGraph, monkeypatch: pytest.MonkeyPatch, model: str
) -> None:
    """T20: decayed snapshots without the edges between ranks."""
    settings = flare_settings_of({"model": {"name": model, "layers": 2}})
    found = by_ranks(monkeypatch, settings, graph, chunking(2))
    assert_same_gradients(found, by_definition(settings, graph, chunking(2)))
    exchanging = flare_settings_of({"model": {"name": model, "layers": 2}, "flare": {"temporal_halo": "exchange"}})
    together = by_definition(exchanging, graph, chunking(2))
    assert any(abs(one[0] - other[0]) > 1e-6 for one, other in zip(found, together, strict=True))


@pytest.mark.parametrize("table", [
    {"absent": "run"}, {"flare": {"decay": "public", "alpha": 0.7}}, {"flare": {"state": "zero"}},
    {"flare": {"history": "recent"}}, {"flare": {"history": "full"}}, {"flare": {"split": True}},
    {"flare": {"split": True, "warmup": True}}, {"flare": {"shrink": False}}, {"flare": {"overlap": False}},
    {"flare": {"full": 1, "decayed": 4, "decay": "list", "ratios": [1.0, 0.6, 0.6, 0.3]}},
])  # fmt: skip
@pytest.mark.parametrize("ranks", [1, 2])
def test_every_setting_is_what_the_definition_says(
    graph: TinyGraph, monkeypatch: pytest.MonkeyPatch, table: dict[str, Any], ranks: int
) -> None:
    """T17, T20, T21: two layers of a model that holds, epoch 1."""
    model = {"name": "gcn_gru", "layers": 2, "absent": table.get("absent", "hold")}
    settings = flare_settings_of({"model": model, "flare": table.get("flare", {})})
    found = by_ranks(monkeypatch, settings, graph, chunking(ranks))
    assert_same_gradients(found, by_definition(settings, graph, chunking(ranks)))


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("reverse", [False, True])
def test_degrees_of_the_whole_snapshot_normalise_what_is_left_of_it_where_that_is_asked_for(
    graph: TinyGraph, ranks: int, reverse: bool
) -> None:
    """Along the edges and, for messages that go against them, the other way round."""
    settings = flare_settings_of({"flare": {"degrees": "snapshot", "temporal_halo": "exchange"}})

    def work(world: World) -> int:
        session, shrunk = open_session(settings, graph, world=world), 0
        with Stores(session) as stores:
            epoch = Epoch(session, stores, 0)
            for sight in epoch.sights(units_of(settings, session)[-1]):
                snapshot, nodes = graph.snapshot(sight.view.t), epoch.nodes_O[: sight.rows.size]
                weights = None if snapshot.stored_weights is None else np.abs(snapshot.stored_weights)
                ends = (snapshot.sources, snapshot.targets) if reverse else (snapshot.targets, snapshot.sources)
                side = sight.view._side(reverse)
                for told_O, end in zip((side.into_O, side.out_of_O), ends, strict=True):
                    assert told_O.tolist() == pytest.approx(np.bincount(end, weights, NODES)[nodes])
                shrunk += sight.rows.size < len(epoch.nodes_O)
        return shrunk

    assert min(threads.run(ranks, work, check=True)) > 0


@pytest.mark.parametrize("table", [{}, {"flare": {"temporal_halo": "exchange"}}, {"flare": {"split": True}}])
@pytest.mark.parametrize("ranks", [2, 3])
def test_ranks_take_steps_and_score_alike_and_their_collectives_have_one_order(
    graph: TinyGraph, table: dict[str, Any], ranks: int
) -> None:
    """T21, T22: whole runs over several epochs, backward passes included; every rank starts every exchange."""
    settings = flare_settings_of({"model": {"name": "gcn_gru", "layers": 2}}, table)
    told = learn_divided(settings, graph, ranks, steps=12)
    assert_same(told, told[0])
    along = [[shape for name, shape in one.log if name.startswith("halo/along")] for one in told]
    assert len({len(one) for one in along}) == 1
    assert along[0]


@pytest.mark.parametrize("model", ["tgcn", "gat_lstm", "mpnn_lstm", "evolvegcn_o", "tgcn_integrated", "dcrnn"])
def test_whatever_order_of_turns_each_rank_predicts_all_take_one_and_it_changes_no_bit(
    graph: TinyGraph, monkeypatch: pytest.MonkeyPatch, model: str
) -> None:
    """T22: predictions that contradict each other, two layers; the order of exchanges differs, gradients do not."""
    table = {"model": {"name": model, "layers": 2}, "flare": {"temporal_halo": "exchange", "loss": "blocks"}}
    settings = flare_settings_of(table)
    owned_by(monkeypatch, [node % 2 for node in range(NODES)])
    chunked_as(monkeypatch, chunking(2))
    found, orders = [], []

    for seed in range(4):
        log: list[list[str]] = [[], []]

        def predict(times: Times, works: Any, seed: int = seed) -> Any:
            # Another table on every rank and for every seed: threads of ranks are told apart by their names.
            rank = int(threading.current_thread().name.rpartition(" ")[2])
            return np.random.default_rng([seed, rank]).exponential(1.0, len(works)) if seed else np.ones(len(works))

        def run(world: World, log: list[list[str]] = log) -> Any:
            made = gradients(settings, graph, world=world)
            log[world.rank] = [f"{name} {shape[0]}" for name, shape in world.log if name.startswith("halo")]
            return made

        monkeypatch.setattr(MlpTimes, "predict", predict)
        found.append(threads.run(2, run, check=True))
        orders.append(log[0])
        assert [name.split()[0] for name in log[0]] == [name.split()[0] for name in log[1]]
    assert len({tuple(order) for order in orders}) > 1
    for other in found[1:]:
        for mine, theirs in zip(found[0], other, strict=True):
            for (loss, grads), (loss_again, again) in zip(mine, theirs, strict=True):
                assert loss == loss_again
                assert all(torch.equal(grads[name], again[name]) for name in grads)


def test_what_phases_took_is_learnt_on_every_rank_after_so_many_windows(
    graph: TinyGraph, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = flare_settings_of({"flare": {"temporal_halo": "exchange"}})
    learnt: dict[int, list[tuple[Any, Any]]] = {0: [], 1: []}

    def learn(times: Times, works: Any, seconds_P: Any) -> None:
        rank = int(threading.current_thread().name.rpartition(" ")[2])
        learnt[rank].append((works, seconds_P))

    monkeypatch.setattr(MlpTimes, "learn", learn)
    monkeypatch.setattr(turns, "_LEARNS_EVERY", 3)
    made = threads.run(2, lambda world: len(gradients(settings, graph, world=world)), check=True)
    for calls in learnt.values():
        assert len(calls) == made[0] // 3 > 0
        for works, seconds in calls:
            assert len(works) == len(seconds)
            assert (seconds > 0).all()
            assert {"compute", "recur"} <= {work.kind for work in works}


@pytest.mark.parametrize("ranks", [1, 2])
def test_of_nodes_that_score_alike_the_first_of_the_graph_are_best_whatever_the_order(
    graph: TinyGraph, ranks: int
) -> None:
    """EvolveGCN-H reads the best rows of a snapshot one after the other: their order is a part of the model."""
    settings = flare_settings_of({"flare": {"alpha": 1.0}})

    def work(world: World) -> list[list[float]]:
        session = open_session(settings, graph, world=world)
        with Stores(session) as stores:
            found = []
            for number in range(3):
                epoch = Epoch(session, stores, number)
                sight = epoch.sights(units_of(settings, session)[-1])[-1]
                node_O1 = torch.from_numpy(epoch.nodes_O[: sight.rows.size])[:, None].double()
                scores_O = torch.ones(len(node_O1), dtype=torch.float64)
                alive = node_O1[sight.view.alive_N, 0].tolist()
                best = sight.view.best(node_O1, scores_O, 4)[0][:, 0].tolist()
                told = world.gather_bytes(json.dumps(alive).encode(), "control/test")
                assert best == sorted(node for one in told for node in json.loads(one))[:4]
                found.append(best)
            return found

    first, *others = threads.run(ranks, work, check=True)
    assert len(first[0]) == 4
    assert all(other == first for other in others)


def test_without_overlap_the_same_is_learnt_one_snapshot_after_the_other(graph: TinyGraph) -> None:
    tables = {"model": {"name": "gcn_gru", "layers": 2}}
    plain = flare_settings_of(tables, {"flare": {"overlap": False}})
    early, late = learn_divided(flare_settings_of(tables), graph, 2), learn_divided(plain, graph, 2)
    np.testing.assert_allclose(early[0].losses, late[0].losses, rtol=1e-10)
    assert any(name == "control/turns" for name, _ in early[0].log)
    assert not any(name == "control/turns" for name, _ in late[0].log)


def test_other_ids_inside_chunks_are_the_same_nodes() -> None:
    """T19: nodes of a chunk change their ids; losses and gradients stay, and what is kept goes with them."""
    graph, chunks = tiny(2, num_nodes=NODES, num_snapshots=12, weighted=True), chunking(1)
    rng = np.random.default_rng(3)
    new_N = np.arange(NODES)
    for chunk in range(3):
        inside = np.flatnonzero(chunks.chunk_N == chunk)
        new_N[inside] = rng.permutation(inside)
    assert (new_N != np.arange(NODES)).any()
    snapshots = []
    for one in graph.all:
        keys = one.layout.pack(new_N[one.sources], new_N[one.targets], one.types)
        order, alive = np.argsort(keys), np.zeros_like(one.alive)
        alive[new_N] = one.alive
        weights = None if one.stored_weights is None else one.stored_weights[order]
        snapshots.append(replace(one, keys=keys[order], stored_weights=weights, alive=alive))
    settings = flare_settings_of({"model": {"name": "gcn_gru", "layers": 2}})
    with pytest.MonkeyPatch.context() as patch:
        chunked_as(patch, chunks)
        assert_same_gradients(gradients(settings, TinyGraph(snapshots)), gradients(settings, graph))


def test_what_the_later_part_of_a_cut_sequence_holds_changes_nothing_in_the_earlier_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """T21: the earlier part is learnt from after the later one, and knows nothing of it."""
    chunked_as(monkeypatch, chunking(1))
    settings = flare_settings_of({"model": {"name": "gcn_gru"}, "flare": {"split": True}, "train": {"seed": 2}})
    graph, other = (tiny(seed, num_nodes=NODES, num_snapshots=16) for seed in (1, 7))
    session = open_session(settings, graph)
    units = units_of(settings, session)
    begin = units[0].first
    assert 0 < begin < session.split.train_stop
    earlier = [place for place, unit in enumerate(units) if unit.last <= begin]
    assert earlier
    # Labels of the last snapshot before the cut are of the one after it: one snapshot of the later part stays.
    changed = TinyGraph([*graph.all[: begin + 1], *other.all[begin + 1 :]])
    scales = session.feed.scales
    mine, theirs = (gradients(settings, one, scales=scales) for one in (graph, changed))
    assert_same_gradients([theirs[place] for place in earlier], [mine[place] for place in earlier])
    assert any(mine[place][0] != theirs[place][0] for place in range(len(units)) if place not in earlier)
