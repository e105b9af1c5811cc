"""The greedy schedulers as published: DyGNeX-G, and REAL-G, its form that knows of reuse (REAL, Algorithm 1).

In every step the longest group that is left is put with each other group in turn, or with none. That gives a target;
the other devices get the bins that come closest to it by a search from both ends of the sorted groups; the target that
wastes the least time is taken.

What the printed algorithm leaves open is decided so: the zero group stands for staying alone and is never used up;
both pointers skip groups that are used; the bin that made the target is one of the step's bins and counts in its waste;
of equal candidates the first one stays; once no more groups are left than devices they make one more step, each alone.
The search from both ends takes a longer group to make a longer bin, which is not so once savings are subtracted; it is
kept as published. Devices are taken to be equal, as in both papers, and a bin has two groups at most (one, where the
limit is one).

Shape letters: K groups, B how far apart two groups may be and still share something.
"""

from __future__ import annotations

import numpy as np

from timeloom.jit import inlined, kernel
from timeloom.plan.schedule.instance import Float64s, Instance, Int64s
from timeloom.plan.schedule.schedule import Schedule, Scheduler, schedule_of


@inlined
def _bin(a: int, b: int, names: Int64s, times: Float64s, reuse: Float64s) -> float:
    """Return the time of two places in the sorted order together; place 0 is the zero group."""
    both = times[a] + times[b]
    if a > 0 and b > 0:
        distance = abs(names[a] - names[b])
        if distance <= reuse.shape[1]:
            both -= reuse[min(names[a], names[b]), distance - 1]
    return float(both)


@inlined
def _closest(
    target: float, after: Int64s, before: Int64s, names: Int64s, times: Float64s, reuse: Float64s, pairs: bool
) -> tuple[int, int, float]:
    """Return the two places whose time is the closest to the target that the search from both ends meets."""
    head, tail = 0, before[len(times)]
    best_head, best_tail, best_time = 0, 0, np.inf
    while head < tail:
        told = _bin(head, tail, names, times, reuse)
        if abs(told - target) < abs(best_time - target):
            best_head, best_tail, best_time = head, tail, told
            if told == target:
                break
        if told < target and pairs:
            head = after[head]
        else:
            tail = before[tail]
    return best_head, best_tail, best_time


@inlined
def _take(place: int, after: Int64s, before: Int64s) -> None:
    after[before[place]] = after[place]
    before[after[place]] = before[place]


@inlined
def _put_back(place: int, after: Int64s, before: Int64s) -> None:
    after[before[place]] = place
    before[after[place]] = place


@kernel("int64(float64[::1], int64[::1], float64[:,::1], int64, boolean, int64, int64[:,::1])")
def _greedy(times: Float64s, names: Int64s, reuse: Float64s, devices: int, pairs: bool, most: int, out: Int64s) -> int:
    """Fill ``out`` with the two places of each bin, step by step; return how many bins there are.

    At most ``most`` targets are tried in a step. Place 0 is the zero group; places that are left form a ring with a
    last one, len(times), that is no group.
    """
    end = len(times)
    after, before = np.empty(end + 1, np.int64), np.empty(end + 1, np.int64)
    for place in range(end + 1):
        after[place], before[place] = place + 1, place - 1
    left, size = end - 1, 0
    trial, best = np.empty((devices, 2), np.int64), np.empty((devices, 2), np.int64)
    while left > devices:
        longest = before[end]
        _take(longest, after, before)
        least, every = np.inf, -(-left // most)
        partner = 0
        while partner != end:
            target = _bin(partner, longest, names, times, reuse)
            trial[0, 0], trial[0, 1] = partner, longest
            if partner > 0:
                _take(partner, after, before)
            found, highest, total = 1, target, target
            # With every bin the waste only grows: a target that has wasted too much already is given up.
            while found < devices and before[end] > 0 and found * highest - total < least:
                head, tail, told = _closest(target, after, before, names, times, reuse, pairs)
                trial[found, 0], trial[found, 1] = head, tail
                _take(tail, after, before)
                if head > 0:
                    _take(head, after, before)
                found, highest, total = found + 1, max(highest, told), total + told
            if (found == devices or before[end] == 0) and devices * highest - total < least:
                least = devices * highest - total
                for device in range(devices):
                    for side in range(2):
                        best[device, side] = trial[device, side] if device < found else 0
            for device in range(found - 1, 0, -1):
                if trial[device, 0] > 0:
                    _put_back(trial[device, 0], after, before)
                _put_back(trial[device, 1], after, before)
            if partner > 0:
                _put_back(partner, after, before)
            for _ in range(every):
                partner = after[partner] if pairs and partner != end else end
        _put_back(longest, after, before)
        for device in range(devices):
            for side in range(2):
                place = best[device, side]
                out[size, side] = place
                if place > 0:
                    _take(place, after, before)
                    left -= 1
            size += 1
    place = after[0]
    while place != end:
        out[size, 0], out[size, 1] = 0, place
        size, place = size + 1, after[place]
    return size


def _published(problem: Instance, reuse_KB: Float64s, targets: int) -> Schedule:
    order = np.argsort(problem.seconds_K, kind="stable")
    names = np.concatenate([[-1], order])
    times = np.concatenate([[0.0], problem.seconds_K[order]])
    devices = problem.num_devices
    # In every full step each device has a group at least, so that there are no more steps than this.
    out = np.zeros((devices * (len(problem) // devices + 2), 2), np.int64)
    size = _greedy(times, names, np.ascontiguousarray(reuse_KB), devices, problem.limit > 1, targets, out)
    bins = [[int(names[place]) for place in places if place > 0] for places in out[:size].tolist()]
    return schedule_of([bins[first : first + devices] for first in range(0, size, devices)], devices)


def real_g(problem: Instance) -> Schedule:
    """Return REAL's greedy schedule (REAL 5.3, Algorithm 1); K^3 / 6 operations."""
    return _published(problem, problem.reuse_KB, len(problem) + 1)


def dygnex_g(problem: Instance) -> Schedule:
    """Return DyGNeX's greedy schedule (DyGNeX 4.3): the same, blind to what groups share."""
    return _published(problem, np.zeros((len(problem), 0)), len(problem) + 1)


def real_g_of(targets: int) -> Scheduler:
    """Return REAL's greedy scheduler with so many targets a step, evenly spread, in place of all: not as published."""
    return lambda problem: _published(problem, problem.reuse_KB, targets)


def dygnex_g_of(targets: int) -> Scheduler:
    """Return DyGNeX's greedy scheduler with so many targets a step, evenly spread, in place of all."""
    return lambda problem: _published(problem, np.zeros((len(problem), 0)), targets)
