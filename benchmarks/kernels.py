"""How fast a full pass over a snapshot is: aggregation and attention, forward and backward, against torch_geometric.

Each round runs every competitor once, in turn, in one process of one thread or two; ratios are of the same round. The
floor is what a pass must move (one row an edge, each row read and written once, indices) at the rate that the same
process reads memory at; where all rows fit into a cache a pass can be faster than that.

    .venv/bin/python benchmarks/kernels.py [--rounds 5] [--threads 1,2] [--only power-law,dense]
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import embedding_bag

from timeloom.cli import run as command
from timeloom.graph.dynamic import open_graph
from timeloom.graph.keys import layout_for
from timeloom.graph.snapshot import Snapshot
from timeloom.kernels.aggregate import aggregate
from timeloom.kernels.attention import attend
from timeloom.kernels.edges import Edges
from timeloom.kernels.norms import Norm, Scales, scales_of
from timeloom.train.localise import edges_of

with warnings.catch_warnings():
    # It warns of parts of torch that it uses.
    warnings.simplefilter("ignore")
    from torch_geometric.nn import GATConv, GCNConv

ROOT = Path(__file__).resolve().parents[1]
SHARED = ROOT.parent / "shared" / "data"
FEATURES = 128
HEADS = ((4, 16), (1, 64))
INGESTED = {"as733": "snap:as-733 --from {shared}/large", "ubuntu": "local:ubuntu --from {shared}/labelled"}
Work = Callable[[], object]


def drawn(num_nodes: int, num_edges: int, skew: float) -> Snapshot:
    """Return a snapshot of different edges; node k is drawn in proportion to k^-skew at both ends."""
    rng, layout = np.random.default_rng(0), layout_for(num_nodes, 1)
    chance = np.arange(1, num_nodes + 1) ** -skew
    names, cumulated = rng.permutation(num_nodes), np.cumsum(chance / chance.sum())
    keys: NDArray[np.int64] = np.empty(0, np.int64)
    while len(keys) < num_edges:
        ends = [np.minimum(np.searchsorted(cumulated, rng.random(num_edges)), num_nodes - 1) for _ in range(2)]
        keys = np.union1d(keys, layout.pack(names[ends[0]], names[ends[1]], np.zeros(num_edges, np.int64)))
    kept = np.sort(rng.permutation(keys)[:num_edges])
    return Snapshot(0, num_nodes, layout, kept, None, np.ones(num_nodes, np.bool_))


def last_of(name: str) -> Snapshot:
    """Return the last snapshot of a real graph, ingested once."""
    path = ROOT / "runs" / "graphs" / f"{name}-whole"
    if not path.exists():
        arguments = INGESTED[name].format(shared=SHARED).split()
        assert command(["ingest", *arguments, "--out", str(path), "--quiet"]) == 0, f"{name} could not be ingested"
    graph = open_graph(path)
    return graph.snapshot(len(graph) - 1)


GRAPHS: dict[str, Callable[[], Snapshot]] = {
    "power-law": lambda: drawn(100_000, 1_000_000, 0.75),
    "uniform": lambda: drawn(100_000, 1_000_000, 0.0),
    "dense": lambda: drawn(2_000, 1_000_000, 0.0),
    "as733": lambda: last_of("as733"),
    "ubuntu": lambda: last_of("ubuntu"),
}


@dataclass(frozen=True)
class Case:
    """A graph as every competitor wants it."""

    edges: Edges
    scales: Scales
    index_2E: Tensor
    """Source and target of each edge, then of each self loop."""

    @property
    def num_nodes(self) -> int:
        """How many nodes there are."""
        return self.edges.num_nodes

    @cached_property
    def weights(self) -> Tensor:
        """What each message is multiplied by, loops included."""
        source_N, target_N = self.scales.source_N, self.scales.target_N
        assert source_N is not None
        assert target_N is not None
        return source_N[self.index_2E[0]] * target_N[self.index_2E[1]]

    @cached_property
    def matrix(self) -> Tensor:
        """The same as torch's sparse matrix."""
        matrix = torch.sparse_coo_tensor(self.index_2E.flip(0), self.weights, (self.num_nodes, self.num_nodes))
        return matrix.coalesce().to_sparse_csr()


def case_of(snapshot: Snapshot) -> Case:
    """Return a snapshot with the norm of a GCN; weights of its edges are left out."""
    bare = Snapshot(0, snapshot.num_nodes, snapshot.layout, snapshot.keys, None, snapshot.alive)
    edges, alive_N = edges_of(bare, torch.float32), torch.from_numpy(bare.alive)
    loops = torch.arange(edges.num_nodes)[alive_N]
    ends = [
        torch.cat([part.long(), loops]) for part in (edges.into.neighbours_E, edges.into.row_of_edges)
    ]  # fmt: skip
    return Case(edges, scales_of(Norm("sym"), edges, alive_N, torch.float32), torch.stack(ends))


def both_ways(forward: Callable[[], Tensor], inputs: list[Tensor]) -> Work:
    """Return forward and backward as one piece of work that gives what came out and the gradients."""
    gradient = torch.randn(forward().shape, generator=torch.Generator().manual_seed(2))

    def work() -> tuple[Tensor, ...]:
        out = forward()
        return (out.detach(), *torch.autograd.grad(out, inputs, gradient))

    return work


class _Bag(torch.autograd.Function):
    """What torch can do without loops of ours."""

    @staticmethod
    def forward(ctx: Any, x_NF: Tensor, case: Case) -> Tensor:
        ctx.case = case
        return bagged(case, case.edges.into, x_NF)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return bagged(ctx.case, ctx.case.edges.out_of, gradients[0]), None


def bagged(case: Case, rows: Any, x_NF: Tensor) -> Tensor:
    """Return the scaled sum by ``embedding_bag``; a symmetric norm has the same diagonal on both sides."""
    scale_N, loop_N = case.scales.source_N, case.scales.loop_N
    assert scale_N is not None
    assert loop_N is not None
    scaled = x_NF * scale_N[:, None]
    summed = embedding_bag(rows.neighbours_E, scaled, rows.starts_M, mode="sum", include_last_offset=True)
    return (summed + scaled * loop_N[:, None]) * scale_N[:, None]


def aggregations(case: Case) -> dict[str, Work]:
    """Return the competitors in ``P X``, forward and backward."""
    x_NF = torch.randn(case.num_nodes, FEATURES, generator=torch.Generator().manual_seed(1)).requires_grad_()
    pyg = GCNConv(FEATURES, FEATURES, normalize=False, bias=False)
    pyg.lin = torch.nn.Identity()
    bag: Any = _Bag.apply
    return {
        "ours": both_ways(lambda: aggregate(case.edges, case.scales, x_NF), [x_NF]),
        "PyG scatter": both_ways(lambda: pyg(x_NF, case.index_2E, case.weights), [x_NF]),
        "torch CSR": both_ways(lambda: torch.sparse.mm(case.matrix, x_NF), [x_NF]),
        "embedding_bag": both_ways(lambda: bag(x_NF, case), [x_NF]),
    }


def attentions(case: Case, heads: int, size: int) -> dict[str, Work]:
    """Return the competitors in a layer of graph attention: projection, attention and bias, forward and backward."""
    x_NF = torch.randn(case.num_nodes, FEATURES, generator=torch.Generator().manual_seed(1)).requires_grad_()
    torch.manual_seed(0)
    pyg = GATConv(FEATURES, size, heads=heads, add_self_loops=False)
    weights = [pyg.lin.weight, pyg.att_src, pyg.att_dst, pyg.bias]
    projection, sent, received, bias = weights

    def ours() -> Tensor:
        # As `nn.layers.GraphAttention` does it: a head's own weights are multiplied into the projection.
        by_head_FHD = projection.t().view(FEATURES, heads, size)
        ends = [(by_head_FHD * part).sum(2) for part in (sent, received)]
        parts = (x_NF @ torch.cat([projection.t(), *ends], 1)).split([heads * size, heads, heads], 1)
        value_NHD, loop_N = parts[0].unflatten(1, (heads, size)), case.scales.loop_N
        seen_NHD = attend(case.edges, value_NHD, parts[1], parts[2], loop_N=loop_N, slope=0.2)
        return seen_NHD.flatten(1) + bias

    inputs = [x_NF, *weights]
    return {"ours": both_ways(ours, inputs), "GATConv": both_ways(lambda: pyg(x_NF, case.index_2E), inputs)}


def moved_bytes(case: Case, width: int) -> int:
    """Return what one pass gathers, reads, writes and looks up, in bytes."""
    num_edges, num_nodes = len(case.edges), case.num_nodes
    return 4 * ((num_edges + 2 * num_nodes) * width + num_edges + num_nodes)


def read_bytes_per_s() -> float:
    """Return at which rate memory is read that no cache holds, the best of some."""
    table = torch.ones(2**27)
    return 4 * len(table) / min(seconds_of(table.sum) for _ in range(7))


def seconds_of(work: Work) -> float:
    """Return how long it takes: of one thread in processor seconds, as others may work on this machine too."""
    clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    began = clock()
    work()
    return clock() - began


def compare(name: str, works: dict[str, Work], rounds: int, floor: str) -> None:
    """Run all in turn, check that they agree, and print a row."""
    results: dict[str, Any] = {rival: work() for rival, work in works.items()}
    for rival, found in results.items():
        for mine, theirs in zip(results["ours"], found, strict=True):
            # In single precision GATConv takes the other side of leaky_relu's kink at a few edges, and errs by that.
            error = (mine - theirs).norm() / theirs.norm()
            assert error < 1e-2, f"{rival} differs by {error}"
    took = [{rival: seconds_of(work) for rival, work in works.items()} for _ in range(rounds)]
    cells = []
    for rival in works:
        if rival != "ours":
            ratios = sorted(one[rival] / one["ours"] for one in took)
            cells.append(f"{rival} {statistics.median(ratios):.1f}x ({ratios[0]:.1f} .. {ratios[-1]:.1f})")
    ours = sorted(one["ours"] * 1e3 for one in took)
    spread = f"{statistics.median(ours):.2f} ms ({ours[0]:.2f} .. {ours[-1]:.2f})"
    print(f"| {name} | {spread} | {'; '.join(cells)} | {floor} |")


def measure(threads: int, rounds: int, only: list[str]) -> None:
    """Print the rows of one number of threads."""
    torch.set_num_threads(threads)
    rate = read_bytes_per_s()
    print(
        f"| {threads} thread(s), memory is read at {rate / 1e9:.1f} GB/s | ours | rivals, ours = 1 | floor |",
        flush=True,
    )
    for name in only:
        case = case_of(GRAPHS[name]())
        about = f"{name}, {case.num_nodes:,} nodes, {len(case.edges):,} edges"
        moved = 2 * moved_bytes(case, FEATURES)
        floor = f"{moved / 1e6:.0f} MB, {moved / rate * 1e3:.2f} ms"
        compare(f"aggregation, {about}, {FEATURES} features", aggregations(case), rounds, floor)
        for heads, size in HEADS:
            moved = 2 * moved_bytes(case, heads * size)
            floor = f"without projection {moved / 1e6:.0f} MB, {moved / rate * 1e3:.2f} ms"
            compare(f"attention layer, {about}, {heads} x {size}", attentions(case, heads, size), rounds, floor)
        sys.stdout.flush()


def main() -> None:
    """Measure one number of threads after the other, each in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--only", default=",".join(GRAPHS))
    asked = parser.parse_args()
    if "," not in asked.threads:
        measure(int(asked.threads), asked.rounds, asked.only.split(","))
        return
    for threads in asked.threads.split(","):
        again = ["--rounds", str(asked.rounds), "--threads", threads, "--only", asked.only]
        subprocess.run([sys.executable, __file__, *again], check=True)


if __name__ == "__main__":
    main()
