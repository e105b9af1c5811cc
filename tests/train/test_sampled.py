"""Sampled windows: one process computes what whole snapshots give, and several ranks what one process does (T34)."""

from __future__ import annotations

import gc
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.graph.tiny import TinyGraph, tiny
from tests.train.divided_runs import EXACT, assert_same, learn, learn_divided
from tests.train.small_runs import drift
from timeloom.config import build, merge
from timeloom.dist import threads
from timeloom.dist.collectives import World
from timeloom.errors import BadConfig
from timeloom.graph.delta import NO_KEYS, NO_WEIGHTS, Delta
from timeloom.graph.dynamic import open_graph
from timeloom.graph.keys import layout_for
from timeloom.graph.segment_parts import edge_change, feature_change
from timeloom.graph.segments import SegmentLayout
from timeloom.graph.snapshot import Snapshot
from timeloom.graph.tasks import GraphLike
from timeloom.records import EpochEnded, Placed, Record, Stepped, Traffic, Warned
from timeloom.systems import preset_of
from timeloom.train.arrivals import AllThere
from timeloom.train.live import first_scored, train_live
from timeloom.train.loop import train
from timeloom.train.sampled.cache import RowCache
from timeloom.train.sampled.store import Store
from timeloom.train.sampled.worker import SampledWorker
from timeloom.train.session import open_session
from timeloom.train.settings import RunSettings
from timeloom.train.trainer import Trainer

ALL = 1 << 20
GRAPHS: dict[str, dict[str, Any]] = {
    "plain": {},
    "weighted and typed": {"weighted": True, "num_types": 2},
    "stored features": {"features": "stored"},
}


def settings_of(*tables: dict[str, Any]) -> RunSettings:
    """Return settings of a run that samples."""
    found = merge(preset_of("distdy").settings, EXACT, {"window": {"length": 4}}, *tables)
    return build(RunSettings, found)


def whole_settings_of(*tables: dict[str, Any]) -> RunSettings:
    """Return the same without sampling."""
    return build(RunSettings, merge(
        preset_of("distdy").settings, EXACT, {"window": {"length": 4}},
        {"system": {"name": "none", "divide": "windows"}}, *tables,
    ))  # fmt: skip


TASKS: dict[str, dict[str, Any]] = {
    "degree": {},
    "signal": {"name": "signal"},
    "classes": {"name": "classes", "class_weights": "balanced"},
    "links": {"name": "links", "num_negatives": 3},
    "edge_classes": {"name": "edge_classes"},
}


def graph_for(task: str, **more: Any) -> TinyGraph:
    labels: Any = {"signal": "value", "classes": "class"}.get(task, "none")
    return tiny(5, labels=labels, num_snapshots=11, num_nodes=14, **more)


@pytest.mark.parametrize("model", ["sage_linear", "sage_attention"])
@pytest.mark.parametrize("kind", GRAPHS)
def test_with_a_fan_out_above_every_degree_nothing_is_left_out(model: str, kind: str) -> None:
    graph = tiny(3, num_snapshots=11, num_nodes=14, **GRAPHS[kind])
    tables = {"model": {"name": model}, "inputs": {"features": "graph"} if "stored" in kind else {}}
    full = learn(settings_of(tables, {"distdy": {"fanouts": [ALL, ALL]}}), graph)
    assert_same([full], learn(whole_settings_of(tables), graph))


@pytest.mark.parametrize("task", TASKS)
def test_every_task_learns_from_sampled_rows_what_it_learns_from_whole_ones(task: str) -> None:
    graph, tables = graph_for(task), {"task": TASKS[task]}
    full = learn(settings_of(tables, {"distdy": {"fanouts": [ALL, ALL]}}), graph)
    assert_same([full], learn(whole_settings_of(tables), graph))


SOME = {"distdy": {"fanouts": [2, 1], "updates": 2}}


@pytest.mark.parametrize("by", ["online", "hash", "metis_layer", "greedy"])
@pytest.mark.parametrize("ranks", [2, 3])
def test_ranks_learn_what_one_process_does_wherever_nodes_are_stored(by: str, ranks: int) -> None:
    """T34: the same samples, rows that come from others, embeddings that meet where the node is now."""
    graph = tiny(4, num_snapshots=11, num_nodes=17, weighted=ranks == 3, features="stored")
    tables = SOME, {"inputs": {"features": "graph"}, "system": {"partition": {"by": by}}}
    wanted = learn(settings_of(*tables), graph)
    assert_same(learn_divided(settings_of(*tables), graph, ranks), wanted)


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("model", ["sage_linear", "sage_attention"])
def test_ranks_learn_every_task(task: str, model: str) -> None:
    graph, tables = graph_for(task), (SOME, {"task": TASKS[task], "model": {"name": model}})
    assert_same(learn_divided(settings_of(*tables), graph, 2), learn(settings_of(*tables), graph))


def test_samples_do_depend_on_the_seed_and_on_the_fan_outs() -> None:
    graph = graph_for("degree")
    losses = [
        learn(settings_of(SOME, more), graph).losses
        for more in ({}, {"train": {"seed": 1}}, {"distdy": {"fanouts": [2, 2]}})
    ]
    assert len({tuple(one) for one in losses}) == 3


@pytest.mark.parametrize("by", ["online", "hash", "metis_layer"])
@pytest.mark.parametrize("features", ["stored", "fixed", "none"])
def test_stores_hold_to_the_byte_what_the_partitioner_counts(by: str, features: Any) -> None:
    """T29: after every move of the window, on every rank, also where it was filled anew in the middle."""
    graph = tiny(7, num_snapshots=11, num_nodes=19, features=features)
    settings = settings_of(
        SOME, {"system": {"partition": {"by": by}}, "inputs": {"features": "degree" if features == "none" else "graph"}}
    )

    def hold(world: World) -> list[tuple[int, int]]:
        worker = SampledWorker(open_session(settings, graph, world=world))
        told = []
        for last in range(1, len(graph) + 1):
            worker.stock.hold(max(0, last - 4), last)
            store, placed = worker.stock.store, worker.stock.coordinator.last
            held = world.gather_bytes(str(store.run_bytes).encode(), "control/held")
            if placed is not None:
                assert [int(one) for one in held] == placed.held_K.tolist()
            assert store.held_bytes >= store.run_bytes
            told.append((last, store.run_bytes))
        # Back to an earlier window, and to the same one again.
        worker.stock.hold(2, 6)
        assert worker.stock.store.run_bytes == told[5][1]
        assert list(worker.stock.known) == [2, 3, 4, 5] == list(worker.stock.store.snapshots)
        worker.close()
        return told

    assert len(threads.run(3, hold, check=True)) == 3


def test_rows_that_were_fetched_are_kept_as_far_as_there_is_room() -> None:
    graph = tiny(4, num_snapshots=11, num_nodes=17, features="fixed")
    fetched = []
    for room in (0, 40, 1 << 20):
        settings = settings_of(SOME, {"inputs": {"features": "graph"}, "distdy": {"cache_bytes": room}})
        told = learn_divided(settings, graph, 2)
        fetched.append(sum(shape[0] for one in told for name, shape in one.log if name == "fetch/rows"))
        assert_same(told, learn(settings, graph))
    assert fetched[0] > fetched[1] > fetched[2]


def test_a_row_cache_finds_what_it_keeps_and_never_grows_beyond_its_room() -> None:
    cache = RowCache(5 * (4 * 3 + 16), 3)
    rows = np.arange(12, dtype=np.float32).reshape(4, 3)
    cache.keep(np.array([9, 2, 30, 4]), rows)
    places = cache.find(np.array([30, 3, 2]))
    assert places[1] == -1
    np.testing.assert_array_equal(cache.rows(places[[0, 2]]), rows[[2, 1]])
    cache.keep(np.array([7, 8]), rows[:2])
    assert len(cache) == 2
    cache.keep(np.arange(100), np.zeros((100, 3), np.float32))
    assert len(cache) == 5
    assert cache.num_bytes <= 5 * (4 * 3 + 16)


def test_a_store_tells_whom_a_node_keeps_and_each_of_them_once() -> None:
    sources = np.arange(20)
    layout = layout_for(30, 0)
    now = Snapshot(0, 30, layout, layout.pack(sources, np.full(20, 25)), None, np.ones(30, np.bool_))
    store = Store(SegmentLayout(2), layout, window=2, weighted=False)
    none = Delta(layout, NO_KEYS, NO_WEIGHTS, NO_WEIGHTS)
    parts = np.full(30, -1, np.int32), np.zeros(30, np.int32), 0
    rows = np.arange(60, dtype=np.float32).reshape(30, 2)
    store.append(0, 30, feature_change(rows, np.zeros(30, np.uint32), *parts), edge_change(none, now, *parts))
    nodes, drawn = np.array([25, 3]), np.zeros(20)
    for key in range(300):
        told = store.neighbours(0, nodes, fanout=5, key=key)
        assert told.sizes_M.tolist() == [5, 0]
        assert len(set(told.sources_E.tolist())) == 5
        drawn[told.sources_E] += 1
    # Each of 20 is kept by a quarter of 300 draws.
    assert drawn.min() > 40
    assert drawn.max() < 115
    np.testing.assert_array_equal(store.rows(0, nodes), rows[nodes])


@pytest.mark.parametrize(("tables", "says"), [
    ({"window": {"state": "inherit", "stride": 0}}, "window.state=zero"),
    ({"window": {"groups": 2}}, "window.groups=1"),
    ({"distdy": {"fanouts": [3]}}, "one fan-out for each layer"),
    ({"distdy": {"fanouts": [3, 0]}}, "1 or more"),
    ({"distdy": {"updates": 0}}, "distdy.updates=0"),
    ({"distdy": {"capacity_bytes": 0}}, "holds nothing"),
    ({"system": {"divide": "nodes"}, "distdy": {"updates": 2}}, "[distdy] was set"),
    ({"schedule": {"scheduler": "real_g"}}, "schedule.scheduler=real_g"),
    ({"system": {"recompute": True}}, "sample and fetch everything twice"),
    ({"system": {"partition": {"online": {"window": 9}}}}, "system.partition.online.window=9"),
    ({"system": {"partition": {"online": {"sampling": {"batch": 9}}}}}, "system.partition.online.sampling was set"),
])  # fmt: skip
def test_what_cannot_be_sampled_is_refused(tables: dict[str, Any], says: str) -> None:
    with pytest.raises(BadConfig, match=re.escape(says)):
        settings_of(tables)


def test_models_without_layers_of_means_are_refused_on_one_rank_too() -> None:
    with pytest.raises(BadConfig, match="neighbours are sampled for layers of means"):
        open_session(settings_of({"model": {"name": "tgcn"}}), tiny(3))


def test_a_capacity_that_is_too_small_is_recorded_and_changes_no_number() -> None:
    graph = tiny(4, num_snapshots=9, num_nodes=17)
    tight = settings_of(SOME, {"distdy": {"capacity_bytes": 300}})
    assert_same(learn_divided(tight, graph, 2), learn(settings_of(SOME), graph))


def records_of(settings: RunSettings, graph: GraphLike, ranks: int) -> list[list[Record]]:
    """Train to the end as so many ranks; return what each yields."""

    def run(world: World) -> list[Record]:
        trainer = Trainer(open_session(settings, graph, world=world), None)
        told = list(train(trainer))
        trainer.close()
        return told

    return threads.run(ranks, run, check=True)


@pytest.mark.parametrize("by", ["online", "hash"])
def test_every_placement_is_told_and_the_first_that_does_not_fit_in_a_sentence(by: str) -> None:
    graph = tiny(4, num_snapshots=9, num_nodes=17)
    tables = {"system": {"partition": {"by": by}}, "train": {"epochs": 2}}
    tight, wide = (
        records_of(settings_of(SOME, tables, {"distdy": {"capacity_bytes": room}}), graph, 2)[0]
        for room in (300, 1 << 20)
    )
    for told in (tight, wide):
        placed = [record for record in told if isinstance(record, Placed)]
        # The last snapshot is only ever a label.
        assert [one.t for one in placed] == list(range(8))
        assert all(len(one.held_bytes) == 2 for one in placed)
        assert all(0.0 <= one.kept_share <= 1.0 for one in placed)
        for one in placed:
            assert (max(one.held_bytes) > one.capacity_bytes) <= (one.overflows > 0)
    (warned,) = [record.sentence for record in tight if isinstance(record, Warned)]
    first = next(record for record in tight if isinstance(record, Placed) and record.overflows)
    assert f"snapshot {first.t} does not fit in the 300 bytes" in warned
    assert f"stores {max(first.held_bytes)}" in warned
    assert first.examples
    assert not any(isinstance(record, Warned) for record in wide)
    assert not any(record.overflows for record in wide if isinstance(record, Placed))


def test_a_rank_keeps_two_whole_snapshots_and_of_the_others_its_own_part(tmp_path: Path) -> None:
    """T29, of the process: what it holds of whole snapshots does not grow with the window."""
    graph = open_graph(drift(tmp_path / "drift", num_snapshots=16))
    settings = settings_of(SOME, {"window": {"length": 5}, "train": {"epochs": 1, "cache_bytes": "none"}})
    gc.collect()
    # What another test left is not this run's.
    others = {id(one): one for one in gc.get_objects() if type(one) is Snapshot}
    trainer, most = Trainer(open_session(settings, graph), None), 0
    for record in train(trainer):
        if isinstance(record, Stepped | EpochEnded):
            gc.collect()
            most = max(most, sum(type(one) is Snapshot and id(one) not in others for one in gc.get_objects()))
    trainer.close()
    assert 1 <= most <= 2


def test_the_live_protocol_tells_placements_and_traffic_as_they_come() -> None:
    graph = tiny(4, num_snapshots=9, num_nodes=17)
    table = {"train": {"protocol": "live"}, "live": {"steps": 2, "warmup": 0.3}}

    def run(world: World) -> tuple[list[Record], int]:
        trainer = Trainer(open_session(settings_of(SOME, table), graph, world=world), None)
        told = list(train_live(trainer, AllThere(trainer, first_scored(trainer.session.split))))
        trainer.close()
        return told, len(trainer.spans)

    (told, left), _ = threads.run(2, run, check=True)
    ends = [place for place, record in enumerate(told) if isinstance(record, EpochEnded)]
    placed = [place for place, record in enumerate(told) if isinstance(record, Placed)]
    assert [record.t for record in told if isinstance(record, Placed)] == list(range(8))
    # Told with the snapshot itself, not at the end.
    assert all(end < place for end, place in zip(ends, placed, strict=True))
    assert all(place < end for place, end in zip(placed, ends[1:], strict=False))
    assert {(one.rank, one.epoch) for one in told if isinstance(one, Traffic)} == {
        (rank, t) for rank in (0, 1) for t in range(8)
    }
    assert left == 0, "what steps were spent on is not gathered for ever"
