"""How work divided by snapshots becomes work divided by nodes, and back.

Each rank computes the structure of its own snapshots for all nodes, then the time of its own nodes over all snapshots.
Snapshots and nodes lie in the order of their ranks; how many of each a rank holds may differ, and may be none.

Shape letters: T all snapshots, t mine, N all nodes, n mine, F features.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from timeloom.dist.collectives import World
from timeloom.dist.flight import Flight, Route, depart, land


@dataclass(frozen=True, slots=True)
class Deal:
    """How many snapshots and how many nodes each rank holds."""

    snapshots: tuple[int, ...]
    nodes: tuple[int, ...]


def start_by_nodes(world: World, deal: Deal, x_tNF: Tensor, name: str) -> Flight:
    """Collective. Begin to give each rank its nodes' rows of my snapshots."""
    mine = deal.snapshots[world.rank]
    num_nodes, num_features = sum(deal.nodes), x_tNF.shape[2]
    assert x_tNF.shape[:2] == (mine, num_nodes), f"{name}: {tuple(x_tNF.shape)}, dealt ({mine}, {num_nodes}, .)"
    parts = [part.reshape(-1, num_features) for part in torch.split(x_tNF, list(deal.nodes), 1)]
    own = deal.nodes[world.rank]
    sent = tuple(mine * nodes for nodes in deal.nodes)
    received = tuple(snapshots * own for snapshots in deal.snapshots)
    return depart(torch.cat(parts), Route(world, name, sent, received))


def finish_by_nodes(world: World, deal: Deal, flight: Flight) -> Tensor:
    """Collective. Return [T, n, F]: all snapshots of my nodes."""
    rows = land(flight)
    return rows.view(sum(deal.snapshots), deal.nodes[world.rank], rows.shape[1])


def by_nodes(world: World, deal: Deal, x_tNF: Tensor, name: str) -> Tensor:
    """Collective. Turn [t, N, F], my snapshots of all nodes, into [T, n, F], all snapshots of my nodes."""
    return finish_by_nodes(world, deal, start_by_nodes(world, deal, x_tNF, name))


def start_by_snapshots(world: World, deal: Deal, x_TnF: Tensor, name: str) -> Flight:
    """Collective. Begin to give each rank its snapshots' rows of my nodes."""
    num_snapshots, own = sum(deal.snapshots), deal.nodes[world.rank]
    assert x_TnF.shape[:2] == (num_snapshots, own), f"{name}: {tuple(x_TnF.shape)}, dealt ({num_snapshots}, {own}, .)"
    sent = tuple(snapshots * own for snapshots in deal.snapshots)
    received = tuple(deal.snapshots[world.rank] * nodes for nodes in deal.nodes)
    return depart(x_TnF.reshape(-1, x_TnF.shape[2]), Route(world, name, sent, received))


def finish_by_snapshots(world: World, deal: Deal, flight: Flight) -> Tensor:
    """Collective. Return [t, N, F]: all nodes of my snapshots."""
    rows, mine = land(flight), deal.snapshots[world.rank]
    parts = torch.split(rows, [mine * nodes for nodes in deal.nodes])
    return torch.cat([part.view(mine, nodes, rows.shape[1]) for part, nodes in zip(parts, deal.nodes, strict=True)], 1)


def by_snapshots(world: World, deal: Deal, x_TnF: Tensor, name: str) -> Tensor:
    """Collective. Turn [T, n, F], all snapshots of my nodes, into [t, N, F], my snapshots of all nodes."""
    return finish_by_snapshots(world, deal, start_by_snapshots(world, deal, x_TnF, name))
