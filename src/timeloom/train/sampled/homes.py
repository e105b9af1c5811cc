"""Where the embeddings of a batch's nodes meet: each node's, of all snapshots of the window, on one rank.

That is the rank that stores the node in the newest snapshot (DistDy 3.1), or stored it last; a node that is in no
snapshot of the window has a rank by its number. Every rank finds all of it by itself.

Shape letters: N all nodes, M nodes whose home is here, R rows, H row size.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from timeloom.graph.csr import Int32s
from timeloom.graph.keys import Int64s
from timeloom.train.crossing import Crossing


@dataclass(frozen=True, slots=True)
class Homes:
    """The homes of some nodes over a window, and what travels there."""

    home_N: Int32s
    """The home of each of the nodes; -1 of all others."""
    nodes_M: Int64s
    """Those whose home is here, ascending."""
    alive: Mapping[int, NDArray[np.bool_]]
    """Which of these are there, in each snapshot."""
    embedded: Mapping[int, Int64s]
    """The nodes that are stored here in each snapshot, and so are embedded here; ascending."""
    rows: tuple[Int64s, ...]
    """Which of all embedded rows go to each rank."""
    coming: tuple[tuple[int, Int64s], ...]
    """(rank by rank, snapshot by snapshot) the snapshot, and the places among ``nodes_M`` of the rows that come."""
    received: tuple[int, ...]


def homes_of(nodes: Int64s, servers: Mapping[int, Int32s], *, rank: int, size: int) -> Homes:
    """Return the homes of nodes; ``servers`` are those of all nodes in each snapshot of the window, in order."""
    num_nodes = len(next(iter(servers.values())))
    home = (nodes % size).astype(np.int32)
    for server_N in servers.values():
        home = np.where(server_N[nodes] >= 0, server_N[nodes], home)
    home_N = np.full(num_nodes, -1, np.int32)
    home_N[nodes] = home
    nodes_M = nodes[home == rank]
    embedded = {t: nodes[server_N[nodes] == rank] for t, server_N in servers.items()}
    goes_to = np.concatenate([home_N[told] for told in embedded.values()])
    coming, received = list[tuple[int, Int64s]](), [0] * size
    for source in range(size):
        for t, server_N in servers.items():
            places = np.flatnonzero(server_N[nodes_M] == source)
            coming.append((t, places))
            received[source] += len(places)
    rows = tuple(np.flatnonzero(goes_to == target) for target in range(size))
    alive = {t: server_N[nodes_M] >= 0 for t, server_N in servers.items()}
    return Homes(home_N, nodes_M, alive, embedded, rows, tuple(coming), tuple(received))


def bring_home(homes: Homes, rows_RH: Tensor, crossing: Crossing) -> dict[int, Tensor]:
    """Collective. Return [M, H] for each snapshot: the embeddings of the nodes that live here, 0 of absent ones."""
    order = torch.from_numpy(np.concatenate(homes.rows)).to(rows_RH.device)
    sent = tuple(len(rows) for rows in homes.rows)
    came = crossing.swap(rows_RH.index_select(0, order), sent=sent, received=homes.received, name="state/embeddings")
    parts = torch.split(came, [len(places) for _, places in homes.coming])
    found: dict[int, Tensor] = {}
    for (t, places), part in zip(homes.coming, parts, strict=True):
        before = found.get(t)
        if before is None:
            before = rows_RH.new_zeros(len(homes.nodes_M), rows_RH.shape[1])
        found[t] = before.index_copy(0, torch.from_numpy(places).to(rows_RH.device), part)
    return found
