"""`timeloom synth`: graphs with a stated degree law, change rate and seed."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Parameter

from timeloom.cli.manual import MANUALS, examples_of
from timeloom.cli.options import read_size
from timeloom.cli.show import print_json, print_report, progress
from timeloom.errors import BadConfig

if TYPE_CHECKING:
    from timeloom.graph.synth import Kind

synth = App(
    name="synth", help="Make a graph with a stated degree law, change rate and seed.",
    help_epilogue=MANUALS["synth"].epilogue(["timeloom synth drift --out drift", "timeloom synth drift --help"]),
)  # fmt: skip

# Defaults are those of the classes in timeloom.graph.synth, which load too slowly to be imported for a --help; a test
# compares them with what these texts say.


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class MakeFlags:
    """How the graph is made."""

    name: str | None = None
    """The graph's name (default: the folder's)."""
    overwrite: bool = False
    """Replace the graph that is there."""
    memory: str | None = None
    """The most memory to take, such as 2GiB (default: half of what is free)."""
    json: bool = False
    """Print the report as JSON."""
    quiet: bool = False
    """Show no progress."""


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class DriftFlags:
    """What the graph of drifting communities is like."""

    num_nodes: int | None = None
    """How many nodes (default 2000)."""
    num_edges: int | None = None
    """Edges of every snapshot (default 10000)."""
    num_snapshots: int | None = None
    """How many snapshots (default 60)."""
    num_communities: int | None = None
    """How many communities (default 8)."""
    inside: float | None = None
    """The share of edges that stay inside a community (default 0.9)."""
    drift: float | None = None
    """The share of nodes that move to another community with each snapshot (default 0.01)."""
    turnover: float | None = None
    """The share of edges that are replaced with each snapshot (default 0.3)."""
    exponent: float | None = None
    """Nodes of degree k are about k ** -exponent of all (default 2.5)."""
    wave: float | None = None
    """The logarithm of how much busier than on average a community gets (default 1.0)."""
    lag: int | None = None
    """How many snapshots ago a class was decided (default 3)."""
    seed: int | None = None
    """The seed (default 0)."""


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class PowerLawFlags:
    """What the growing graph is like."""

    num_nodes: int | None = None
    """Nodes that have joined by the last snapshot (default 10000)."""
    num_edges: int | None = None
    """Edges of the last snapshot (default 100000)."""
    num_snapshots: int | None = None
    """How many snapshots (default 50)."""
    exponent: float | None = None
    """Nodes of degree k are about k ** -exponent of all (default 2.5)."""
    curve: str | None = None
    """How it grows: linear | exponential (default linear)."""
    first_share: float | None = None
    """The share of nodes and edges that the first snapshot has (default 0.1)."""
    turnover: float | None = None
    """The share of edges that are replaced with each snapshot (default 0.05)."""
    seed: int | None = None
    """The seed (default 0)."""


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteFlags:
    """How the static graph is taken apart."""

    snapshot: int | None = None
    """The snapshot that is the static graph (default None: all edges of all snapshots)."""
    num_snapshots: int | None = None
    """How many snapshots (default 50)."""
    curve: str | None = None
    """How they grow: linear | exponential (default linear)."""
    first_share: float | None = None
    """The share of the edges that the first snapshot has (default 0.1)."""
    last_share: float | None = None
    """The share of the edges that the last snapshot has (default 1.0)."""
    turnover: float | None = None
    """The share of edges that are replaced with each snapshot (default 0.0)."""
    seed: int | None = None
    """The seed (default 0)."""


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class SizesFlags:
    """What the sizes are like."""

    num_nodes: int | None = None
    """Nodes with an edge in the largest usual snapshot (default 1000000)."""
    num_edges: int | None = None
    """Edges of the last snapshot (growing) or of a usual one (default 10000000)."""
    num_snapshots: int | None = None
    """How many snapshots (default 10000)."""
    curve: str | None = None
    """growing | flat | bursty (default growing)."""
    turnover: float | None = None
    """The share of edges that go with each snapshot (default 0.05)."""
    noise: float | None = None
    """The standard deviation of the logarithm of the number of edges (default 0.05)."""
    seed: int | None = None
    """The seed (default 0)."""


Out = Annotated[Path, Parameter(help="The graph to make: a folder.")]


def given(flags: object) -> dict[str, Any]:
    """Return the options that were given."""
    return {name: value for name, value in asdict(flags).items() if value is not None}  # type: ignore[call-overload]


def _make(kind: Kind, out: Path, make: MakeFlags) -> None:
    from timeloom.graph.ingest.rules import Budget
    from timeloom.graph.synth import synth as make_graph

    budget = None if make.memory is None else Budget(read_size(make.memory))
    with progress(quiet=make.quiet) as show:
        report = make_graph(kind, out, show, budget=budget, overwrite=make.overwrite).as_json()
    if make.json:
        print_json(report)
    else:
        print_report(report, out)


def drift(*, out: Out, law: DriftFlags = DriftFlags(), make: MakeFlags = MakeFlags()) -> None:
    """Communities that drift, with classes that only the past tells and degrees that come in waves.

    Examples
    --------
    timeloom synth drift --out drift
    """
    from timeloom.graph.synth import Drift

    _make(Drift(**given(law), name=make.name or out.name), out, make)


def powerlaw(*, out: Out, law: PowerLawFlags = PowerLawFlags(), make: MakeFlags = MakeFlags()) -> None:
    """A graph that grows, with a power law of degrees, and replaces some of its edges.

    Examples
    --------
    timeloom synth powerlaw --num-nodes 1000000 --num-edges 10000000 --curve exponential --out growing
    """
    from timeloom.graph.synth import PowerLaw

    _make(PowerLaw(**given(law), name=make.name or out.name), out, make)


def delete(
    graph: Annotated[Path, Parameter(help="The graph whose edges are taken.")],
    /,
    *,
    out: Out,
    law: DeleteFlags = DeleteFlags(),
    edges: Annotated[
        str | None, Parameter(help="The edges of every snapshot, such as 100,200,400, instead of a curve.")
    ] = None,
    make: MakeFlags = MakeFlags(),
) -> None:
    """Snapshots of a static graph that hold a growing share of its edges, as BLAD and REAL make them.

    Examples
    --------
    timeloom synth delete cora --num-snapshots 20 --curve exponential --out cora-grows
    """
    from timeloom.graph.dynamic import open_graph
    from timeloom.graph.synth import Delete

    sizes_T = _numbers(edges) if edges is not None else ()
    _make(
        Delete(graph=open_graph(graph), **given(law), edges_by_snapshot=sizes_T, name=make.name or out.name), out, make
    )


def _numbers(text: str) -> tuple[int, ...]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and len(part) < 19 for part in parts):
        raise BadConfig(f"--edges {text} is no list of whole numbers: write 100,200,400")
    return tuple(int(part) for part in parts)


def sizes(
    *, out: Annotated[Path, Parameter(help="The JSON file to make.")], law: SizesFlags = SizesFlags(),
    name: Annotated[str | None, Parameter(help="The name (default: the file's).")] = None,
) -> None:  # fmt: skip
    """Only the numbers of nodes, edges and changes of many snapshots, for the simulator.

    Examples
    --------
    timeloom synth sizes --curve bursty --out sizes.json
    """
    import sys

    from timeloom.graph.sizes import write_sizes
    from timeloom.graph.synth import SizesOptions, make_sizes

    made = make_sizes(SizesOptions(**given(law), name=name or out.stem))
    write_sizes(made, out)
    sys.stdout.write(f"{out}: {len(made.edges):,} snapshots, {int(made.edges.sum()):,} edges in all\n")


for _kind in (drift, powerlaw, delete, sizes):
    synth.command(_kind, help_epilogue=MANUALS["synth"].epilogue(examples_of(_kind.__doc__)))
