"""Chains of snapshots for the tests of incremental kernels."""

from __future__ import annotations

import numpy as np
import torch

from tests.kernels.graphs import WEIGHTS, edge_list
from timeloom.kernels.edges import Edges, Rows
from timeloom.kernels.reference import EdgeList

Book = dict[tuple[int, int, int], float]
"""Target, source and type of each edge, and its weight."""


def graph_of(book: Book, alive: list[bool], *, weighted: bool) -> EdgeList:
    """Return the edges of a book, in the order in which snapshots keep them."""
    rows = sorted(book)
    return edge_list([(u, v) for v, u, _ in rows], [book[row] for row in rows] if weighted else None, alive)


def drawn_chain(seed: int, num_snapshots: int = 6) -> list[EdgeList]:
    """Return a random chain: births, deaths, weights that change, parallel edges, emptied rows, empty snapshots."""
    rng = np.random.default_rng(seed)
    num_nodes, weighted = int(rng.integers(1, 8)), bool(rng.integers(2))
    alive, book = [bool(draw < 0.8) for draw in rng.random(num_nodes)], _more({}, 4 * num_nodes + 2, num_nodes, rng)
    chain = [graph_of(book, alive, weighted=weighted)]
    while len(chain) < num_snapshots:
        kind, node = int(rng.integers(8)), int(rng.integers(num_nodes))
        kept = {row: weight for row, weight in book.items() if rng.random() < 0.9}
        if kind < 3:
            book = _more(kept, int(rng.integers(4)), num_nodes, rng)
        elif kind == 3:
            book = {row: float(rng.choice(WEIGHTS)) if rng.random() < 0.4 else book[row] for row in book}
        elif kind == 4:
            book = {row: weight for row, weight in book.items() if row[0] != node}
        elif kind == 5:
            alive = [not there if v == node else there for v, there in enumerate(alive)]
            book = {row: weight for row, weight in book.items() if alive[node] or node not in row[:2]}
        elif kind == 6:
            book = {} if rng.random() < 0.5 else _more(book, 8, num_nodes, rng)
        chain.append(graph_of(book, alive, weighted=weighted))
    return chain


def _more(book: Book, count: int, num_nodes: int, rng: np.random.Generator) -> Book:
    new = {
        (int(rng.integers(num_nodes)), int(rng.integers(num_nodes)), int(rng.integers(2))): float(rng.choice(WEIGHTS))
        for _ in range(count)
    }
    return {**new, **book}


def power_law_chain(num_nodes: int, num_edges: int, turnover: float, num_snapshots: int) -> list[Edges]:
    """Return a chain whose edges have both ends drawn by power laws; a share of them changes from one to the next."""
    rng = np.random.default_rng(3)
    cumulative = np.cumsum(rng.permutation((1.0 + np.arange(num_nodes)) ** -0.6))

    def draw(count: int) -> np.ndarray:
        ends = np.searchsorted(cumulative, rng.random((2, count)) * cumulative[-1])
        return np.asarray(ends[0] * num_nodes + ends[1])

    keys, chain = np.unique(draw(num_edges)), []
    for _ in range(num_snapshots):
        chain.append(_edges_of_keys(keys, num_nodes))
        count = int(len(keys) * turnover)
        kept = np.delete(keys, rng.choice(len(keys), count, replace=False))
        keys = np.unique(np.concatenate([kept, draw(count)]))
    return chain


def _edges_of_keys(keys: np.ndarray, num_nodes: int) -> Edges:
    targets, sources = keys // num_nodes, keys % num_nodes
    order = np.argsort(sources, kind="stable")

    def rows(nodes: np.ndarray, others: np.ndarray) -> Rows:
        starts = np.concatenate([[0], np.cumsum(np.bincount(nodes, minlength=num_nodes))])
        return Rows(torch.from_numpy(starts).int(), torch.from_numpy(others).int(), None)

    return Edges(rows(targets, sources), rows(sources[order], targets[order]), torch.from_numpy(order).int())
