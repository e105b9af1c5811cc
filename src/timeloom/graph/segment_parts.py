"""What changes on each server from one snapshot to the next, and how many bytes that takes.

Shape letters: N nodes, F features.
"""

from __future__ import annotations

import numpy as np

from timeloom.graph.csr import Int32s
from timeloom.graph.delta import Delta
from timeloom.graph.features import Float32s
from timeloom.graph.keys import Int64s
from timeloom.graph.segment_edges import EdgeChange
from timeloom.graph.segments import FeatureChange, Masks, SegmentLayout
from timeloom.graph.snapshot import Snapshot


def feature_change(now_NF: Float32s, masks_N: Masks, before_N: Int32s, now_N: Int32s, server: int) -> FeatureChange:
    """Return what changes in the features that a server holds.

    ``masks_N`` says which segments of each node changed since the snapshot before (`changed_segments`), and the arrays
    where nodes were and are (-1: nowhere).
    """
    was_N, is_N = before_N == server, now_N == server
    arrived = np.flatnonzero(is_N & ~was_N).astype(np.int32)
    changed = np.flatnonzero(is_N & was_N & (masks_N != 0)).astype(np.int32)
    ended = np.flatnonzero(was_N & ~is_N).astype(np.int32)
    return FeatureChange(
        arrived=arrived, rows_AF=now_NF[arrived], changed=changed, masks=masks_N[changed], rows_CF=now_NF[changed],
        ended=ended,
    )  # fmt: skip


def edge_change(delta: Delta, now: Snapshot, before_N: Int32s, now_N: Int32s, server: int) -> EdgeChange:
    """Return what changes on a server; ``delta`` leads to ``now``, and the arrays say where nodes were and are.

    The cost is the changes, and the edges of the nodes that arrive.
    """
    was_N, is_N = before_N == server, now_N == server
    stays_N, arrives_N = was_N & is_N, is_N & ~was_N
    mine = stays_N[delta.targets]
    gone = delta.keys[mine & (delta.new == 0.0)]
    more = mine & (delta.new != 0.0)
    shift = now.layout.node_bits + now.layout.type_bits
    arriving = np.flatnonzero(arrives_N)
    starts, ends = np.searchsorted(now.keys, arriving << shift), np.searchsorted(now.keys, (arriving + 1) << shift)
    sizes = ends - starts
    places = np.arange(sizes.sum()) + np.repeat(starts - (np.cumsum(sizes) - sizes), sizes)
    came = np.concatenate([delta.keys[more], now.keys[places]])
    order = np.argsort(came, kind="stable")
    weights = None
    if now.stored_weights is not None or len(delta.new[more][delta.new[more] != 1.0]):
        weights = np.concatenate([delta.new[more], now.weights[places]])[order]
    left = np.flatnonzero(was_N & ~is_N).astype(np.int32)
    return EdgeChange(left=left, gone=gone, came=came[order], weights=weights)


def stored_bytes(
    snapshot: Snapshot, delta: Delta, masks_N: Masks, layout: SegmentLayout, *, weighted: bool
) -> tuple[Int64s, Int64s]:
    """Return for each node what a server stores of it: whole, and only what changed since the snapshot before.

    These are its features and the edges into it, as `FeatureWindow` and `EdgeWindow` store them; ``delta`` leads to
    ``snapshot``. It is what a partition is told of sizes.
    """
    entry, num = (16 if weighted else 8), snapshot.num_nodes
    full_N = layout.row_bytes + entry * np.bincount(snapshot.targets, minlength=num)
    gone = delta.new == 0.0
    changed_N = layout.changed_bytes(masks_N)
    changed_N += 8 * np.bincount(delta.targets[gone], minlength=num)
    changed_N += entry * np.bincount(delta.targets[~gone], minlength=num)
    return full_N, changed_N
