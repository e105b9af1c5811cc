"""Which rank this process is, by what its launcher left in the environment: ours, torchrun or SLURM."""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass

import psutil

from timeloom.errors import BadConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """One process's place among all ranks, and where they meet."""

    rank: int
    size: int
    local_rank: int
    local_size: int
    host: str
    port: int
    store_is_served: bool
    """The launcher serves the store at ``host:port``; else rank 0 does."""
    parent: int = 0
    """The process with which this one must end; 0 where the launcher sees to that itself."""
    attempt: int = 0
    """How often the launcher has started this rank before. Machines may disagree: let rank 0 decide what it means."""

    def __post_init__(self) -> None:
        if not (0 <= self.rank < self.size and 0 <= self.local_rank < self.local_size <= self.size):
            raise BadConfig(
                f"the launcher says rank {self.rank} of {self.size}, on its machine {self.local_rank} of "
                f"{self.local_size}: that cannot be; look at RANK, WORLD_SIZE and SLURM_* in the environment"
            )


def seat_from(environ: Mapping[str, str]) -> Seat | None:
    """Return this process's seat, or None where it was started on its own."""
    if "RANK" in environ and "WORLD_SIZE" in environ:
        return _launched(environ)
    # A batch script itself also has a SLURM_PROCID, but is no step: only srun says which machines a step has.
    if "SLURM_STEP_NODELIST" in environ and _number(environ, "SLURM_NTASKS", 1) > 1:
        return _slurm(environ)
    return None


def _launched(environ: Mapping[str, str]) -> Seat:
    size, parent = _number(environ, "WORLD_SIZE"), _number(environ, "TIMELOOM_LAUNCHER", 0)
    return Seat(
        rank=_number(environ, "RANK"), size=size, local_rank=_number(environ, "LOCAL_RANK"),
        local_size=_number(environ, "LOCAL_WORLD_SIZE", size), host=_text(environ, "MASTER_ADDR"),
        port=_number(environ, "MASTER_PORT"),
        store_is_served=parent > 0 or environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
        parent=parent, attempt=_number(environ, "TORCHELASTIC_RESTART_COUNT", 0),
    )  # fmt: skip


def _slurm(environ: Mapping[str, str]) -> Seat:
    size = _number(environ, "SLURM_NTASKS")
    local_size = tasks_here(_text(environ, "SLURM_STEP_TASKS_PER_NODE"), _number(environ, "SLURM_NODEID"))
    # On one machine nothing shall listen beyond loopback.
    meeting = "127.0.0.1" if local_size == size else first_host(_text(environ, "SLURM_STEP_NODELIST"))
    # Ports below those that systems give out by themselves; two steps of one machine should not meet.
    port = 15_000 + (31 * _number(environ, "SLURM_JOB_ID") + _number(environ, "SLURM_STEP_ID", 0)) % 15_000
    return Seat(
        rank=_number(environ, "SLURM_PROCID"), size=size, local_rank=_number(environ, "SLURM_LOCALID"),
        local_size=local_size, host=environ.get("MASTER_ADDR", meeting),
        port=_number(environ, "MASTER_PORT", port), store_is_served=False,
        attempt=_number(environ, "SLURM_RESTART_COUNT", 0),
    )  # fmt: skip


def first_host(nodes: str) -> str:
    """Return the first of a SLURM list of machines: ``gpu[03-05,9],cpu1`` begins with gpu03."""
    first = re.match(r"(?:[^,\[\]]|\[[^\]]*\])+", nodes)
    if first is None:
        raise BadConfig(f"SLURM_STEP_NODELIST={nodes!r} names no machine")
    return re.sub(r"\[(\w+)[^\]]*\]", r"\1", first[0])


def tasks_here(tasks_per_node: str, node: int) -> int:
    """Return how many tasks SLURM started on the machine with this index: ``2(x3),1`` is 2, 2, 2, 1."""
    counts: list[int] = []
    for count, times in re.findall(r"(\d+)(?:\(x(\d+)\))?", tasks_per_node):
        counts += [int(count)] * int(times or 1)
    if node >= len(counts):
        raise BadConfig(f"SLURM_STEP_TASKS_PER_NODE={tasks_per_node!r} has no machine {node}")
    return counts[node]


@dataclass(frozen=True, slots=True)
class Way:
    """By what this machine reaches the others, and they it."""

    interface: str
    address: str


def way_to(seat: Seat) -> Way:
    """Return the network interface that leads to the other machines; where there are none, loopback."""
    if seat.local_size == seat.size:
        return Way("lo", seat.host)
    own = _address_towards(seat.host)
    ways = {
        address.address: Way(name, address.address)
        for name, addresses in psutil.net_if_addrs().items()
        for address in addresses
        if address.family in (socket.AF_INET, socket.AF_INET6)
    }
    if not ipaddress.ip_address(own).is_loopback and own in ways:
        return ways[own]
    # This machine knows its own name by a loopback address: take its way out, if there is but one.
    outward = [way for address, way in ways.items() if not _is_local(address)]
    if len({way.interface for way in outward}) != 1:
        raise BadConfig(
            f"{seat.host} is {own} on this machine, and its other interfaces are "
            f"{sorted({way.interface for way in outward})}: say where the ranks meet by an address, in MASTER_ADDR"
        )
    return outward[0]


def refuse_exposure(way: Way, *, trusted: bool) -> str:
    """Return a warning where others can reach the ranks (nothing on loopback); refuse an address of the internet.

    The engine beneath has no shared secret: whoever reaches the ports of a run takes part in it.
    """
    address = ipaddress.ip_address(way.address.partition("%")[0]) if _is_address(way.address) else None
    if address.is_loopback if address is not None else way.interface == "lo":
        return ""
    if address is not None and address.is_global and not trusted:
        raise BadConfig(
            f"the ranks would meet at {way.address}, an address of the internet, and have no secret by which to know "
            "each other: use a private network (MASTER_ADDR), or, behind a firewall, --set world.trusted=true"
        )
    return (
        f"the ranks meet at {way.address} ({way.interface}), and whoever reaches it can take part in this run: "
        "use a network that you trust"
    )


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return False
    return True


def _is_local(address: str) -> bool:
    found = ipaddress.ip_address(address.partition("%")[0])
    return found.is_loopback or found.is_link_local


def _address_towards(host: str) -> str:
    """Return the address from which this machine would send to another; nothing is sent."""
    try:
        family, kind, _, _, target = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.connect(target)
            return str(probe.getsockname()[0])
    except OSError as error:
        raise BadConfig(f"the ranks are to meet at {host}, which this machine cannot reach: {error}") from error


def _text(environ: Mapping[str, str], name: str) -> str:
    if not environ.get(name):
        raise BadConfig(f"the launcher set some of a rank's variables, but not {name}; unset RANK to run alone")
    return environ[name]


def _number(environ: Mapping[str, str], name: str, default: int | None = None) -> int:
    if default is not None and name not in environ:
        return default
    text = _text(environ, name)
    if not text.isascii() or not text.isdigit():
        raise BadConfig(f"{name}={text!r} in the environment is no number")
    return int(text)
