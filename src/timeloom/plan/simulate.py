"""How long an epoch of any schedule takes on any number of devices, before anybody has them.

Sizes of snapshots come from a graph or from `graph.synth.sizes`; `reuse.group_times` makes groups of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from timeloom.errors import BadConfig
from timeloom.plan.reuse import GroupTimes
from timeloom.plan.schedule.bounds import lower_bound
from timeloom.plan.schedule.instance import Float64s, Instance, instance
from timeloom.plan.schedule.matching import most_saved
from timeloom.plan.schedule.schedule import Judged, Scheduler, judge, solve


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """What it takes to sum gradients over all devices: a ring, in so many calls (MG-WFBP; REAL 7.5)."""

    bytes: int = 200_000
    """The gradients of a model: REAL's are below a megabyte."""
    bytes_per_s: float = 12.5e9
    latency_s: float = 10e-6
    """Of a message from a device to the next."""

    def __post_init__(self) -> None:
        if self.bytes < 0 or not self.bytes_per_s > 0 or self.latency_s < 0:
            raise BadConfig(
                f"an all-reduce of {self.bytes} bytes at {self.bytes_per_s:g} bytes/s with {self.latency_s:g} s a "
                "message cannot be: bytes and latency are 0 or more, the rate is more than 0"
            )

    def all_reduce_s(self, devices: int) -> float:
        """Return the time of one sum over so many devices: every device sends its share twice round the ring."""
        hops = 2 * (devices - 1)
        return hops * (self.latency_s + self.bytes / devices / self.bytes_per_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulated:
    """An epoch on so many devices."""

    devices: int
    name: str
    judged: Judged
    efficiency: float
    """The least time that one device needs, with the best reuse there is, over devices times the time of the epoch."""


def simulate(
    times: GroupTimes, schedulers: Mapping[str, Scheduler], devices: Sequence[int], network: Network, *, limit: int = 2
) -> Iterator[Simulated]:
    """Yield what each scheduler makes of the groups on each number of devices."""
    for count in devices:
        problem = instance(
            times.seconds_K, devices=count, reuse=times.reuse_KB, limit=limit, alpha_s=network.all_reduce_s(count)
        )
        bound_s = lower_bound(problem)
        least_s = float(problem.seconds_K.sum()) - most_saved(problem)
        for name, scheduler in schedulers.items():
            judged = solve(problem, scheduler, bound_s=bound_s)
            efficiency = least_s / (count * judged.seconds) if judged.seconds > 0 else 1.0
            yield Simulated(devices=count, name=name, judged=judged, efficiency=efficiency)


def with_noise(found: Judged, problem: Instance, *, share: float, seed: int, draws: int = 20) -> Float64s:
    """Return the times of epochs of a schedule if groups take more or less than they were told to (log-normal)."""
    rng = np.random.Generator(np.random.Philox([seed, 0x6E6F6973]))
    told = []
    for _ in range(draws):
        seconds = problem.seconds_K * rng.lognormal(0.0, share, len(problem))
        drawn = instance(
            seconds, devices=problem.num_devices, reuse=problem.reuse_KB, limit=problem.limit, alpha_s=problem.alpha_s,
            speeds=problem.speeds_D.tolist(),
        )  # fmt: skip
        told.append(judge(found.schedule, drawn, bound_s=0.0).seconds)
    return np.array(told)
