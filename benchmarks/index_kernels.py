"""How many keys a second the delta of two snapshots takes, and how many edges a second building rows takes; one core.

Floors: streaming memory is 20-24 GB/s a core here, so a merge that reads 8-byte keys cannot pass 2,500-3,000 M keys/s.

    .venv/bin/python benchmarks/index_kernels.py [--edges 10000000] [--rounds 9]
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import numpy as np
import scipy.sparse

from timeloom.graph.csr import incoming, outgoing
from timeloom.graph.delta import apply, diff
from timeloom.graph.keys import KeyLayout

NODES = 1_000_000


def rate(count: int, work: Callable[[], object]) -> float:
    """Return millions a second."""
    began = time.perf_counter()
    work()
    return count / (time.perf_counter() - began) / 1e6


def main() -> None:
    """Measure each kernel and its NumPy or SciPy baseline in turn."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--edges", type=int, default=10_000_000)
    parser.add_argument("--rounds", type=int, default=9)
    chosen = parser.parse_args()
    rng, layout = np.random.default_rng(0), KeyLayout()
    keys = np.unique(layout.pack(*rng.integers(0, NODES, (2, chosen.edges))))
    draw = rng.random(len(keys))
    a, b = keys[draw > 0.05], keys[draw < 0.95]
    ones, delta = np.ones(len(a)), diff(a, None, b, None, layout)
    sources, targets = layout.sources(a), layout.targets(a)
    both = len(a) + len(b)
    cases: dict[str, tuple[Callable[[], float], Callable[[], float]]] = {
        "delta of sorted keys (M keys/s) vs numpy setdiff1d": (
            lambda: rate(both, lambda: diff(a, None, b, None, layout)),
            lambda: rate(both, lambda: (np.setdiff1d(a, b, True), np.setdiff1d(b, a, True))),
        ),
        "delta with weights (M keys/s) vs numpy setdiff1d": (
            lambda: rate(both, lambda: diff(a, ones, b, np.ones(len(b)), layout)),
            lambda: rate(both, lambda: (np.setdiff1d(a, b, True), np.setdiff1d(b, a, True))),
        ),
        "applying a delta (M keys/s) vs numpy union1d": (
            lambda: rate(both, lambda: apply(a, None, delta)),
            lambda: rate(both, lambda: np.union1d(a, b)),
        ),
        "rows of sorted keys (M edges/s) vs scipy csr_matrix": (
            lambda: rate(len(a), lambda: incoming(a, layout, NODES)),
            lambda: rate(len(a), lambda: scipy.sparse.csr_matrix((ones, (targets, sources)), (NODES, NODES))),
        ),
        "transposed rows (M edges/s) vs scipy csc": (
            lambda: rate(len(a), lambda: outgoing(a, layout, NODES)),
            lambda: rate(len(a), lambda: scipy.sparse.csr_matrix((ones, (sources, targets)), (NODES, NODES))),
        ),
    }
    print(f"{len(a):,} and {len(b):,} edges, {len(delta):,} changes, {NODES:,} nodes")
    for name, (ours, theirs) in cases.items():
        ours()
        pairs = [(ours(), theirs()) for _ in range(chosen.rounds)]
        mine = statistics.median(pair[0] for pair in pairs)
        ratios = sorted(pair[0] / pair[1] for pair in pairs)
        middle = statistics.median(ratios)
        print(
            f"{name}: {mine:,.0f}; ratio {middle:.1f} ({ratios[0]:.1f} .. {ratios[-1]:.1f}) over {chosen.rounds} rounds"
        )


if __name__ == "__main__":
    main()
