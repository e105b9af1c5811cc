"""Does the simulated batch move what a batch moves, whatever the placement?"""

from __future__ import annotations

import numpy as np

from tests.plan.partition.graphs import drawn, graph_of
from timeloom.plan.partition.fetches import simulate_fetches
from timeloom.plan.partition.weights import SamplingSettings, fetch_probabilities


def test_a_worked_case() -> None:
    """Target 0 on server 0 reads 1 (its own), 2 and 3 (of server 1); target 3 on server 1 reads 1 (of server 0)."""
    graph = graph_of(4, [(1, 0), (2, 0), (3, 0), (1, 3)], [(1, 0)])
    first, second = np.array([0, 0, 1, 1], np.int32), np.array([1, 0, -1, -1], np.int32)
    window = [(graph.all[0], first), (graph.all[1], second)]
    found = simulate_fetches(window, np.array([0, 3]), servers=2, fanouts=(5,), seed=0, step=0)
    # Snapshot 0: worker 0 reads rows 0, 1 | 2, 3; worker 1 reads 3 | 1. Snapshot 1: worker 1 reads 0 | 1.
    assert found.rows_KK.tolist() == [[2, 2], [2, 2]]
    # Target 0 went from server 0 to server 1; target 3 is not there any more.
    assert found.embeddings_KK.tolist() == [[0, 1], [0, 1]]
    assert found.num_bytes(row_bytes=100, embedding_bytes=7) == 4 * 100 + 7


def test_one_server_moves_nothing_and_reads_what_any_placement_reads_in_all() -> None:
    """The draws do not depend on the placement: the rows that all workers need together are the same."""
    graph, targets = drawn(3), np.arange(0, 60, 4)
    alone = simulate_fetches(
        [(s, np.zeros(60, np.int32)) for s in graph.all[:3]], targets, servers=1, fanouts=(3, 2), seed=1, step=2
    )
    assert alone.num_bytes(row_bytes=1, embedding_bytes=1) == 0
    many = [np.arange(60, dtype=np.int32) % 70] * 3
    spread = simulate_fetches(
        list(zip(graph.all[:3], many, strict=True)), targets, servers=70, fanouts=(3, 2), seed=1, step=2
    )
    assert spread.rows_KK.sum() >= alone.rows_KK.sum()
    per_target = [
        simulate_fetches([(s, many[0])], np.array([v]), servers=70, fanouts=(3, 2), seed=1, step=2).rows_KK.sum()
        for s in graph.all[:3]
        for v in targets.tolist()
    ]
    assert spread.rows_KK.sum() == sum(per_target), "each of these targets is alone on its worker"


def test_at_most_the_fan_out_is_kept_without_repeats_and_evenly() -> None:
    graph = graph_of(9, [(u, 0) for u in range(1, 9)])
    times = np.zeros(9)
    for seed in range(3000):
        one = np.arange(9, dtype=np.int32)
        found = simulate_fetches([(graph.all[0], one)], np.array([0]), servers=9, fanouts=(3,), seed=seed, step=0)
        column = found.rows_KK[:, 0]
        assert column.sum() == 4
        assert column.max() == 1
        times += column
    assert np.abs(times[1:] / 3000 - 3 / 8).max() < 5 * np.sqrt(0.375 * 0.625 / 3000)


def test_the_surrogate_weights_expect_the_rows_that_batches_read() -> None:
    graph, rng = drawn(4, num_nodes=240, num_edges=900), np.random.default_rng(0)
    alive = np.flatnonzero(graph.all[0].alive)
    zeros = np.zeros(240, np.int32)
    read = [
        simulate_fetches(
            [(graph.all[0], zeros)], rng.choice(alive, 20, replace=False), servers=1, fanouts=(2, 3), seed=0, step=step
        ).rows_KK.sum()
        for step in range(400)
    ]
    expected = fetch_probabilities(graph.all[0], SamplingSettings(batch=20, fanouts=(2, 3))).node_N.sum()
    assert abs(np.mean(read) / expected - 1) < 0.02
