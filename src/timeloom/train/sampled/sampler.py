"""How a batch's neighbourhoods are sampled and fetched: in bulk, all snapshots of a window at once.

A target is sampled on the rank that stores it in that snapshot; its neighbours' neighbours on the ranks that store
those. Rows of features are asked for once each, however many snapshots and nodes read them, and those that were fetched
are kept as far as there is room. Everything here is done by one thread, in the group `fetch`.

Shape letters: M nodes at some time, E edges, F features, U different rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from timeloom.dist.collectives import World
from timeloom.graph.features import Float32s
from timeloom.graph.keys import Float64s, Int64s
from timeloom.plan.partition.fetches import key_of
from timeloom.train.sampled.blocks import Layer, Sample, layer_of
from timeloom.train.sampled.cache import RowCache
from timeloom.train.sampled.stock import Stock

D = TypeVar("D", bound=np.generic)


@dataclass(frozen=True, slots=True)
class At:
    """Nodes at some time, as numbers: ``code = place of the snapshot in the window * N + node``."""

    first: int
    num_nodes: int

    def codes(self, t: int, nodes: Int64s) -> Int64s:
        """Return the numbers of nodes in snapshot t."""
        return (t - self.first) * self.num_nodes + nodes

    def split(self, codes: Int64s) -> tuple[Int64s, Int64s]:
        """Return the snapshots and the nodes."""
        return self.first + codes // self.num_nodes, codes % self.num_nodes


class Sampler:
    """One rank's sampler."""

    def __init__(self, stock: Stock, world: World, fanouts: tuple[int, ...], *, cache_bytes: int) -> None:
        self.stock, self._world, self._fanouts = stock, world, fanouts
        self.cache = RowCache(cache_bytes, stock.feed.num_features)

    def sample(self, at: At, targets_M: Int64s, *key: int) -> Sample:
        """Collective. Return what the layers of a model read to embed nodes that are stored here, at their times."""
        have, layers = targets_M, list[tuple[Int64s, Int64s, Float64s | None]]()
        for depth, fanout in enumerate(self._fanouts):
            sizes, sources, weights = self._neighbours(at, have, depth, fanout, key)
            have = _with_new(have, sources)
            layers.append((sizes, sources, weights))
        feed = self.stock.feed
        order = np.argsort(have)
        made: list[Layer] = []
        for depth in reversed(range(len(layers))):
            sizes, sources, weights = layers[depth]
            num_rows = len(layers[depth + 1][0]) if depth + 1 < len(layers) else len(have)
            places = order[np.searchsorted(have, sources, sorter=order)]
            made.append(layer_of(sizes, places, weights, num_rows=num_rows, dtype=feed.dtype, device=feed.device))
        rows = torch.from_numpy(feed.scaled(self._rows(at, have))).to(feed.dtype, copy=True).to(feed.device)
        return Sample(rows, tuple(made))

    def _servers(self, at: At, codes: Int64s) -> Int64s:
        """Return the rank that stores each node at its time."""
        times, nodes = at.split(codes)
        servers = np.empty(len(codes), np.int64)
        for t, here in _by_time(times):
            servers[here] = self.stock.known[t].server_N[nodes[here]]
        return servers

    def _neighbours(
        self, at: At, codes_M: Int64s, depth: int, fanout: int, key: tuple[int, ...]
    ) -> tuple[Int64s, Int64s, Float64s | None]:  # fmt: skip
        """Collective. Return which in-neighbours nodes keep, node by node, each found where it is stored."""
        order, sent = _to_ranks(self._servers(at, codes_M), self._world.size)
        received = self._counts(sent)
        asked = self._swap(codes_M[order], "fetch/ids", sent, received)
        sizes, sources, weights = self._local(at, asked, depth, fanout, key)
        ends = np.concatenate([[0], np.cumsum(sizes)])
        told = tuple(np.diff(ends[np.concatenate([[0], np.cumsum(received)])]).tolist())
        came_sizes = self._swap(sizes, "fetch/degrees", received, sent)
        each = np.concatenate([[0], np.cumsum(came_sizes)])
        coming = tuple(np.diff(each[np.concatenate([[0], np.cumsum(sent)])]).tolist())
        came = self._swap(sources, "fetch/edges", told, coming)
        came_weights = None if weights is None else self._swap(weights, "fetch/weights", told, coming)
        # Back into the order in which nodes were asked for.
        back = np.empty(len(order), np.int64)
        back[order] = np.arange(len(order))
        sizes_M = came_sizes[back]
        places = np.arange(int(sizes_M.sum())) + np.repeat(each[back] - (np.cumsum(sizes_M) - sizes_M), sizes_M)
        return sizes_M, came[places], None if came_weights is None else came_weights[places]

    def _local(
        self, at: At, codes: Int64s, depth: int, fanout: int, key: tuple[int, ...]
    ) -> tuple[Int64s, Int64s, Float64s | None]:  # fmt: skip
        """Return which in-neighbours nodes that are stored here keep; sources as nodes at the same time."""
        times, nodes = at.split(codes)
        sizes = np.zeros(len(codes), np.int64)
        weighted, found = self.stock.store.edges.weighted, list[tuple[Int64s, Int64s, Float64s | None]]()
        for t, here in _by_time(times):
            kept = self.stock.store.neighbours(t, nodes[here], fanout=fanout, key=key_of(*key, t, depth))
            sizes[here] = kept.sizes_M
            found.append((here, at.codes(t, kept.sources_E), kept.weights_E))
        ends = np.cumsum(sizes)
        sources, weights = np.empty(int(sizes.sum()), np.int64), np.empty(int(sizes.sum()) if weighted else 0)
        for here, told, heavy in found:
            counts = sizes[here]
            places = np.arange(len(told)) + np.repeat(ends[here] - np.cumsum(counts), counts)
            sources[places] = told
            if heavy is not None:
                weights[places] = heavy
        return sizes, sources, weights if weighted else None

    def _rows(self, at: At, codes_M: Int64s) -> Float32s:
        """Collective. Return the features of nodes at their times, before scaling."""
        times, nodes = at.split(codes_M)
        since, servers = np.empty(len(codes_M), np.int64), self._servers(at, codes_M)
        for t, here in _by_time(times):
            since[here] = self.stock.known[t].since_N[nodes[here]]
        # The same row in several snapshots is one; it is taken from here where it is here at any of these times.
        elsewhere = servers != self._world.rank
        order = np.lexsort((elsewhere, nodes, since))
        first = np.ones(len(order), np.bool_)
        first[1:] = (np.diff(since[order]) != 0) | (np.diff(nodes[order]) != 0)
        chosen, row_of = order[first], np.empty(len(order), np.int64)
        row_of[order] = np.cumsum(first) - 1
        rows_UF = np.empty((len(chosen), self.stock.feed.num_features), np.float32)
        near = np.flatnonzero(~elsewhere[chosen])
        rows_UF[near] = self._stored(at, codes_M[chosen[near]])
        far = np.flatnonzero(elsewhere[chosen])
        keys = since[chosen[far]] << 32 | nodes[chosen[far]]
        known = self.cache.find(keys)
        rows_UF[far[known >= 0]] = self.cache.rows(known[known >= 0])
        missing = far[known < 0]
        rows_UF[missing] = self._fetched(codes_M[chosen[missing]], servers[chosen[missing]], at)
        self.cache.keep(keys[known < 0], rows_UF[missing])
        return rows_UF[row_of]

    def _fetched(self, codes: Int64s, servers: Int64s, at: At) -> Float32s:
        """Collective. Return the rows of nodes from the ranks that store them."""
        order, sent = _to_ranks(servers, self._world.size)
        received = self._counts(sent)
        asked = self._swap(codes[order], "fetch/ids", sent, received)
        came = self._swap(self._stored(at, asked), "fetch/rows", received, sent)
        rows = np.empty_like(came)
        rows[order] = came
        return rows

    def _stored(self, at: At, codes: Int64s) -> Float32s:
        """Return the rows of nodes that are stored here at their times."""
        times, nodes = at.split(codes)
        rows = np.empty((len(codes), self.stock.feed.num_features), np.float32)
        for t, here in _by_time(times):
            rows[here] = self.stock.store.rows(t, nodes[here])
        return rows

    def _counts(self, sent: tuple[int, ...]) -> tuple[int, ...]:
        """Collective. Return how many each rank asks of this one."""
        each = (1,) * self._world.size
        counts = torch.tensor(sent, device=self._world.device)
        return tuple(self._world.all_to_all(counts, "fetch/counts", sent=each, received=each).tolist())

    def _swap(self, rows: NDArray[D], name: str, sent: tuple[int, ...], received: tuple[int, ...]) -> NDArray[D]:
        """Collective. Send rows to ranks, in their order; return what came, by rank."""
        told = torch.from_numpy(np.ascontiguousarray(rows)).to(self._world.device)
        came: NDArray[D] = self._world.all_to_all(told, name, sent=sent, received=received).cpu().numpy()
        return came


def _by_time(times: Int64s) -> list[tuple[int, Int64s]]:
    """Return the places of each snapshot."""
    return [(int(t), np.flatnonzero(times == t)) for t in np.unique(times)]


def _to_ranks(servers: Int64s, size: int) -> tuple[Int64s, tuple[int, ...]]:
    """Return places in the order of their ranks, and how many go to each."""
    return np.argsort(servers, kind="stable"), tuple(np.bincount(servers, minlength=size).tolist())


def _with_new(have: Int64s, sources: Int64s) -> Int64s:
    """Return the nodes there are, then those that are new among their neighbours, ascending."""
    return np.concatenate([have, np.setdiff1d(sources, have)])
