"""What is refused of the options of a synthetic graph, in words that name the option, its value and a way out."""

from __future__ import annotations

from timeloom.errors import BadConfig

MOST_SEEDS = 1 << 63
MOST_SNAPSHOTS = 1_000_000
MOST_NODES = 1 << 31
LEAST_EXPONENT, MOST_EXPONENT = 1.5, 6.0


def whole_number(name: str, value: int, least: int, most: int) -> None:
    """Refuse a number that is not between ``least`` and ``most``."""
    if not least <= value <= most:
        raise BadConfig(f"{name}={value} was asked for, but it must lie between {least} and {most}")


def share(name: str, value: float, least: float = 0.0, most: float = 1.0) -> None:
    """Refuse a number that is not between ``least`` and ``most``, or is no number at all."""
    if not least <= value <= most:
        raise BadConfig(f"{name}={value:g} was asked for, but it must lie between {least:g} and {most:g}")


def one_of(name: str, value: str, known: tuple[str, ...]) -> None:
    """Refuse a word that is not known."""
    if value not in known:
        raise BadConfig(f"{name}={value!r} is unknown: use {', '.join(known[:-1])} or {known[-1]}")


def sizes(num_nodes: int, num_edges: int, num_snapshots: int, seed: int) -> None:
    """Refuse numbers of nodes, edges and snapshots that no graph without parallel edges can have."""
    whole_number("num_nodes", num_nodes, 4, MOST_NODES)
    whole_number("num_snapshots", num_snapshots, 1, MOST_SNAPSHOTS)
    whole_number("seed", seed, 0, MOST_SEEDS - 1)
    whole_number("num_edges", num_edges, 1, 1 << 40)
    if num_edges > (most := room_for(num_nodes)):
        raise BadConfig(
            f"num_edges={num_edges} was asked for, but {num_nodes} nodes leave room for {most} "
            f"(a quarter of all pairs): ask for fewer edges or for more nodes"
        )


def room_for(num_nodes: int) -> int:
    """Return the most edges for which new ones are still drawn in reasonable time."""
    return num_nodes * (num_nodes - 1) // 4
