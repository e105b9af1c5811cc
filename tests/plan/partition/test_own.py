"""A rank keeps the edges that lead to its nodes, knows whose rows they bring, and what others want of it."""

from __future__ import annotations

import numpy as np
import pytest

from tests.graph.tiny import Edge, TinyGraph, snapshot_of, tiny
from timeloom.graph.snapshot import Snapshot
from timeloom.plan.partition.hashed import hash_owners
from timeloom.plan.partition.own import EdgesIn, OwnNodes, edges_in, nodes_in
from timeloom.plan.partition.owners import Owners

BOTH = pytest.mark.parametrize("reverse", [False, True])


def ranks_of(graph: TinyGraph, num_ranks: int, seed: int = 0) -> list[OwnNodes]:
    owners = hash_owners(graph.num_nodes, num_ranks, seed)
    return [OwnNodes(owners, rank) for rank in range(num_ranks)]


def originals(own: OwnNodes, found: EdgesIn, all_found: list[EdgesIn], ranks: list[OwnNodes]) -> list[int]:
    """Return the nodes of the graph by local number, the halo from what the other ranks say they send."""
    nodes: list[int] = own.nodes.tolist()
    for rank, theirs in enumerate(all_found):
        begin = sum(theirs.sent[: own.rank])
        sent = theirs.wanted_S[begin : begin + theirs.sent[own.rank]]
        assert len(sent) == found.received[rank]
        nodes += ranks[rank].nodes[sent].tolist()
    return nodes


def messages(edges: Snapshot, nodes: list[int]) -> list[tuple[int, int, int, float]]:
    """Return sources, targets, types and weights of local edges, in the graph's numbers, in their order."""
    rows = zip(
        edges.sources.tolist(), edges.targets.tolist(), edges.types.tolist(), edges.weights.tolist(), strict=True
    )
    return [(nodes[u], nodes[v], kind, weight) for u, v, kind, weight in rows]


@BOTH
@pytest.mark.parametrize("num_ranks", [1, 2, 4, 9])
@pytest.mark.parametrize("seed", range(4))
def test_every_message_arrives_at_its_owner_once(seed: int, num_ranks: int, reverse: bool) -> None:
    graph = tiny(seed, num_nodes=9, weighted=bool(seed % 2), num_types=2 * (seed % 2))
    ranks = ranks_of(graph, num_ranks, seed)
    for t in range(len(graph)):
        all_found = [edges_in(own, graph.snapshot(t), reverse=reverse) for own in ranks]
        arrived: list[tuple[int, int, int, float]] = []
        for own, found in zip(ranks, all_found, strict=True):
            nodes = originals(own, found, all_found, ranks)
            told = messages(found.edges, nodes)
            assert {v for _, v, _, _ in told} <= set(own.nodes.tolist())
            # Sources of a node come in the order of the graph, as where all nodes are on one rank.
            assert told == sorted(told, key=lambda edge: (edge[1], edge[0], edge[2]))
            arrived += told
        sent = [(e.source, e.target, e.kind, e.weight) for e in graph.edges(t)]
        if reverse:
            sent = [(v, u, kind, weight) for u, v, kind, weight in sent]
        assert sorted(arrived) == sorted(sent)


@BOTH
def test_degrees_are_those_of_the_whole_snapshot(reverse: bool) -> None:
    graph = tiny(3, num_nodes=9, weighted=True)
    ranks = ranks_of(graph, 3)
    for t in range(len(graph)):
        into, out_of = np.zeros(9), np.zeros(9)
        for edge in graph.edges(t):
            into[edge.target] += abs(edge.weight)
            out_of[edge.source] += abs(edge.weight)
        if reverse:
            into, out_of = out_of, into
        all_found = [edges_in(own, graph.snapshot(t), reverse=reverse) for own in ranks]
        for own, found in zip(ranks, all_found, strict=True):
            nodes = originals(own, found, all_found, ranks)
            np.testing.assert_allclose(found.into_L, into[nodes])
            np.testing.assert_allclose(found.out_of_L, out_of[nodes])
            assert found.edges.alive[len(own) :].all()


def test_facts_of_nodes_are_those_of_the_whole_snapshot() -> None:
    graph = tiny(5, num_nodes=9, weighted=True)
    for own in ranks_of(graph, 3):
        for t in range(len(graph)):
            whole, part = graph.snapshot(t), nodes_in(own, graph.snapshot(t))
            np.testing.assert_array_equal(part.alive, whole.alive[own.nodes])
            for found, wanted in zip((*part.degrees(), *part.strengths()), (*whole.degrees(), *whole.strengths()),
                                     strict=True):  # fmt: skip
                np.testing.assert_array_equal(found, wanted[own.nodes])


def test_a_rank_without_nodes_wants_nothing_and_is_asked_for_nothing() -> None:
    owners = Owners(owner_N=np.array([0, 0, 2], np.int32), num_ranks=3, name="given")
    snapshot = snapshot_of(0, 3, [Edge(0, 1, 0, 1.0), Edge(2, 1, 0, 1.0)], alive=set())
    found = edges_in(OwnNodes(owners, 1), snapshot, reverse=False)
    assert (len(found.edges), found.received, found.sent) == (0, (0, 0, 0), (0, 0, 0))
    first = edges_in(OwnNodes(owners, 0), snapshot, reverse=False)
    assert (first.received, first.sent) == ((0, 0, 1), (0, 0, 0))
