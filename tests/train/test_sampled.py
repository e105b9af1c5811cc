"""Sampled windows: one process computes what whole snapshots give, and several ranks what one process does (T34)."""

from __future__ import annotations

from typing import Any

import pytest

from tests.graph.tiny import TinyGraph, tiny
from tests.train.divided_runs import EXACT, assert_same, learn, learn_divided
from timeloom.config import build, merge
from timeloom.systems import preset_of
from timeloom.train.settings import RunSettings

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
