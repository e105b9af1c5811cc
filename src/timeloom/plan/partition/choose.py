"""Which partition is made, by its name.

Shape letters: N nodes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from timeloom.errors import BadConfig
from timeloom.plan.partition.hashed import hash_owners, random_owners
from timeloom.plan.partition.load import load_owners, walk_loads
from timeloom.plan.partition.metis import metis_owners
from timeloom.plan.partition.online import OnlineSettings
from timeloom.plan.partition.owners import Owners
from timeloom.plan.partition.settled import greedy_owners, online_owners
from timeloom.plan.partition.union import GraphOfSnapshots

_LAYERS = 2
PartitionName = Literal["hash", "random", "metis", "load", "greedy", "online", "metis_layer"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionSettings:
    """Who owns a node."""

    by: PartitionName = "hash"
    """hash: a hash of the node. random: dealt out evenly. metis: METIS on the union of the training snapshots. load:
    like work for all (DynaHB). greedy: METIS on the first snapshot, then with neighbours. online: where DistDy's
    partitioner has put nodes by the end of training. Where nodes
    move with every snapshot (system.divide=targets), online is DistDy's own way, metis_layer METIS anew each time."""
    balance: Literal["nodes", "edges"] = "edges"
    """metis: what ranks have alike, `nodes` or `edges` (those into their nodes, over all training snapshots)."""
    layers: int = 0
    """load: how far a node's neighbours count, in layers (0: as far as the run's model hears; 2 without a run)."""
    deal: Literal["serpentine", "round_robin", "lpt"] = "serpentine"
    """load: how nodes are dealt out from the heaviest on: serpentine | round_robin | lpt."""
    online: OnlineSettings = field(default_factory=OnlineSettings)
    seed: int = 0  # random, metis, online: what is drawn is keyed by it

    def __post_init__(self) -> None:
        if not 0 <= self.seed < 1 << 62:
            raise BadConfig(f"partition.seed={self.seed} was asked for: give a number from 0 to 2**62 - 1")
        if self.layers < 0:
            raise BadConfig(f"partition.layers={self.layers} was asked for: give 1 or more, or 0 for the model's own")


def partition(graph: GraphOfSnapshots, t_stop: int, ranks: int, settings: PartitionSettings) -> Owners:
    """Return the owners that the settings say; only snapshots before ``t_stop`` are for training."""
    if not 0 <= t_stop <= len(graph):
        raise BadConfig(
            f"a partition of the snapshots before {t_stop} was asked for, but there are {len(graph)}: give 0 to "
            f"{len(graph)}"
        )
    if settings.by == "metis_layer":
        raise BadConfig(
            "partition.by=metis_layer lets nodes move with every snapshot, which only system.divide=targets (--system "
            "distdy) can follow: use metis"
        )
    if settings.by == "metis":
        return metis_owners(graph, t_stop, ranks, settings.seed, balance=settings.balance)
    if settings.by == "load":
        return load_owners(walk_loads(graph, t_stop, settings.layers or _LAYERS), ranks, settings.deal)
    if settings.by == "greedy":
        return greedy_owners(graph, ranks, settings.seed)
    if settings.by == "online":
        return online_owners(graph, t_stop, ranks, settings.seed, settings.online)
    make = hash_owners if settings.by == "hash" else random_owners
    return make(graph.num_nodes, ranks, settings.seed)
