"""FlareDTDG in the data plane: what shrunk windows come to, on one rank and on several (SPEC T17 to T22)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.graph.tiny import TinyGraph, tiny
from tests.train.divided_runs import assert_same, learn, learn_divided, owned_by, parameters_of, take_steps
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
from timeloom.nn.models import MODELS
from timeloom.plan.batch.order import Chunking
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
