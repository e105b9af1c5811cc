"""Is the probability that an edge carries a row what sampling finds?"""

from __future__ import annotations

import numpy as np
import pytest

from tests.graph.tiny import TinyGraph
from tests.plan.partition.graphs import drawn, graph_of
from timeloom.errors import BadConfig
from timeloom.graph.keys import Float64s
from timeloom.plan.partition.weights import SamplingSettings, fetch_probabilities


def sampled(graph: TinyGraph, batch: int, fanouts: tuple[int, ...], rounds: int) -> tuple[Float64s, Float64s]:
    """Draw batches and neighbours as a sampler does; return how often each node was read and each edge kept."""
    snapshot, rng = graph.all[0], np.random.default_rng(0)
    rows, alive = snapshot.incoming(), np.flatnonzero(snapshot.alive)
    nodes, edges = np.zeros(graph.num_nodes), np.zeros(len(snapshot))
    for _ in range(rounds):
        frontier = set(rng.choice(alive, batch, replace=False).tolist())
        kept: set[int] = set()
        for fanout in fanouts:
            drawn_edges = [
                rng.choice(np.arange(a, b), min(fanout, b - a), replace=False).tolist()
                for v in frontier
                for a, b in [(int(rows.starts[v]), int(rows.starts[v + 1]))]
            ]
            new = {edge for some in drawn_edges for edge in some}
            kept |= new
            frontier |= {int(rows.neighbours[edge]) for edge in new}
        nodes[list(frontier)] += 1
        edges[list(kept)] += 1
    return nodes / rounds, edges / rounds


@pytest.mark.parametrize("fanouts", [(3,), (2, 3)])
def test_probabilities_are_those_that_sampling_finds(fanouts: tuple[int, ...]) -> None:
    """T33: within 0.03 of Monte Carlo (and 0.01 for its own noise), node by node and edge by edge."""
    graph = drawn(4, num_nodes=120, num_edges=450)
    nodes, edges = sampled(graph, 10, fanouts, 2000)
    found = fetch_probabilities(graph.all[0], SamplingSettings(batch=10, fanouts=fanouts))
    assert np.abs(found.node_N - nodes).max() < 0.04
    assert np.abs(found.edge_E - edges).max() < 0.04
    assert abs((found.node_N - nodes).mean()) < 0.01
    assert abs((found.edge_E - edges).mean()) < 0.01
    assert np.corrcoef(found.node_N, nodes)[0, 1] > 0.998


def test_a_worked_case() -> None:
    """Node 2 hears of 0 and 1 and keeps one of them; every node is a target with probability 1/3."""
    snapshot = graph_of(3, [(0, 2), (1, 2)]).all[0]
    found = fetch_probabilities(snapshot, SamplingSettings(batch=1, fanouts=(1,)))
    assert found.edge_E.tolist() == pytest.approx([1 / 6, 1 / 6])
    assert found.node_N.tolist() == pytest.approx([1 - 2 / 3 * 5 / 6, 1 - 2 / 3 * 5 / 6, 1 / 3])


def test_a_batch_of_all_nodes_that_keeps_all_neighbours_reads_everything() -> None:
    graph = drawn(1)
    found = fetch_probabilities(graph.all[0], SamplingSettings(batch=10**6, fanouts=(10**6,)))
    assert (found.edge_E == 1.0).all()
    assert (found.node_N == graph.all[0].alive).all()


def test_settings_that_sample_nothing_are_refused() -> None:
    with pytest.raises(BadConfig, match=r"sampling.batch=0 draws no target"):
        SamplingSettings(batch=0)
    for fanouts in ((), (3, 0)):
        with pytest.raises(BadConfig, match="give one number for each layer"):
            SamplingSettings(fanouts=fanouts)
