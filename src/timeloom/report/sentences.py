"""What a page tells of a run in words: warnings, choices, batches and placements."""

from __future__ import annotations

from collections import Counter

import numpy as np

from timeloom.records import Tuned
from timeloom.report.log import RunLog


def sentences(log: RunLog) -> list[str]:
    """Return all that is told in words."""
    warned = [record.sentence for record in log.warned[-20:]]
    return [*warned, *map(_chosen, log.tuned), *_rounds(log), *_building(log), *_placing(log)]


def _chosen(record: Tuned) -> str:
    """Return in words what trials chose before the run."""
    return (
        f"{len(record.trials)} trials chose windows of {record.full} full and {record.decayed} decayed snapshots with "
        f"flare.alpha={record.alpha:g}: the validation loss fell by {record.score:.3g} a second"
    )


def _rounds(log: RunLog) -> list[str]:
    """Return in words in how many rounds ranks agreed, what they did meanwhile, and by which batches."""
    if not log.averaged:
        return []
    used = Counter((record.snapshots, record.nodes) for record in log.averaged)
    sizes = ", ".join(
        f"{snapshots:.0%} of the snapshots x {nodes:.0%} of the nodes in {100 * count / len(log.averaged):.0f} %"
        for (snapshots, nodes), count in used.most_common()
    )
    steps = np.array([record.steps for record in log.averaged]).sum(axis=0).tolist()
    return [
        f"ranks agreed {len(log.averaged)} times, after {' + '.join(map(str, steps))} steps of their own; batches had "
        f"{sizes} of the rounds"
    ]


def _building(log: RunLog) -> list[str]:
    """Return in words where the batches of ranks came from, and how far building them was hidden behind training."""
    if not log.batched:
        return []

    def total(name: str) -> float:
        return float(sum(getattr(record, name) for record in log.batched))

    beside_s, hidden = total("beside_s"), ""
    if beside_s:
        hidden = f"; {total('hidden_s') / beside_s:.0%} of that passed while training did not wait for a batch"
    return [
        f"batches: {total('reused'):.0f} used again, {total('unused'):.0f} built ahead, {total('whole'):.0f} of all of "
        f"a rank's nodes, {total('built'):.0f} built while training waited; training waited {total('waited_s'):.2f} s "
        f"for them, and threads beside it built {total('beside'):.0f} in {beside_s:.2f} s{hidden}"
    ]


def _placing(log: RunLog) -> list[str]:
    """Return in words how snapshots were placed on ranks that store them."""
    placed = list(log.placed.values())
    if not placed:
        return []
    fullest = max(max(record.held_bytes) / record.capacity_bytes for record in placed)
    kept = sum(record.kept_share for record in placed) / len(placed)
    told = (
        f"{len(placed)} snapshots were placed: {kept:.0%} of the weight of edges stays on one rank, "
        f"{sum(record.moved for record in placed)} nodes moved, and the fullest rank held {fullest:.0%} of its capacity"
    )
    over = [record for record in placed if record.overflows]
    if over:
        told += (
            f"; {sum(record.overflows for record in over)} overflows in {len(over)} snapshots, the first in {over[0].t}"
        )
    return [told]
