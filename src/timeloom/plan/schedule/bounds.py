"""How little time an epoch takes at the very least, whatever the schedule.

Shape letters: K groups.
"""

from __future__ import annotations

import math

import numpy as np

from timeloom.plan.schedule.instance import Instance
from timeloom.plan.schedule.matching import most_saved


def fewest_steps(problem: Instance) -> int:
    """Return the least number of steps."""
    return math.ceil(len(problem) / (problem.limit * problem.num_devices))


def work_bound(problem: Instance) -> float:
    """Return the time that an epoch takes if every device is busy all the time and as much is saved as can be."""
    work = float(problem.seconds_K.sum()) - most_saved(problem)
    return work / float(problem.speeds_D.sum()) + problem.alpha_s * fewest_steps(problem)


def longest_bound(problem: Instance) -> float:
    """Return the time that the longest groups take: no step holds more groups than its devices have room for.

    So the longest group is in some step, the longest of the others that did not fit that step in another, and so on;
    together with others a group takes no less time than alone.
    """
    longest_K = np.sort(problem.seconds_K)[::-1] / float(problem.speeds_D.max())
    heads = longest_K[:: problem.limit * problem.num_devices]
    return float(heads.sum()) + problem.alpha_s * len(heads)


def lower_bound(problem: Instance) -> float:
    """Return the better one of the quick bounds (`threshold_bound` takes longer and tells more)."""
    return max(work_bound(problem), longest_bound(problem))
