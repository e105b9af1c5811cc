"""How a graph is made that nobody recorded: from a degree law, a change rate and a seed, or from a static graph."""

from __future__ import annotations

from dataclasses import dataclass
from os import PathLike
from pathlib import Path

import numpy as np

from timeloom.graph.ingest import pipeline
from timeloom.graph.ingest.attributes import Attributes
from timeloom.graph.ingest.gather import Progress, silent
from timeloom.graph.ingest.pipeline import Job, Report
from timeloom.graph.ingest.rules import Budget, Rules, Windows, default_budget
from timeloom.graph.synth.delete import Delete, DeleteLaw, static_attributes
from timeloom.graph.synth.drift import CLASSES, Drift, DriftLaw
from timeloom.graph.synth.evolve import BLOCK_ROWS, Evolution, Law
from timeloom.graph.synth.powerlaw import PowerLaw, PowerLawLaw
from timeloom.graph.synth.sizes import SizesOptions, make_sizes

__all__ = ["Delete", "Drift", "Kind", "PowerLaw", "SizesOptions", "make_sizes", "synth"]

Kind = Drift | PowerLaw | Delete
"""The options of a synthetic graph; their class says which kind it is."""


@dataclass(frozen=True, slots=True)
class _Laid:
    """What is to become a graph: the law of its edges, and what comes with its nodes."""

    law: Law
    attributes: Attributes
    num_snapshots: int


def synth(
    kind: Kind, out: str | PathLike[str], progress: Progress = silent, *, budget: Budget | None = None,
    overwrite: bool = False, block_rows: int = BLOCK_ROWS,
) -> Report:  # fmt: skip
    """Make the graph ``out``; the same options give the same graph, whatever the budget and the size of blocks.

    Every snapshot exists, also one without edges. Whatever goes wrong, ``out`` is then as it was before.
    """
    laid = _laid(kind)
    source = Evolution(laid.law, laid.num_snapshots, block_rows=block_rows)
    rules = Rules(windows=Windows(kind="given"), life=1, keep_self_loops=True, operations=True)
    job = Job(
        rules=rules, attributes=laid.attributes, name=kind.name, budget=budget or default_budget(), overwrite=overwrite,
        moments=tuple(range(laid.num_snapshots)),
    )  # fmt: skip
    return pipeline.run(source, Path(out), job, progress)


def _laid(kind: Kind) -> _Laid:
    if isinstance(kind, Delete):
        law = DeleteLaw(kind)
        return _Laid(law, static_attributes(kind), len(law.sizes_T))
    ids, degrees = np.arange(kind.num_nodes), {"kind": "degree", "log": True}
    if isinstance(kind, PowerLaw):
        return _Laid(PowerLawLaw(kind), Attributes(ids=ids, spec=degrees), kind.num_snapshots)
    drifting = DriftLaw(kind)
    known = Attributes(ids=ids, labels=drifting.classes, classes=CLASSES, spec=degrees)
    return _Laid(drifting, known, kind.num_snapshots)
