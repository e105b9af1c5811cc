"""DynaHB (Song et al., PVLDB 17(11), 2024), and the systems that it is measured against: they differ in their batches.

| paper | ours |
|---|---|
| 4.1 cache of the L-hop neighbourhood | `plan/batch/neighbourhood.py`, `cutout.py`; `train/hybrid/cache.py` |
| 4.2 load-aware partition, balanced groups | `plan/partition/load.py` |
| Algorithm 2: asynchronous averaging | `plan/batch/rounds.py`, `train/hybrid/apart.py` |
| 5.1 batch size by reinforcement learning | `plan/tune/` |
| 5.2 reservoir, Algorithm 3 | `plan/batch/feed.py`, `reservoir.py` |

Deviations are told in docs/hybrid.md. PyD, DBoV, DBoS and BVR hold the same caches, of nodes that are dealt out by
hash, and add up gradients at every step; ADT holds none and exchanges rows, over all snapshots of training at once.
"""

from __future__ import annotations

from typing import Any

from timeloom.systems.preset import Preset

_ALL = 1.0
_SOME_SNAPSHOTS, _SOME_NODES = 0.2, 0.05  # what the paper trains its baselines with (6.1)


def dynahb() -> Preset:
    """Return the preset; `[hybrid]` has the paper's defaults."""
    return Preset(
        name="dynahb",
        about="DynaHB: every rank learns from batches of some of its nodes over some snapshots, by itself; parameters "
        "are averaged every so often, batch sizes are learnt",
        settings={"system": {"name": "dynahb", "divide": "batches", "partition": {"by": "load"}}},
    )


def pyd() -> Preset:
    """Return the baseline that takes all nodes and all snapshots at once."""
    return _fixed("pyd", _ALL, _ALL, "all of its nodes over all snapshots (PyGT-Dist)")


def dbov() -> Preset:
    """Return the baseline whose batches have all snapshots."""
    return _fixed("dbov", _ALL, _SOME_NODES, "some of its nodes over all snapshots (DBoV)")


def dbos() -> Preset:
    """Return the baseline whose batches have all nodes."""
    return _fixed("dbos", _SOME_SNAPSHOTS, _ALL, "all of its nodes over some snapshots (DBoS)")


def bvr() -> Preset:
    """Return DBoV with batches that are built beside training, kept, and used again."""
    # No batch of all nodes stands in: it would be all of the training part.
    kept = {"reservoir": True, "builders": 1, "snapshot_batch_mib": 0.0}
    about = "some of its nodes over all snapshots, in batches that are kept and used again (BVR)"
    return _fixed("bvr", _ALL, _SOME_NODES, about, kept)


def adt() -> Preset:
    """Return the baseline that has no cache: all snapshots of training are one window, and rows are exchanged."""
    return Preset(
        name="adt",
        about="every rank owns some of the nodes and fetches its neighbours' rows; one update goes over all snapshots "
        "of training (ADGNN-Temporal, DynaHB's baseline)",
        settings={
            "system": {"name": "adt", "divide": "nodes"},
            "window": {"state": "inherit", "length": 1_000_000},
        },
    )


def _fixed(name: str, snapshots: float, nodes: float, about: str, more: dict[str, Any] | None = None) -> Preset:
    """Return a baseline whose batches all have one size; gradients are added up at every step."""
    return Preset(
        name=name,
        about=f"every rank learns from {about}; DynaHB's baseline",
        settings={
            "system": {"name": name, "divide": "batches", "partition": {"by": "hash"}},
            "hybrid": {
                "snapshot_shares": [snapshots], "start_snapshots": snapshots, "node_shares": [nodes],
                "start_nodes": nodes, "adjuster": "fixed", "sync": "allreduce", "reservoir": False, "builders": 0,
                **(more or {}),
            },
        },
    )  # fmt: skip
