"""How good schedules are, and how long they take to find: a row for each number of groups and devices, one core.

`over bound` is the time of an epoch over the best lower bound known: the quick ones, the threshold MIP for up to
--bounded groups and CP-SAT's for up to 30. DyGNeX's paper solves 1000 groups greedily in 0.16 s, 10^4 in 13.9 s
(Table 5), and its ILP takes 23 s for 100 groups within 2 %, more than 30 s for 150 (Table 6). Instances: groups of 4
snapshots, stride 1, whose sizes grow as Stack Overflow's, stay, or come in bursts; what two groups have in common costs
half where there is reuse.

    .venv/bin/python benchmarks/schedule.py [--most 10000] [--bounded 100] [--bound-s 10] [--search-s 1]
"""

from __future__ import annotations

import argparse
import time

import numpy as np

from timeloom.plan.schedule.best import best, best_within, start
from timeloom.plan.schedule.bounds import lower_bound
from timeloom.plan.schedule.exact import exact
from timeloom.plan.schedule.greedy import dygnex_g, dygnex_g_of, real_g, real_g_of
from timeloom.plan.schedule.ilp import Solver, dygnex_l, real_l
from timeloom.plan.schedule.instance import Instance, instance
from timeloom.plan.schedule.plain import in_order, pair_consecutive
from timeloom.plan.schedule.schedule import Scheduler, epoch_seconds, loads_of, solve
from timeloom.plan.schedule.thresholds import threshold_bound

WIDTH = 4
CASES = (
    (10, 2), (30, 2), (30, 8), (100, 2), (100, 8), (100, 32), (300, 4), (300, 32), (1000, 4), (1000, 8), (1000, 32),
    (1000, 102), (10_000, 4), (10_000, 64), (10_000, 1024),
)  # fmt: skip
GREEDY_GROUPS = 1000
TARGETS = 4


def windows(kind: str, count: int, devices: int, *, ratio: float) -> Instance:
    """Return an instance of a kind; what is saved is a share of the common snapshots' time."""
    rng = np.random.default_rng(0)
    size = count + WIDTH - 1
    snapshots = {
        "growing": (0.1 + (np.arange(size) / size) ** 1.5) * rng.lognormal(0, 0.08, size),
        "flat": rng.lognormal(0, 0.08, size),
        "bursty": rng.lognormal(0, 0.8, size),
    }[kind]
    sums = np.concatenate([[0.0], np.cumsum(snapshots)])
    reuse = np.zeros((count, WIDTH - 1))
    for d in range(1, min(WIDTH, count)):
        first = np.arange(count - d)
        reuse[: count - d, d - 1] = ratio * (sums[first + WIDTH] - sums[first + d])
    return instance(sums[WIDTH:] - sums[:-WIDTH], devices=devices, reuse=reuse if ratio else None)


def best_bound(problem: Instance, chosen: argparse.Namespace) -> tuple[float, str]:
    """Return the best lower bound that can be had in the time, and where it is from."""
    found = best(moves=200_000)(problem)
    bounds = {"work": lower_bound(problem)}
    if len(problem) <= chosen.bounded:
        near = loads_of(found, problem).max(1)
        bounds["MIP"] = threshold_bound(problem, near, cells=40, thresholds=40, limit_s=chosen.bound_s)
    if len(problem) <= 30:
        bounds["CP-SAT"] = exact(problem, found, limit_s=chosen.bound_s).bound_s
    name = max(bounds, key=lambda name: bounds[name])
    return bounds[name], name


def table(chosen: argparse.Namespace) -> None:
    """Print a row for each instance: over the bound, and seconds."""
    greedy: dict[bool, dict[str, Scheduler]] = {
        True: {"DyGNeX-G": dygnex_g, "REAL-G": real_g},
        False: {"DyGNeX-G": dygnex_g_of(TARGETS), "REAL-G": real_g_of(TARGETS)},
    }
    names = ("in order", "type II", "DyGNeX-G", "REAL-G", "start", "best 0.1 s", f"best {chosen.search_s:g} s")
    print(f"| instance | groups | devices | reuse | bound | {' | '.join(names)} |\n|{'---|' * (5 + len(names))}")
    for kind in chosen.kinds.split(","):
        for count, devices in CASES:
            if count > chosen.most:
                continue
            for ratio in (0.5, 0.0):
                problem = windows(kind, count, devices, ratio=ratio)
                bound_s, source = best_bound(problem, chosen)
                rows: dict[str, Scheduler] = {"in order": in_order, "type II": pair_consecutive}
                rows |= greedy[count <= GREEDY_GROUPS]
                rows |= {"start": start, "best 0.1": best_within(0.1), "best": best_within(chosen.search_s)}
                told = [solve(problem, scheduler, bound_s=bound_s) for scheduler in rows.values()]
                cells = " | ".join(f"{one.gap:.2%} ({one.solved_s:.2g} s)" for one in told)
                print(f"| {kind} | {count} | {devices} | {ratio:g} | {source} | {cells} |", flush=True)


def programs(chosen: argparse.Namespace) -> None:
    """Print what the papers' integer programs come to within a time, and CP-SAT on pairs."""
    print(f"\n| groups | devices | reuse | DyGNeX-L 2 % | REAL-L 10 % | exact |\n|{'---|' * 6}")
    for count, devices, ratio in ((10, 2, 0.0), (10, 2, 0.5), (20, 4, 0.0), (20, 4, 0.5), (30, 4, 0.0), (30, 4, 0.5)):
        problem = windows("growing", count, devices, ratio=ratio)
        known = exact(problem, best(moves=200_000)(problem), limit_s=chosen.bound_s)
        solvers: tuple[Solver, ...] = (dygnex_l(limit_s=chosen.bound_s), real_l(limit_s=chosen.bound_s))
        cells = [cell(problem, solver, known.seconds) for solver in solvers]
        cells.append(f"gap {known.gap:.2%} ({known.solved_s:.2g} s)")
        print(f"| {count} | {devices} | {ratio:g} | {' | '.join(cells)} |", flush=True)


def cell(problem: Instance, solver: Solver, least_s: float) -> str:
    """Return how far a solver's schedule is from the best one known, and its time."""
    began = time.perf_counter()
    told = solver(problem)
    took = time.perf_counter() - began
    if told.schedule is None:
        return f"none ({took:.2g} s)"
    over = epoch_seconds(told.schedule, problem) / least_s - 1
    return f"{over:+.1%}{'' if told.converged else ', not converged'} ({took:.2g} s)"


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--most", type=int, default=10_000)
    parser.add_argument("--kinds", default="growing,flat,bursty")
    parser.add_argument("--bounded", type=int, default=100)
    parser.add_argument("--bound-s", type=float, default=10.0)
    parser.add_argument("--search-s", type=float, default=1.0)
    chosen = parser.parse_args()
    # What compiles is not measured.
    for scheduler in (dygnex_g, real_g, best(moves=100)):
        scheduler(windows("growing", 8, 2, ratio=0.5))
    table(chosen)
    programs(chosen)


if __name__ == "__main__":
    main()
