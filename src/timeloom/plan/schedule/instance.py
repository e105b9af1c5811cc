"""What there is to schedule: groups, what they share, and the devices that take them.

Shape letters: K groups, B how far apart in order two groups may be and still share something, D devices.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from timeloom.errors import BadConfig, BadInput

Float64s = NDArray[np.float64]
Int64s = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Instance:
    """A problem: K groups in the order of time, to be computed once each on D devices, so many at a time on each.

    What several groups of one device and step save is summed over neighbours in the order of time. For windows of one
    length this is what their union saves, since what the first and the third share lies in the second, too. Eq. 9 of
    REAL sums over all pairs; with at most two groups, which is all that it uses, both are the same.
    """

    seconds_K: Float64s
    """The time that each group takes by itself on a device of speed 1."""
    reuse_KB: Float64s
    """``reuse_KB[i, d - 1]`` seconds are saved where groups i and i + d share a device in a step."""
    speeds_D: Float64s
    """The speed of each device."""
    limit: int = 2
    """The most groups on a device in a step (REAL 5.1: 2, for the sake of memory)."""
    alpha_s: float = 0.0
    """What every step takes beside: the gradients' all-reduce."""

    def __post_init__(self) -> None:
        seconds, reuse = self.seconds_K, self.reuse_KB
        if self.limit < 1 or not len(self.speeds_D):
            raise BadConfig(
                f"a schedule for {len(self.speeds_D)} devices and at most {self.limit} groups on each in a step cannot "
                "be: give 1 or more of both"
            )
        if not (np.isfinite(self.speeds_D).all() and (self.speeds_D > 0).all()) or not 0 <= self.alpha_s < np.inf:
            raise BadConfig(
                f"speeds of devices are more than 0 and the time of an all-reduce is not below 0, but speeds go from "
                f"{self.speeds_D.min():g} to {self.speeds_D.max():g} and the time is {self.alpha_s:g}"
            )
        if not len(seconds) or not (np.isfinite(seconds).all() and (seconds >= 0).all()):
            raise BadInput(f"times of {len(seconds)} groups cannot be scheduled: give 1 or more, none below 0")
        if reuse.ndim != 2 or len(reuse) != len(seconds) or not np.isfinite(reuse).all():
            raise BadInput(f"reuse of shape {list(reuse.shape)} does not fit {len(seconds)} groups: give each a row")
        most = _pairwise_least(seconds, reuse.shape[1])
        if (reuse < 0).any() or (reuse > most * (1 + 1e-9) + 1e-12).any():
            worst = (np.abs(reuse - most / 2) - most / 2).argmax()
            i, d = (int(place) for place in np.unravel_index(worst, most.shape))
            raise BadInput(
                f"groups {i} and {i + d + 1} are said to save {reuse[i, d]:g} s: two groups save 0 or more, and no "
                f"more than the shorter one takes ({most[i, d]:g} s)"
            )

    def __len__(self) -> int:
        return len(self.seconds_K)

    @property
    def num_devices(self) -> int:
        """How many devices there are."""
        return len(self.speeds_D)

    @property
    def band(self) -> int:
        """How far apart two groups may be and still share something."""
        return int(self.reuse_KB.shape[1])

    def saved(self, i: int, j: int) -> float:
        """Return the seconds that two groups save together."""
        distance = abs(i - j)
        return float(self.reuse_KB[min(i, j), distance - 1]) if 0 < distance <= self.band else 0.0

    def work(self, groups: Sequence[int]) -> float:
        """Return the seconds that some groups take together on a device of speed 1."""
        order = sorted(groups)
        kept = sum(self.saved(i, j) for i, j in itertools.pairwise(order))
        return float(self.seconds_K[order].sum()) - kept


def instance(
    seconds: Sequence[float] | Float64s, *, devices: int, reuse: Float64s | None = None, limit: int = 2,
    alpha_s: float = 0.0, speeds: Sequence[float] | None = None,
) -> Instance:  # fmt: skip
    """Return a problem for so many devices, all of speed 1 where ``speeds`` does not say otherwise.

    What is saved is cut to what two groups can save at most: measured times need not agree with predicted savings.
    """
    seconds_K = np.ascontiguousarray(seconds, np.float64)
    if speeds is not None and len(speeds) != devices:
        raise BadConfig(f"{len(speeds)} speeds were given for {devices} devices: give one for each")
    speeds_D = np.ones(max(devices, 0)) if speeds is None else np.ascontiguousarray(speeds, np.float64)
    if reuse is None or not len(seconds_K):
        reuse_KB = np.zeros((len(seconds_K), 0))
    else:
        reuse_KB = np.minimum(reuse, _pairwise_least(seconds_K, reuse.shape[1]))
    return Instance(
        seconds_K=seconds_K, reuse_KB=np.ascontiguousarray(reuse_KB, np.float64), speeds_D=speeds_D, limit=limit,
        alpha_s=alpha_s,
    )  # fmt: skip


def _pairwise_least(seconds_K: Float64s, band: int) -> Float64s:
    """Return the shorter time of each pair that may share something; 0 where there is no second group."""
    least = np.zeros((len(seconds_K), band))
    for d in range(1, min(band, len(seconds_K) - 1) + 1):
        least[:-d, d - 1] = np.minimum(seconds_K[:-d], seconds_K[d:])
    return least
