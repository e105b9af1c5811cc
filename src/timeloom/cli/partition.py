"""`timeloom partition`: how good a partition of a graph's nodes would be."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

from cyclopts import Parameter

from timeloom.cli.show import print_json
from timeloom.errors import BadConfig

if TYPE_CHECKING:
    from timeloom.graph.dynamic import DynamicGraph
    from timeloom.plan.partition.metis import ChunksBy
    from timeloom.plan.partition.quality import Quality


def partition(
    graph: Annotated[Path, Parameter(help="The graph.")],
    /,
    *,
    ranks: Annotated[int, Parameter(help="How many ranks share the nodes.")] = 2,
    by: Annotated[
        str,
        Parameter(help="hash | random | metis | load | greedy | online. Several, separated by commas, are compared."),
    ] = "hash",
    train_snapshots: Annotated[
        int | None, Parameter(help="How many snapshots the partition may look at (default: all).")
    ] = None,
    chunks: Annotated[
        int, Parameter(help="Cut each rank's nodes into so many chunks, as --system flare does (0: into none).")
    ] = 0,
    chunks_by: Annotated[str, Parameter(help="metis | hash | random.")] = "metis",
    seed: Annotated[int, Parameter(help="The seed.")] = 0,
    json: Annotated[bool, Parameter(help="Print everything as JSON, with numbers for each snapshot.")] = False,
) -> None:
    """Say how good a partition of the nodes would be: edges it cuts, rows that ranks need of each other, balance.

    Examples
    --------
    timeloom partition mails --ranks 4 --by metis
    timeloom partition mails --ranks 4 --by hash,metis,load --train-snapshots 60
    timeloom partition mails --ranks 4 --by metis --chunks 128
    """
    from typing import get_args

    from timeloom.graph.dynamic import open_graph
    from timeloom.plan.partition.choose import PartitionName
    from timeloom.plan.partition.metis import ChunksBy

    opened, names = open_graph(graph), [name.strip() for name in by.split(",")]
    known = get_args(PartitionName)
    for name in names:
        if name not in known:
            raise BadConfig(f"--by {name} is no partition: use {', '.join(known)}")
    if chunks < 0 or chunks_by not in get_args(ChunksBy):
        raise BadConfig(
            f"--chunks {chunks} --chunks-by {chunks_by}: give 0 chunks or more, by {', '.join(get_args(ChunksBy))}"
        )
    stop = len(opened) if train_snapshots is None else train_snapshots
    found = [
        one
        for name in names
        for one in _judged(opened, stop, (name, ranks, seed), (chunks, cast("ChunksBy", chunks_by)))
    ]
    if json:
        print_json({"partitions": [{**one.as_json(), "seconds": seconds} for one, seconds in found]})
    else:
        sys.stdout.write("\n".join([f"{opened.name}: {ranks} ranks", *_table(found, ranks)]) + "\n")


def _judged(
    graph: DynamicGraph, stop: int, ranked: tuple[str, int, int], chunked: tuple[int, ChunksBy]
) -> list[tuple[Quality, float]]:  # fmt: skip
    """Return how good a partition is, and its chunks where there are any, each with the seconds that it took."""
    from time import perf_counter

    from timeloom.config import build
    from timeloom.plan.partition.choose import PartitionSettings, partition
    from timeloom.plan.partition.metis import chunks
    from timeloom.plan.partition.quality import chunk_quality, quality

    (name, ranks, seed), (per_owner, by), began = ranked, chunked, perf_counter()
    owners = partition(graph, stop, ranks, build(PartitionSettings, {"by": name, "seed": seed}, where="partition"))
    seconds = perf_counter() - began
    found = [(quality(owners, graph), seconds)]
    if per_owner:
        began = perf_counter()
        made = chunks(graph, stop, owners, per_owner, seed=seed, by=by)
        seconds = perf_counter() - began
        found.append((chunk_quality(made, graph), seconds))
    return found


def _table(found: list[tuple[Quality, float]], ranks: int) -> list[str]:
    """Return a line for each partition, and one for each of its ranks; one line for all chunks."""
    heads = ("partition", "rank", "nodes", "edges", "halo rows", "cut", "uneven", "waits", "seconds")
    rows = [heads]
    for one, seconds in found:
        shares = f"{one.cut_share:.3f}", f"{one.edge_balance:.3f}", f"{one.step_balance:.3f}", f"{seconds:.1f}"
        rows.append((one.name, "all", *_counts(one, None), *shares))
        if one.num_ranks == ranks:
            rows += [("", str(rank), *_counts(one, rank), "", "", "", "") for rank in range(ranks)]
    widths = [max(len(row[place]) for row in rows) for place in range(len(heads))]
    lines = [
        "  " + "  ".join(text.rjust(width) for text, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]
    return [
        *lines,
        "  edges and halo rows: over all snapshots. cut: the share of edges between two ranks. uneven: edges of the",
        "  busiest rank over the mean. waits: the same if ranks wait for each other after every snapshot.",
    ]


def _counts(one: Quality, rank: int | None) -> tuple[str, str, str]:
    columns = one.nodes_R, one.edges_TR.sum(axis=0), one.halo_TR.sum(axis=0)
    nodes, edges, halo = (f"{(column.sum() if rank is None else column[rank]):,}" for column in columns)
    return nodes, edges, halo
