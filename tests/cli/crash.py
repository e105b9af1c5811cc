"""Runs that are killed at random instants: of every system, on some ranks, and what came of each.

``python -m tests.cli.crash --instants 4`` kills every system so often on 1, 2 and 3 ranks each, and prints a table for
docs/reliability.md. Killed are one rank, all of them, or the command itself; the run then goes on by ``--resume``, or
by ``--max-restarts``, until it ends. It must end with the parameters, losses and scores of a run that nobody touched.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from torch import Tensor

from tests.cli.forked import Forked, all_end, begin, fork_ranks
from tests.train.small_runs import drift, history, of_kind, same_bits, saved
from timeloom import cli
from timeloom.errors import Interrupted
from timeloom.records import is_run, read
from timeloom.systems import PRESETS
from timeloom.train import checkpoint

SETS = (
    "train.threads=1", "train.device=cpu", "train.patience=0", "model.hidden=4", "train.spans=0",
)  # fmt: skip
EPOCHS, SNAPSHOTS = 12, 12
_BATCHES = ("hybrid.cache_mib=64",)
_WINDOWS = ("model.name=gcn_gru", "window.length=3")
_TIMED = ("schedule.plain_epochs=0", "schedule.profile_epochs=1", "schedule.search_s=0.05")
_LIMIT_S = 100.0


@dataclass(frozen=True, slots=True)
class Case:
    """A system, and how it is chosen."""

    name: str
    system: str
    sets: tuple[str, ...]
    repeats: bool = True
    """Two runs that nobody touches end with the same bits."""
    is_scheduled: bool = False
    """What is computed together follows from times that are measured: the same once the schedule is there."""
    follows: bool = False
    """By `timeloom follow`, which goes on by itself where its run is there."""


def _case(system: str) -> Case:
    if system == "dynahb":
        return Case(system, system, _BATCHES, repeats=False)
    if system == "bvr":
        return Case("bvr, hybrid.builders=0", system, (*_BATCHES, "hybrid.builders=0"))
    if system in ("pyd", "dbov", "dbos"):
        return Case(system, system, _BATCHES)
    if system == "distdy":
        return Case(system, system, ("model.layers=1", "distdy.fanouts=[3]", "window.length=3"))
    if system.startswith(("real", "dygnex")):
        return Case(system, system, (*_WINDOWS, *_TIMED), is_scheduled=True)
    return Case(system, system, ("model.name=gcn_gru",) if system in ("adt", "flare") else _WINDOWS)


_LIVE = ("live.known=5", "live.warmup=0.3", "live.steps=4", "window.length=3", "model.layers=1", "train.save_seconds=0")
_REPEATABLE = ("hybrid.sync=allreduce", "hybrid.builders=0", "hybrid.adjuster=random")
CASES = {
    case.name: case
    for case in (
        *map(_case, PRESETS),
        Case("dynahb, in step", "dynahb", (*_BATCHES, *_REPEATABLE)),
        Case("esdg, alltoall", "esdg", (*_WINDOWS, "system.time=alltoall")),
        Case("follow, distdy", "distdy", (*_LIVE, "distdy.fanouts=[3]"), follows=True),
    )
}


@dataclass
class Tally:
    """What came of the instants of one case on so many ranks."""

    instants: int = 0
    resumed: int = 0
    """After so many of them the run went on to its end."""
    compared: int = 0
    identical: int = 0
    lost_epochs: int = 0
    """The most epochs that were told and had to be done again."""
    gone_s: float = 0.0
    """The longest that a process outlived the command."""
    faults: list[str] = field(default_factory=list)

    def add(self, other: Tally) -> None:
        """Count what another one counted, too."""
        for name in ("instants", "resumed", "compared", "identical"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.lost_epochs, self.gone_s = max(self.lost_epochs, other.lost_epochs), max(self.gone_s, other.gone_s)
        self.faults += other.faults


class Campaign:
    """The runs of one case on so many ranks; it lives while they are killed."""

    def __init__(self, folder: Path, graph: Path, case: Case, ranks: int, rng: random.Random) -> None:
        self._folder, self._graph, self._case, self._ranks, self._rng = folder, graph, case, ranks, rng
        self._said = folder / "said"
        self._base, self._run = folder / "base", folder / "run"
        self._epochs = EPOCHS
        self.tally = Tally()

    def kill(self, instants: int) -> Tally:
        """Kill runs at so many instants, and let each go on to its end."""
        if self._case.is_scheduled:
            self._until_scheduled(min(2, instants // 2))
        whole = self._folder / "whole"
        lasts = self._ended(whole)
        while self.tally.instants < instants:
            self._one_run(instants, lasts)
            if self._case.repeats:
                self._compare(whole)
            shutil.rmtree(self._run)
        return self.tally

    def _command(self, run: Path, save_s: float) -> list[str]:
        ranks = ["--workers", str(self._ranks), "--quiet"]
        if self._case.follows:
            given = [str(self._graph), "--out", str(run), "--system", self._case.system, "--until", str(SNAPSHOTS)]
            return ["follow", *given, *ranks, "--poll", "0.02", *_sets((*SETS, *self._case.sets))]
        may_change = [f"train.epochs={self._epochs}", f"train.save_seconds={save_s}"]
        if is_run(run):
            return ["train", "--resume", str(run), *ranks, *_sets(may_change)]
        given = [str(self._graph), "--out", str(run), "--system", self._case.system]
        return ["train", *given, *ranks, *_sets((*SETS, *self._case.sets, *may_change))]

    def _begin(self, run: Path, *more: str, save_s: float = 1000.0) -> Forked:
        if not run.exists() and self._base.exists():
            shutil.copytree(self._base, run)
        self._said.unlink(missing_ok=True)
        return begin([*self._command(run, save_s), *more], self._said)

    def _code_of(self, job: Forked) -> int:
        """Wait for the end of a command; one that hangs is a fault, and ends this."""
        until = time.monotonic() + _LIMIT_S
        while (code := job.poll()) is None:
            if time.monotonic() > until:
                job.kill()
                raise AssertionError(f"{self._case.name} on {self._ranks} hangs: {self._said.read_text()}")
            time.sleep(0.005)
        return code

    def _ended(self, run: Path) -> float:
        """Train without any fault; return how long it took."""
        began = time.monotonic()
        code = self._code_of(self._begin(run))
        assert code == 0, self._said.read_text()
        all_end(_LIMIT_S)
        return time.monotonic() - began

    def _until_scheduled(self, kills: int) -> None:
        """Make the run that all others go on from: killed early, and stopped when it has its schedule."""
        self._epochs = 1_000_000
        base = self._base
        for _ in range(kills):
            job = self._begin(base, save_s=0.0)
            self._strike(job, self._rng.uniform(0.1, 1.0))
        job, until = self._begin(base, save_s=0.05), time.monotonic() + _LIMIT_S
        while not (is_run(base) and of_kind(base, "scheduled")):
            assert job.poll() is None, self._said.read_text()
            assert time.monotonic() < until, "no schedule was found"
            time.sleep(0.05)
        job.send_signal(signal.SIGTERM)
        assert self._code_of(job) == Interrupted.exit_code, self._said.read_text()
        all_end(_LIMIT_S)
        self.tally.resumed += self.tally.instants
        self._epochs = saved(base).state["progress"]["epoch"] + EPOCHS

    def _one_run(self, instants: int, lasts: float) -> None:
        """Kill one run at up to four instants; it ends in the end."""
        rng, before = self._rng, self.tally.instants
        wanted = rng.randint(1, min(4, instants - before))
        save_s = 0.0 if self._case.follows else rng.choice([0.0, 0.05])
        by_itself = self._ranks > 1 and rng.random() < 0.3
        if by_itself:
            job = self._begin(self._run, "--max-restarts", "100", save_s=save_s)
            for _ in range(wanted):
                self._strike(job, rng.uniform(0.0, lasts), command=False)
        else:
            for _ in range(wanted):
                job = self._begin(self._run, save_s=save_s)
                self._strike(job, rng.uniform(0.0, lasts))
                self._look(save_s)
            job = self._begin(self._run, save_s=save_s)
        code = self._code_of(job)
        self.tally.gone_s = max(self.tally.gone_s, all_end(_LIMIT_S))
        if code == 0:
            self.tally.resumed += self.tally.instants - before
        else:
            self.tally.faults.append(f"ended with {code}: {self._said.read_text()[-500:]}")
        self._struck_now = self.tally.instants - before

    def _strike(self, job: Forked, after_s: float, *, command: bool = True) -> None:
        """Kill one rank, all, or the command itself after a while, where it still runs by then."""
        time.sleep(after_s)
        if job.poll() is not None:
            return
        ranks = [one.pid for one in psutil.Process(job.pid).children()] if self._ranks > 1 else [job.pid]
        if not ranks and not command:
            return
        ways = ["one", "all", *["command"] * command] if ranks else ["command"]
        way = self._rng.choice(ways)
        victims = {"command": [job.pid], "all": ranks, "one": [self._rng.choice(ranks or [job.pid])]}[way]
        for pid in victims:
            if psutil.pid_exists(pid):
                os.kill(pid, signal.SIGKILL)
        self.tally.instants += 1
        if command:
            code = self._code_of(job)
            self.tally.gone_s = max(self.tally.gone_s, all_end(_LIMIT_S))
            told = self._said.read_text() if self._said.exists() else ""
            if code not in (0, 137, -signal.SIGKILL) or "Traceback" in told:
                self.tally.faults.append(f"killed ({way}), it ended with {code}: {told[-500:]}")

    def _look(self, save_s: float) -> None:
        """Check that what a killed run left can be read, and note how many epochs are lost."""
        run = self._run
        if not is_run(run):
            return
        read(run)
        names = checkpoint.names(run / "checkpoints")
        kept = [checkpoint.load(run / "checkpoints", name) for name in names]
        told = of_kind(run, "epoch_ended")
        done = kept[-1].state["progress"]["epoch"] if kept else 0
        lost = [one for one in told if one["epoch"] >= done]
        self.tally.lost_epochs = max(self.tally.lost_epochs, len(lost) if save_s == 0.0 else 0)
        if save_s == 0.0 and len(lost) > 1:
            self.tally.faults.append(f"{len(lost)} epochs were told and are not in a checkpoint")

    def _compare(self, whole: Path) -> None:
        tally = self.tally
        tally.compared += self._struck_now
        same = _told(self._run) == _told(whole) and same_bits(_learnt(self._run), _learnt(whole))
        tally.identical += self._struck_now if same else 0
        if not same:
            tally.faults.append("it ended otherwise than a run that nobody touched")


def _told(run: Path) -> list[dict[str, Any]]:
    """Return what happened in a run, but for what the clock says."""
    return [{name: value for name, value in one.items() if name != "step_seconds"} for one in history(run)]


def _learnt(run: Path) -> dict[str, Tensor]:
    """Return what was learnt. What ranks that train apart keep for themselves holds times, too."""
    return {name: tensor for name, tensor in saved(run).tensors.items() if not name.startswith("beside/")}


def _warm_up(run: Path, graph: Path, case: Case) -> None:
    """Import and compile in this process what its forks then have."""
    given = [str(graph), "--out", str(run), "--system", case.system, "--quiet", "--json"]
    with contextlib.redirect_stdout(io.StringIO()):
        command = ["follow", *given, "--until", str(SNAPSHOTS)] if case.follows else ["train", *given]
        assert cli.run([*command, *_sets((*SETS, *case.sets, *["train.epochs=1"] * (not case.follows)))]) == 0


def _sets(settings: Sequence[str]) -> list[str]:
    return [word for one in settings for word in ("--set", one)]


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", nargs="*", default=list(CASES), choices=list(CASES))
    parser.add_argument("--ranks", nargs="*", type=int, default=[1, 2, 3])
    parser.add_argument("--instants", type=int, default=4, help="of each case on each number of ranks")
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args(arguments)
    fork_ranks()
    rng, total, began = random.Random(chosen.seed), Tally(), time.monotonic()
    sys.stdout.write("| system | ranks | instants | resumed | compared | identical | epochs lost | gone after |\n")
    sys.stdout.write("|---|---|---|---|---|---|---|---|\n")
    with tempfile.TemporaryDirectory(prefix="crash-") as name:
        graph = drift(Path(name) / "graph", num_snapshots=SNAPSHOTS)
        for case in map(CASES.__getitem__, chosen.cases):
            _warm_up(Path(name) / f"{case.name} warm", graph, case)
            for ranks in chosen.ranks:
                folder = Path(name) / f"{case.name} {ranks}"
                folder.mkdir()
                tally = Campaign(folder, graph, case, ranks, rng).kill(chosen.instants)
                _row(case.name, str(ranks), tally, compares=case.repeats)
                total.add(tally)
    _row("all", ",".join(map(str, chosen.ranks)), total, compares=True)
    sys.stdout.write(f"\nseed {chosen.seed}, {time.monotonic() - began:.0f} s\n")
    for fault in total.faults:
        sys.stdout.write(f"FAULT: {fault}\n")
    return 1 if total.faults or total.identical < total.compared or total.resumed < total.instants else 0


def _row(name: str, ranks: str, tally: Tally, *, compares: bool) -> None:
    compared, identical = (str(tally.compared), str(tally.identical)) if compares else ("-", "-")
    cells = (
        name, ranks, tally.instants, tally.resumed, compared, identical, tally.lost_epochs, f"{tally.gone_s:.2f} s"
    )  # fmt: skip
    sys.stdout.write("| " + " | ".join(map(str, cells)) + " |\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
