"""How a schedule is improved by moving groups from bin to bin (simulated annealing).

A *bin* is what a device does in a step. Given the bins, the best steps are blocks of the bins sorted by their time, so
that only the *heads* count, the first bin of each block: the search is over bins alone, and a move is told by how it
shifts the heads between the ranks that it touches. Devices of one speed are a class with a sorted list of its own; a
step takes a block of each class and lasts as long as the longest of their heads.

Shape letters: K groups, S bins (also empty ones), L groups of a bin at most, C classes of devices, M steps.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from timeloom.jit import inlined, kernel
from timeloom.plan.schedule.instance import Float64s, Instance, Int64s

_NEAR = 4


@dataclass(frozen=True, slots=True, eq=False)
class Bins:
    """Bins of several steps, of which some may be empty; changed in place by the search."""

    groups_SL: Int64s
    """The groups of each bin in order, then -1."""
    bin_K: Int64s
    """The bin of each group."""
    class_S: Int64s
    """The class of devices that a bin is for."""
    load_S: Float64s
    """Its time on a device of that class."""
    order_S: Int64s
    """The bins of the first class, the longest first, then those of the next class, ..."""
    rank_S: Int64s
    """Where a bin stands among those of its class."""
    first_C: Int64s
    """Where a class begins in ``order_S``."""
    devices_C: Int64s
    speed_C: Float64s
    by_time_K: Int64s
    """Groups from the shortest to the longest."""
    place_K: Int64s
    """Where a group stands among those."""

    def copy(self) -> Bins:
        """Return the same bins, to be changed apart."""
        return Bins(*(getattr(self, name).copy() for name in self.__dataclass_fields__))


@inlined
def _uniform(state: np.ndarray) -> float:
    """Return a number from 0 to below 1 (splitmix64)."""
    state[0] += np.uint64(0x9E3779B97F4A7C15)
    z = state[0]
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    z = z ^ (z >> np.uint64(31))
    return float(z >> np.uint64(11)) * (1.0 / 9007199254740992.0)


@inlined
def _below(count: int, state: np.ndarray) -> int:
    return min(int(_uniform(state) * count), count - 1)


@inlined
def _exchange(kept: Int64s, gone: int, new: int, out: Int64s) -> None:
    """Write a bin's groups in order, without one of them and with another (-1: none)."""
    size, placed = 0, new < 0
    for place in range(len(kept)):
        group = kept[place]
        if group < 0:
            break
        if group == gone:
            continue
        if not placed and new < group:
            out[size] = new
            size, placed = size + 1, True
        out[size] = group
        size += 1
    if not placed:
        out[size] = new
        size += 1
    for place in range(size, len(out)):
        out[place] = -1


@inlined
def _time(groups: Int64s, seconds: Float64s, reuse: Float64s) -> float:
    told = 0.0
    for place in range(len(groups)):
        group = groups[place]
        if group < 0:
            break
        told += seconds[group]
        if place > 0:
            distance = group - groups[place - 1]
            if distance <= reuse.shape[1]:
                told -= reuse[groups[place - 1], distance - 1]
    return told


@inlined
def _above(load: float, first: int, size: int, order: Int64s, loads: Float64s) -> int:
    """Return how many bins of a class take longer."""
    low, high = 0, size
    while low < high:
        middle = (low + high) // 2
        if loads[order[first + middle]] > load:
            low = middle + 1
        else:
            high = middle
    return low


@inlined
def _plan_change(
    c: int, rank: int, load: float, first: Int64s, order: Int64s, loads: Float64s, change: Int64s, new: Float64s
) -> None:
    """Note that the bin of a rank gets another load. ``change`` holds for each class: how many, ranks, new ranks."""
    size = first[c + 1] - first[c]
    if change[c, 0] == 0:
        place = _above(load, first[c], size, order, loads)
        if loads[order[first[c] + rank]] > load:
            place -= 1
        change[c, 0], change[c, 1], change[c, 2], change[c, 3], change[c, 4] = 1, rank, size, place, size
        new[c, 0] = load
        return
    other_rank, other_load = change[c, 1], new[c, 0]
    low, high = min(rank, other_rank), max(rank, other_rank)
    longer, shorter = max(load, other_load), min(load, other_load)
    places = _above(longer, first[c], size, order, loads), _above(shorter, first[c], size, order, loads)
    low_load, high_load = loads[order[first[c] + low]], loads[order[first[c] + high]]
    change[c, 0], change[c, 1], change[c, 2] = 2, low, high
    change[c, 3] = places[0] - (low_load > longer) - (high_load > longer)
    change[c, 4] = places[1] - (low_load > shorter) - (high_load > shorter) + 1
    new[c, 0], new[c, 1] = longer, shorter


@inlined
def _load_at(k: int, c: int, first: Int64s, order: Int64s, loads: Float64s, change: Int64s, new: Float64s) -> float:
    """Return the load that will be at a rank of a class."""
    if change[c, 0] > 0:
        if k == change[c, 3]:
            return float(new[c, 0])
        if k == change[c, 4]:
            return float(new[c, 1])
        k = k - (change[c, 3] < k) - (change[c, 4] < k)
        k += k >= change[c, 1]
        k += k >= change[c, 2]
    return float(loads[order[first[c] + k]])


@inlined
def _difference(
    alpha: float, first: Int64s, devices: Int64s, order: Int64s, loads: Float64s,
    change: Int64s, new: Float64s,
) -> float:  # fmt: skip
    """Return how much longer the steps will take."""
    low_block, high_block = 1 << 60, -1
    for c in range(len(devices)):
        if change[c, 0] > 0:
            low, high = min(change[c, 1], change[c, 3]), max(change[c, 1], change[c, 3])
            if change[c, 0] == 2:
                high = max(change[c, 2], change[c, 4])
            low_block, high_block = min(low_block, low // devices[c]), max(high_block, high // devices[c])
    told = 0.0
    for block in range(low_block, high_block + 1):
        before, after = 0.0, 0.0
        for c in range(len(devices)):
            k = block * devices[c]
            before = max(before, loads[order[first[c] + k]])
            after = max(after, _load_at(k, c, first, order, loads, change, new))
        told += after - before + alpha * ((after > 0.0) - (before > 0.0))
    return told


@inlined
def _move_to(slot: int, load: float, first: int, size: int, order: Int64s, ranks: Int64s, loads: Float64s) -> None:
    """Give a bin another load and shift the bins between its old rank and its new one."""
    k = ranks[slot]
    while k > 0 and loads[order[first + k - 1]] < load:
        order[first + k] = order[first + k - 1]
        ranks[order[first + k]] = k
        k -= 1
    while k + 1 < size and loads[order[first + k + 1]] > load:
        order[first + k] = order[first + k + 1]
        ranks[order[first + k]] = k
        k += 1
    order[first + k] = slot
    ranks[slot], loads[slot] = k, load


@inlined
def _choose_bin(num_blocks: int, first: Int64s, devices: Int64s, order: Int64s, state: np.ndarray) -> int:
    """Return a bin, more often one that is a head or soon will be."""
    c = _below(len(devices), state)
    size = first[c + 1] - first[c]
    if _uniform(state) < 0.25:
        return int(order[first[c] + _below(min(size, num_blocks * devices[c]), state)])
    rank = _below(num_blocks, state) * devices[c] + _below(min(2, devices[c]), state)
    return int(order[first[c] + min(rank, size - 1)])


@inlined
def _choose_exchange(
    num_blocks: int, groups: Int64s, bins: Int64s, by_time: Int64s, places: Int64s, band: int, first: Int64s,
    devices: Int64s, order: Int64s, state: np.ndarray,
) -> tuple[int, int, int, int]:  # fmt: skip
    """Return two bins and what each of them gives to the other (-1: nothing)."""
    limit = groups.shape[1]
    x = _choose_bin(num_blocks, first, devices, order, state)
    gives = groups[x, _below(limit, state)]
    if gives >= 0 and _uniform(state) < 0.3:
        # Exchange a group for one that is hardly longer or shorter: bins near their goal come nearer.
        place = places[gives] + _below(2 * _NEAR + 1, state) - _NEAR
        wanted = by_time[min(max(place, 0), len(bins) - 1)]
        return x, bins[wanted], gives, wanted
    if band > 0 and limit > 1 and groups[x, 0] >= 0 and _uniform(state) < 0.5:
        # Bring a group together with one that it shares something with.
        size = limit
        while groups[x, size - 1] < 0:
            size -= 1
        stays = groups[x, _below(size, state)]
        distance = 1 + _below(band, state)
        wanted = stays + distance if _uniform(state) < 0.5 else stays - distance
        if wanted < 0 or wanted >= len(bins) or bins[wanted] == x:
            return x, x, -1, -1
        if gives == stays:
            gives = -1
        return x, bins[wanted], gives, wanted
    y = _choose_bin(num_blocks, first, devices, order, state)
    return x, y, gives, groups[y, _below(limit, state)]


@kernel(
    "int64(float64[::1], float64[:,::1], int64[:,::1], int64[::1], int64[::1], float64[::1], int64[::1], int64[::1], "
    "int64[::1], int64[::1], float64[::1], int64[::1], int64[::1], float64, int64, float64, float64, uint64[::1])"
)
def _anneal(
    seconds: Float64s, reuse: Float64s, groups: Int64s, bins: Int64s, classes: Int64s, loads: Float64s, order: Int64s,
    ranks: Int64s, first: Int64s, devices: Int64s, speeds: Float64s, by_time: Int64s, places: Int64s, alpha: float,
    moves: int, hot: float, cold: float, state: np.ndarray,
) -> int:  # fmt: skip
    limit, num_taken = groups.shape[1], 0
    new_x, new_y = np.empty(limit, np.int64), np.empty(limit, np.int64)
    change, new = np.zeros((len(devices), 5), np.int64), np.zeros((len(devices), 2))
    num_blocks = 1
    for c in range(len(devices)):
        used = _above(0.0, first[c], first[c + 1] - first[c], order, loads)
        num_blocks = max(num_blocks, used // devices[c] + 1)
    num_blocks = min(num_blocks, (first[1] - first[0]) // devices[0])
    temperature = hot
    for move in range(moves):
        if move % 64 == 0:
            temperature = hot * (cold / hot) ** (move / moves)
        x, y, from_x, from_y = _choose_exchange(
            num_blocks, groups, bins, by_time, places, reuse.shape[1], first, devices, order, state
        )
        if x == y or (from_x < 0 and from_y < 0):
            continue
        if (from_x < 0 and groups[x, limit - 1] >= 0) or (from_y < 0 and groups[y, limit - 1] >= 0):
            continue
        _exchange(groups[x], from_x, from_y, new_x)
        _exchange(groups[y], from_y, from_x, new_y)
        load_x = _time(new_x, seconds, reuse) / speeds[classes[x]]
        load_y = _time(new_y, seconds, reuse) / speeds[classes[y]]
        change[classes[x], 0], change[classes[y], 0] = 0, 0
        _plan_change(classes[x], ranks[x], load_x, first, order, loads, change, new)
        _plan_change(classes[y], ranks[y], load_y, first, order, loads, change, new)
        told = _difference(alpha, first, devices, order, loads, change, new)
        change[classes[x], 0], change[classes[y], 0] = 0, 0
        if told > 0.0 and _uniform(state) >= np.exp(-told / temperature):
            continue
        num_taken += 1
        groups[x], groups[y] = new_x, new_y
        if from_x >= 0:
            bins[from_x] = y
        if from_y >= 0:
            bins[from_y] = x
        for slot, load in ((x, load_x), (y, load_y)):
            c = classes[slot]
            _move_to(slot, load, first[c], first[c + 1] - first[c], order, ranks, loads)
    return num_taken


def anneal(problem: Instance, bins: Bins, *, moves: int, hot: float, cold: float, state: np.ndarray) -> None:
    """Try so many moves on the bins; one that makes steps longer is taken the more rarely, the colder it is.

    ``state`` is one uint64, the random numbers' own.
    """
    _anneal(
        problem.seconds_K, problem.reuse_KB, bins.groups_SL, bins.bin_K, bins.class_S, bins.load_S, bins.order_S,
        bins.rank_S, bins.first_C, bins.devices_C, bins.speed_C, bins.by_time_K, bins.place_K,
        problem.alpha_s, moves, hot, cold, state,
    )  # fmt: skip


def seconds_in(problem: Instance, bins: Bins) -> float:
    """Return the time of an epoch of bins."""
    heads_CM = [
        bins.load_S[bins.order_S[first:last]][::devices]
        for first, last, devices in zip(bins.first_C, bins.first_C[1:], bins.devices_C, strict=False)
    ]
    longest_M = np.max(heads_CM, axis=0)
    return float(longest_M.sum()) + problem.alpha_s * int(np.count_nonzero(longest_M))
