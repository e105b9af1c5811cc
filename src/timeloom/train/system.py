"""What tells one training system from another. No torch here, so that a command can read it in an instant."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from timeloom.errors import BadConfig
from timeloom.plan.partition.choose import PartitionSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemSettings:
    """How ranks share the work. A preset (`--system NAME`) fills this in; each decision can be changed alone."""

    name: str = "none"  # what the decisions below are called
    divide: Literal["windows", "time", "nodes", "batches", "targets"] = "windows"
    """What ranks divide among each other: whole windows, the snapshots of a window (time), or the nodes: all ranks go
    over every window together (nodes), or each over batches of its own nodes, by itself; see [hybrid] (batches); or
    each embeds the targets of sampled batches that it stores; see [distdy] (targets)."""
    unit: Literal["window", "trapezoid"] = "window"
    """What is learnt from together: windows of [window], or windows of [flare], whose older snapshots shrink."""
    time: Literal["relay", "alltoall"] = "relay"
    """Where ranks divide the snapshots: states go from rank to rank (relay), or rows are dealt out anew so that each
    rank remembers for its own nodes (alltoall)."""
    recompute: bool = False
    """Of a window only the states between short stretches are kept; the rest is computed again when gradients go back
    (gradient checkpointing): less memory, more time, the same numbers."""
    pipeline: bool = False
    """What a window is made of is computed beside what another one remembers, on two threads. Needs window.groups of 2
    or more to gain anything."""
    partition: PartitionSettings = field(default_factory=PartitionSettings)
    """Who owns a node, where nodes or targets are divided."""
    overlap: bool = True  # nodes: the rows that a snapshot needs of others travel while the one before is computed

    def __post_init__(self) -> None:
        if self.recompute and self.pipeline:
            raise BadConfig(
                "system.recompute=true and system.pipeline=true: a pipeline holds what it computes until it goes back; "
                "leave one of them out"
            )
        if self.recompute and self.divide == "time" and self.time == "alltoall":
            raise BadConfig(
                "system.recompute=true with system.time=alltoall would send all rows twice: use --set system.time=relay"
            )
        if self.recompute and self.divide == "targets":
            raise BadConfig(
                "system.recompute=true would sample and fetch everything twice where targets are divided: leave it out"
            )
        if self.recompute and self.divide == "nodes":
            raise BadConfig(
                "system.recompute=true with system.divide=nodes would exchange all halos twice: leave it out, or use "
                "more ranks, each of which then holds fewer rows"
            )
        if self.pipeline and self.divide != "windows":
            raise BadConfig(
                f"system.pipeline=true takes whole windows, but system.divide={self.divide}: leave one of them out"
            )
        if self.unit == "trapezoid" and (self.divide != "nodes" or self.recompute or self.pipeline):
            raise BadConfig(
                f"system.unit=trapezoid with system.divide={self.divide}, system.recompute={self.recompute} and "
                f"system.pipeline={self.pipeline}: ranks divide the nodes of such windows, and what older snapshots "
                "take is saved by computing less of them; use --system flare and leave the others out"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class WorldSettings:
    """How long ranks wait for each other, and how closely they are watched."""

    first_seconds: float = 300.0
    """Until the second step begins: ranks read, compile and build at their own pace."""
    step_seconds: float = 100.0  # later on; then the missing rank is named, and all end
    check: bool = False
    """Compare what ranks are about to do together before every collective; slow, for finding mistakes."""
    trusted: bool = False
    """Ranks may meet at an address of the internet: something else keeps strangers out, for they know no secret."""

    def __post_init__(self) -> None:
        if not (self.first_seconds > 0 and self.step_seconds > 0):
            raise BadConfig(
                f"world.first_seconds={self.first_seconds:g} and world.step_seconds={self.step_seconds:g}: "
                "give more than 0"
            )
