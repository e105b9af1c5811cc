"""A hybrid batch says what whole snapshots say of its targets: rows, loss and gradients (T24)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.graph.tiny import TinyGraph, tiny
from tests.train.divided_runs import owned_by
from tests.train.hybrid.apart_runs import ALL, loss_of, settings_of, whole_seen
from timeloom.dist import threads
from timeloom.dist.collectives import World
from timeloom.errors import BadConfig, TooLarge
from timeloom.graph.tasks import Part
from timeloom.kernels.norms import Norm
from timeloom.nn.model import Memory, Model, Rows, State, View
from timeloom.nn.models import MODELS
from timeloom.nn.settings import ModelSettings
from timeloom.plan.batch.hybrid import HybridBatch
from timeloom.plan.batch.layered import rows_given
from timeloom.train.evaluate import evaluate, evaluate_baselines
from timeloom.train.goals.goal import Seen
from timeloom.train.hybrid.cache import hold
from timeloom.train.hybrid.walk import cutout_walker
from timeloom.train.hybrid.worker import HybridWorker
from timeloom.train.session import open_session
from timeloom.train.settings import RunSettings
from timeloom.train.whole import WholeWorker

NODES = 13
OWNERS = [0, 1, 1, 0, 1, 0, 0, 1, 1, 0, 1, 1, 0]
REFUSED = ("tgcn_integrated", "dcrnn", "evolvegcn_h")
SERVED = [name for name in MODELS if name not in REFUSED]
BATCHES = 3


@pytest.fixture(scope="module")
def graph() -> TinyGraph:
    """Weights, nodes that come and go, and an almost empty snapshot; so few edges that no hop reaches all."""
    return tiny(3, num_nodes=NODES, num_snapshots=11, weighted=True, share=0.1)


@dataclass(frozen=True)
class Batched:
    """What came of a batch on a rank that holds nothing but its cache."""

    batch: HybridBatch
    nodes: np.ndarray[Any, Any]
    seen: list[Seen]
    loss: float
    weight: float
    gradients: dict[str, Tensor]
    held: int


def of_rank(settings: RunSettings, graph: TinyGraph, world: World) -> list[Batched]:
    """Learn from a few batches, and from one of all nodes."""
    session = open_session(settings, graph, world=world)
    worker, walker = HybridWorker(session), cutout_walker(session)
    assert worker.batches is not None
    assert worker._cache is not None
    maker, found = worker.batches._maker, list[Batched]()
    rng = np.random.default_rng(0)
    for batch in [*(maker.hybrid(number % 4, number) for number in range(BATCHES)), maker.snapshots(3, rng)]:
        session.predictor.zero_grad()
        learnt = worker.learn_from(batch, ALL)
        gradients = {
            name: parameter.grad.clone()
            for name, parameter in session.predictor.named_parameters()
            if parameter.grad is not None
        }
        with torch.no_grad():
            seen, _ = walker.walk(batch.levels, worker._cache.inputs.over(batch.cutout), walker.start(batch.levels))
        nodes = batch.cutout.nodes_N[: batch.cutout.num_targets]
        held = worker._cache.cutout.num_nodes
        found.append(Batched(batch, nodes, seen, learnt.loss, learnt.weight, gradients, held))
    return found


def assert_as_whole(settings: RunSettings, graph: TinyGraph, monkeypatch: pytest.MonkeyPatch) -> list[Batched]:
    """Check the batches of two ranks against whole snapshots in one process."""
    owned_by(monkeypatch, OWNERS)
    found = [one for rank in threads.run(2, lambda world: of_rank(settings, graph, world)) for one in rank]
    session = open_session(settings, graph)
    for one in found:
        session.predictor.zero_grad()
        wanted = whole_seen(session, one.batch, one.nodes)
        assert [mine.t for mine in one.seen] == [theirs.t for theirs in wanted]
        for mine, theirs in zip(one.seen, wanted, strict=True):
            torch.testing.assert_close(mine.out_NH, theirs.out_NH.detach(), rtol=1e-10, atol=1e-12)
            assert torch.equal(mine.born_N, theirs.born_N)
        total, count = loss_of(session, wanted)
        if count:
            total.backward()  # type: ignore[no-untyped-call]
        assert one.weight == pytest.approx(count, rel=1e-12)
        np.testing.assert_allclose(one.loss, float(total.detach()), rtol=1e-10)
        for name, parameter in session.predictor.named_parameters():
            assert (parameter.grad is None) == (name not in one.gradients), name
            if parameter.grad is not None:
                torch.testing.assert_close(one.gradients[name], parameter.grad, rtol=1e-10, atol=1e-12)
    return found


@pytest.mark.parametrize("model", SERVED)
@pytest.mark.parametrize("layers", [1, 2, 3])
@pytest.mark.parametrize("sets", ["union", "causal"])
def test_a_batch_says_what_whole_snapshots_say(
    graph: TinyGraph, monkeypatch: pytest.MonkeyPatch, model: str, layers: int, sets: str
) -> None:
    settings = settings_of({"model": {"name": model, "layers": layers}, "hybrid": {"sets": sets}})
    found = assert_as_whole(settings, graph, monkeypatch)
    assert len(found) == 2 * (BATCHES + 1)
    if layers == 1 and model not in ("sage_linear", "sage_attention", "mpnn_lstm"):
        assert any(one.batch.cutout.num_nodes < NODES for one in found), "a batch that is less than everything"


@pytest.mark.parametrize(
    "more",
    [
        {"model": {"absent": "run", "layers": 2}},
        {"model": {"norm": "both", "layers": 2}},
        {"model": {"norm": "mean", "self_loops": False}},
        {"task": {"residual": True}, "inputs": {"features": "log_degree", "lags": 2}},
    ],
)
@pytest.mark.parametrize("model", ["tgcn", "evolvegcn_o"])
def test_norms_absent_nodes_and_past_labels_are_as_in_whole_snapshots(
    graph: TinyGraph, monkeypatch: pytest.MonkeyPatch, model: str, more: dict[str, Any]
) -> None:
    assert_as_whole(settings_of({"model": {"name": model}}, more), graph, monkeypatch)


@pytest.mark.parametrize(
    ("task", "options"),
    [
        ({"name": "signal", "loss": "mae"}, {"labels": "value", "features": "stored"}),
        ({"name": "degree"}, {"features": "fixed"}),
        ({"name": "classes", "class_weights": "balanced"}, {"labels": "class"}),
        ({"name": "classes", "node_split": "nodes"}, {"labels": "class", "fixed_labels": True, "features": "log"}),
    ],
)
def test_every_task_about_nodes_is_served(
    monkeypatch: pytest.MonkeyPatch, task: dict[str, Any], options: dict[str, Any]
) -> None:
    graph = tiny(3, num_nodes=NODES, num_snapshots=11, share=0.15, **options)
    settings = settings_of({"model": {"name": "gcn_gru", "layers": 2}, "task": task, "inputs": {"features": "auto"}})
    if task["name"] == "classes" and task.get("class_weights"):
        # Counts of classes are agreed on before ranks train apart.
        with_counts(monkeypatch)
    assert_as_whole(settings, graph, monkeypatch)


def with_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a worker begin as the loop does, with what baselines know."""
    begin = HybridWorker.__init__

    def after_baselines(self: HybridWorker, session: Any, *args: Any) -> None:
        evaluate_baselines(session, "val")
        begin(self, session, *args)

    monkeypatch.setattr(HybridWorker, "__init__", after_baselines)


class Against(Model):
    """A model of one's own that also sends messages against the edges, two hops each way."""

    def __init__(self, num_in: int, settings: ModelSettings) -> None:
        super().__init__()
        self.out_size, self.hops = settings.hidden, 2
        self.weight = torch.nn.Parameter(torch.ones(2 * num_in, settings.hidden) * 0.1)

    def memory(self) -> Memory:
        return ()

    def encode(self, view: View, x_NF: Tensor) -> Rows:
        there, back = Norm("push"), Norm("push", reverse=True)
        both = [view.aggregate(view.aggregate(x_NF, norm), other) for norm, other in ((there, back), (back, there))]
        return (torch.cat(both, 1) @ self.weight,)

    def recur(self, view: View, rows: Rows, state: State) -> tuple[Tensor, State]:
        return torch.tanh(rows[0]), ()


@pytest.mark.parametrize("sets", ["union", "causal"])
def test_messages_against_the_edges_find_their_neighbourhoods(
    graph: TinyGraph, monkeypatch: pytest.MonkeyPatch, sets: str
) -> None:
    settings = settings_of({"model": {"name": f"{__file__}:Against"}, "hybrid": {"sets": sets}})
    assert_as_whole(settings, graph, monkeypatch)


def test_a_layer_above_reads_fewer_rows_than_the_one_below(graph: TinyGraph) -> None:
    settings = settings_of({"model": {"name": "tgcn", "layers": 3}})
    session = open_session(settings, graph)
    held = hold(session, np.array([2, 5]), 0, 6)
    sizes = [level.num_nodes for level in held.levels]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] > sizes[-1] > 2
    assert rows_given(held.levels) == (*sizes[1:], 2)
    assert [level.num_edges for level in held.levels] == sorted(
        (level.num_edges for level in held.levels), reverse=True
    )


@pytest.mark.parametrize("state", ["inherit", "zero"])
@pytest.mark.parametrize("model", ["tgcn", "evolvegcn_o", "sage_attention", "mpnn_lstm"])
def test_ranks_score_together_what_one_process_scores(
    graph: TinyGraph, monkeypatch: pytest.MonkeyPatch, model: str, state: str
) -> None:
    settings = settings_of({"model": {"name": model, "layers": 2}, "window": {"state": state, "length": 3}})
    owned_by(monkeypatch, [owner + (owner > 0) for owner in OWNERS])

    def scored(world: World) -> list[dict[str, float]]:
        session = open_session(settings, graph, world=world)
        worker, found = HybridWorker(session), []
        parts: tuple[Part, ...] = ("val", "test", "val")
        for part in parts:
            evaluate_baselines(session, part)
            found.append(evaluate(worker, part))
        return found

    # The second of three ranks owns nothing.
    found = threads.run(3, scored, check=True)
    session = open_session(settings, graph)
    scored_parts: tuple[Part, ...] = ("val", "test")
    for part, mine in zip(scored_parts, found[0], strict=False):
        evaluate_baselines(session, part)
        wanted = evaluate(WholeWorker(session), part)
        assert mine == pytest.approx(wanted, rel=1e-9)
    assert found[0] == found[1] == found[2]
    assert found[0][0] == found[0][2]


@pytest.mark.parametrize("model", REFUSED)
def test_models_that_need_more_than_a_neighbourhood_are_refused(graph: TinyGraph, model: str) -> None:
    with pytest.raises(BadConfig, match=f"model {model} with system.name=dynahb: it .*--system vertex or --system"):
        open_session(settings_of({"model": {"name": model}}), graph)


def test_a_cache_over_the_budget_is_refused_with_its_size(graph: TinyGraph) -> None:
    session = open_session(settings_of({"hybrid": {"cache_mib": 0.001}}), graph)
    with pytest.raises(TooLarge, match=r"caching the 1-hop neighbourhood of 13 nodes takes \d+ bytes .* is 1048"):
        HybridWorker(session)


def test_what_is_held_for_validation_counts_in_the_budget(graph: TinyGraph) -> None:
    session = open_session(settings_of(), graph)
    held = hold(session, np.arange(NODES), 0, session.split.val_stop)
    # Enough for either, and not for both.
    tight = open_session(settings_of({"hybrid": {"cache_mib": 1.2 * held.num_bytes / 2**20}}), graph)
    with pytest.raises(TooLarge, match="but the budget is"):
        HybridWorker(tight)


@pytest.mark.parametrize(
    ("tables", "told"),
    [
        ({"task": {"name": "links"}}, "task.name=links with system.name=dynahb: .* use --system vertex"),
        ({"train": {"protocol": "live"}}, "train.protocol=live"),
        ({"reuse": {"mode": "delta"}}, "reuse.mode=delta"),
        ({"window": {"state": "zero"}, "schedule": {"scheduler": "best"}}, "schedule.scheduler=best"),
        ({"window": {"stride": 2}}, "window.stride, .* leave them out"),
        ({"window": {"shuffle": False}}, "window.shuffle was set"),
    ],
)
def test_what_batches_cannot_be_is_refused(tables: dict[str, Any], told: str) -> None:
    with pytest.raises(BadConfig, match=told):
        settings_of(tables)
