"""All that can be chosen of DynaHB, and the sizes of batches that follow from it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from timeloom.errors import BadConfig
from timeloom.plan.batch.neighbourhood import Sets
from timeloom.plan.tune.adjuster import Adjuster, Bandit, Fixed, Random
from timeloom.plan.tune.dqn import Dqn, DqnSettings


@dataclass(frozen=True, slots=True)
class BatchSize:
    """How many consecutive snapshots, and how many target nodes, a hybrid batch has."""

    snapshots: int
    nodes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HybridSettings:
    """How batches are cut and kept, how their size is chosen, and how ranks come to agree."""

    snapshot_shares: tuple[float, ...] = (0.1, 0.2, 0.3)
    """Shares of the training snapshots that a batch may have (the authors' program)."""
    node_shares: tuple[float, ...] = (0.01, 0.05, 0.1)
    """Shares of a rank's nodes that are targets of a batch (the authors' program)."""
    start_snapshots: float = 0.2
    """The share of snapshots that training starts with, and keeps with adjuster=fixed (6.1); one of those above."""
    start_nodes: float = 0.05
    """The same for nodes (6.1)."""
    adjuster: Literal["dqn", "bandit", "random", "fixed"] = "dqn"
    """Who chooses the size. dqn: as published. bandit: what made the loss fall fastest of late."""
    dqn: DqnSettings = field(default_factory=DqnSettings)
    groups: int = 10
    """Groups of about the same load that targets are drawn from in equal numbers (4.2)."""
    sets: Sets = "causal"
    """What is cached. union: one set of nodes for all snapshots, as published; causal: less, and as exact."""
    cache_mib: float = 0.0
    """The most that a rank's cache may take (0: half of the memory that is free)."""
    reservoir: bool = True
    """Batches are kept and used again; without, each is built when it is asked for."""
    reuse_most: float = 0.9
    """The most likely that a kept batch is used again (SPEC D8.6; the paper's Eq. 4 goes up to 1)."""
    renew_every: int = 1
    """A kept batch is replaced by a new one after so many uses of kept ones (0: never, as the authors' program)."""
    reservoir_mib: float = 1024.0
    """The most that kept batches may take together."""
    builders: int = 1
    """Threads that build batches beside training. 0: training builds them itself, and is then repeatable to the bit."""
    snapshot_batch_mib: float = 2048.0
    """A batch of all nodes stands in for one that is not built yet where training it takes no more (0: never)."""
    sync: Literal["timed", "overlapped", "allreduce"] = "timed"
    """timed: parameters are averaged every so many seconds. overlapped: the same while training goes on. allreduce:
    gradients at every step."""
    round_seconds: float = 0.0
    """The time between averages (0: `round_steps` times what a step takes)."""
    round_steps: int = 10
    """How many steps the median rank makes between averages (the authors' program: 5 or 10)."""
    epoch_share: float = 1.0
    """An epoch, after which validation comes, is over when all ranks together went over so many times the targets that
    training has. Batches that have them all are an epoch each, whatever is asked for."""
    weigh_by_steps: bool = False
    """A rank counts by the steps it made; else all that made any count the same."""

    def __post_init__(self) -> None:
        self._check_shares("snapshot_shares", self.snapshot_shares, "start_snapshots", self.start_snapshots)
        self._check_shares("node_shares", self.node_shares, "start_nodes", self.start_nodes)
        if not 0.0 <= self.reuse_most <= 1.0:
            raise BadConfig(f"hybrid.reuse_most={self.reuse_most:g} is no probability: give 0 to 1, such as 0.9")
        for name, least in (("groups", 1), ("renew_every", 0), ("builders", 0), ("round_steps", 1)):
            if getattr(self, name) < least:
                raise BadConfig(f"hybrid.{name}={getattr(self, name)} was asked for, but it must be {least} or more")
        for name in ("cache_mib", "reservoir_mib", "snapshot_batch_mib", "round_seconds"):
            # Also refuses what is no number.
            if not 0.0 <= getattr(self, name) < float("inf"):
                raise BadConfig(f"hybrid.{name}={getattr(self, name):g} was asked for, but it must be 0 or more")
        if not 0.0 < self.epoch_share < float("inf"):
            raise BadConfig(f"hybrid.epoch_share={self.epoch_share:g} is no share: give more than 0, such as 1")
        if self.builders > 64:
            raise BadConfig(f"hybrid.builders={self.builders} threads were asked for: give 64 or less, such as 1")

    def _check_shares(self, name: str, shares: tuple[float, ...], start_name: str, start: float) -> None:
        given = ", ".join(f"{share:g}" for share in shares)
        if not shares or len(set(shares)) < len(shares) or not all(0.0 < share <= 1.0 for share in shares):
            raise BadConfig(f"hybrid.{name}=[{given}] was asked for: give different shares above 0 and up to 1")
        if start not in shares:
            raise BadConfig(
                f"hybrid.{start_name}={start:g} is none of hybrid.{name}=[{given}]: set it to one of these, or "
                "add it there"
            )

    @property
    def start(self) -> int:
        """The action that training starts with."""
        snapshots, nodes = self.snapshot_shares.index(self.start_snapshots), self.node_shares.index(self.start_nodes)
        return snapshots * len(self.node_shares) + nodes

    def sizes(self, num_snapshots: int, num_nodes: int) -> tuple[BatchSize, ...]:
        """Return the sizes to choose from, those of one number of snapshots together; none is empty.

        All ranks have the same number of sizes whatever they own, so that an action means the same share everywhere.
        """
        return tuple(
            BatchSize(_part(of_snapshots, num_snapshots), _part(of_nodes, num_nodes))
            for of_snapshots in self.snapshot_shares
            for of_nodes in self.node_shares
        )

    def make_adjuster(self, sizes: tuple[BatchSize, ...], *, seed: int) -> Adjuster:
        """Return who chooses among these sizes."""
        count, start = len(sizes), self.start
        match self.adjuster:
            case "dqn":
                pairs = [(size.snapshots, size.nodes) for size in sizes]
                return Dqn(pairs, start=start, seed=seed, settings=self.dqn)
            case "bandit":
                return Bandit(count, start=start, seed=seed)
            case "random":
                return Random(count, start=start, seed=seed)
            case "fixed":
                return Fixed(count, start=start, seed=seed)


def _part(share: float, whole: int) -> int:
    return min(max(1, round(share * whole)), whole)
