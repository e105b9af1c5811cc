"""DistDy: nodes are placed anew in every snapshot, and neighbourhoods sampled from the stores of all ranks.

Where the paper's parts are: additive storage (3.2) is `graph/segments.py` and `segment_edges.py`; the coordinator,
partitioner, training-node sampler, stores and workers (3.1) are `train/sampled/`; Algorithms 1 to 3 and the partitions
that they are compared with are `plan/partition/online.py` and `baselines.py`; edge weights (3.4) `weights.py`.

Deviations: those of SPEC section 9 (memory by runs, a convex payoff, edge weights of all layers); a row that is the
same in several snapshots is fetched once for a batch; ranks read a snapshot from the graph's folder and keep their
part, where the paper's coordinator sends it to them. With `timeloom follow` snapshots are trained on as they arrive;
`timeloom train` goes over those that there are, epoch by epoch, like every other system.
"""

from __future__ import annotations

from timeloom.systems.preset import Preset


def distdy() -> Preset:
    """Return the preset."""
    return Preset(
        name="distdy",
        about="every rank stores some nodes of each snapshot, placed as snapshots arrive, and embeds their sampled "
        "neighbourhoods; rows of others are fetched (DistDy)",
        settings={
            "system": {"name": "distdy", "divide": "targets", "partition": {"by": "online"}},
            "model": {"name": "sage_linear", "layers": 2, "span": 4},
            "window": {"length": 4, "state": "zero", "stride": 1, "targets": "last", "shuffle": False},
        },
    )
