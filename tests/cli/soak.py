"""Training, killing, resuming, appending and following for an hour: does anything grow that should not?

``python -m tests.cli.soak --minutes 60`` keeps three runs of two ranks each under way: one that nobody touches, one
whose ranks, and now and then whose command, are killed again and again, and one that follows a graph that grows.
Every few seconds it writes down the memory and the open files of all processes that live for long. In the end the runs
are stopped, gone on with, and read; what grew is judged by its slope (`verdict`).
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil

from tests.train.small_runs import drift, saved
from timeloom.errors import Interrupted
from timeloom.records import read
from timeloom.train import checkpoint

ROOT = Path(__file__).resolve().parents[2]
SETS = (
    "model.hidden=4", "train.threads=1", "train.device=cpu", "train.patience=0", "train.save_seconds=0.5",
    "train.epochs=1000000000", "train.validate_every=50", "train.spans=0",
)  # fmt: skip
LIVE = ("model.layers=1", "window.length=3", "distdy.fanouts=[3]", "live.warmup=0.3", "live.steps=4", "live.known=6")
WINDOWS = ("model.name=gcn_gru", "window.length=3")
KNOWN = 6
SLACK_BYTES, BYTES_PER_HOUR = 12 << 20, 32 << 20
"""What memory may seem to grow by in any time, and may grow by in an hour: arenas fill, records are remembered."""
_WAIT_S, _SAMPLE_S = 90.0, 2.0


@dataclass(frozen=True, slots=True)
class Sample:
    """What a process had at some time."""

    seconds: float
    memory_bytes: int
    handles: int


@dataclass(frozen=True, slots=True)
class Growth:
    """How fast something grew, by the middle of the slopes of all pairs of samples: single ones do not matter."""

    bytes_per_hour: float
    handles_per_hour: float
    hours: float
    samples: int

    @property
    def is_flat(self) -> bool:
        """Whether it grew by no more than may be."""
        allowed = SLACK_BYTES + BYTES_PER_HOUR * self.hours
        return self.bytes_per_hour * self.hours <= allowed and self.handles_per_hour * self.hours < 1.0


def growth_of(samples: Sequence[Sample]) -> Growth:
    """Return how fast a process grew, its first third left out: caches fill."""
    late = samples[len(samples) // 3 :]
    t, *values = np.array([(one.seconds, one.memory_bytes, one.handles) for one in late], np.float64).T
    first, second = np.triu_indices(len(t), 1)
    hours = (t[second] - t[first]) / 3600
    slopes = [float(np.median((y[second] - y[first]) / hours)) if len(hours) else 0.0 for y in values]
    return Growth(slopes[0], slopes[1], float(t[-1] - t[0]) / 3600, len(late))


def verdict(growths: Mapping[str, Growth]) -> list[str]:
    """Return a line for each process that grew."""
    return [f"{name} grew: {growth}" for name, growth in growths.items() if not growth.is_flat]


class Run:
    """A command of two ranks that goes on for as long as the soak does."""

    def __init__(self, name: str, out: Path, first: Sequence[str], later: Sequence[str]) -> None:
        self.name, self.out = name, out
        self._first, self._later = [*first, "--quiet"], [*later, "--quiet"]
        self._said = out.with_suffix(".said")
        self.job: subprocess.Popen[bytes]
        self.start()

    def start(self, *more: str) -> None:
        """Begin, or go on."""
        given = self._later if (self.out / "records.jsonl").exists() else self._first
        environ = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
        with self._said.open("ab") as said:
            command = [sys.executable, "-m", "timeloom", *given, "--workers", "2", *more]
            self.job = subprocess.Popen(command, env=environ, stdout=said, stderr=said)

    def ranks(self) -> list[psutil.Process]:
        """Return its ranks, the first one first."""
        found = psutil.Process(self.job.pid).children()
        return sorted((one for one in found if "RANK" in one.environ()), key=lambda one: one.environ()["RANK"])

    def wait_for(self, step: int, meanwhile: Callable[[], None]) -> None:
        """Wait for a checkpoint after this step; do something meanwhile."""
        until = time.monotonic() + _WAIT_S
        while self.step() <= step:
            assert self.job.poll() is None, self._said.read_text()[-2000:]
            assert time.monotonic() < until, f"{self.name} does not go on: {self._said.read_text()[-2000:]}"
            meanwhile()
            time.sleep(0.1)

    def step(self) -> int:
        """Return the step of the newest checkpoint; -1 where there is none."""
        names = checkpoint.names(self.out / "checkpoints")
        return int(names[-1].rpartition("-")[2]) if names else -1

    def stop(self) -> None:
        """Stop it as a user would, and see that it was saved."""
        self.job.send_signal(signal.SIGTERM)
        code = self.job.wait(_WAIT_S)
        assert code == Interrupted.exit_code, f"{self.name} ended with {code}: {self._said.read_text()[-2000:]}"

    def end(self, *more: str) -> None:
        """Go on to the end, and read all that was written."""
        self.start(*more)
        code = self.job.wait(_WAIT_S)
        assert code == 0, f"{self.name} ended with {code}: {self._said.read_text()[-2000:]}"
        read(self.out)


class Soak:
    """It lives for as long as the three runs do."""

    def __init__(self, folder: Path, seed: int) -> None:
        self._folder, self._rng = folder, random.Random(seed)
        self._began, self._sampled = time.monotonic(), 0.0
        self.samples: dict[str, list[Sample]] = {}
        self.kills = self.commands_killed = self.appended = 0
        self._known = KNOWN
        self._mails = folder / "mails"
        _timeloom("ingest", self._table(0, KNOWN), "--every", "10", "--out", self._mails, "--quiet")
        given = [str(drift(folder / "graph")), "--system", "psg", *_sets((*SETS, *WINDOWS))]
        restarts = ["--max-restarts", "1000000"]
        self.calm, self.killed = (
            Run(name, folder / name, ["train", *given, "--out", str(folder / name), *restarts],
                ["train", "--resume", str(folder / name), *restarts])
            for name in ("calm", "killed")
        )  # fmt: skip
        follow = ["follow", str(self._mails), "--out", str(folder / "follower"), "--system", "distdy", "--poll", "0.1"]
        follow += _sets((*SETS, *LIVE))
        self.follower = Run("follower", folder / "follower", follow, follow)
        self.runs = (self.calm, self.killed, self.follower)

    def go_on(self, seconds: float) -> None:
        """Kill and append until the time is over."""
        for run in self.runs:
            run.wait_for(-1, meanwhile=lambda: None)
        while time.monotonic() - self._began < seconds:
            self._append()
            if self._rng.random() < 0.2:
                self._kill_command()
            else:
                self._kill_rank()

    def _append(self) -> None:
        before = self.follower.step()
        table = self._table(self._known, self._known + 1)
        _timeloom("append", self._mails, table, "--quiet")
        table.unlink()
        self._known, self.appended = self._known + 1, self.appended + 1
        self.follower.wait_for(before, self._sample)

    def _kill_rank(self) -> None:
        ranks = self.killed.ranks()
        if ranks:
            self._rng.choice(ranks).kill()
            self.kills += 1
        self.killed.wait_for(self.killed.step(), self._sample)

    def _kill_command(self) -> None:
        ranks = self.killed.ranks()
        self.killed.job.kill()
        self.killed.job.wait()
        _, alive = psutil.wait_procs(ranks, timeout=10)
        assert not alive, "ranks outlived the command that started them"
        self.commands_killed += 1
        self.killed.start()
        self.killed.wait_for(self.killed.step(), self._sample)

    def _sample(self) -> None:
        """Write down what there is, if that was not done a moment ago."""
        if time.monotonic() - self._sampled < _SAMPLE_S:
            return
        self._sampled = time.monotonic()
        for run in self.runs:
            members = [psutil.Process(run.job.pid), *(run.ranks() if run is not self.killed else [])]
            for place, one in enumerate(members):
                who = f"{run.name}, {f'rank {place - 1}' if place else f'command {one.pid}'}"
                memory, seconds = one.memory_full_info().uss, time.monotonic() - self._began
                self.samples.setdefault(who, []).append(Sample(seconds, memory, one.num_fds()))

    def finish(self) -> None:
        """Stop the runs, let them go on to their ends, and see that nothing is left of what was made in between."""
        for run in self.runs:
            run.stop()
        for run in (self.calm, self.killed):
            run.end(*_sets([f"train.epochs={saved(run.out).state['progress']['epoch'] + 2}"]))
        self.follower.end("--until", str(self._known))
        for run in self.runs:
            left = sorted(path.name for path in (run.out / "checkpoints").iterdir())
            assert left == checkpoint.names(run.out / "checkpoints"), left
            assert len(left) <= 2, left
        assert not psutil.Process().children(recursive=True), "a process is left"

    def end(self) -> None:
        """End what still runs."""
        for run in self.runs:
            run.job.kill()
            run.job.wait()

    def _table(self, first: int, last: int) -> Path:
        path, rng = self._folder / f"{first}.csv", np.random.default_rng(first)
        rows = [f"{u},{v},{t * 10 + 1}" for t in range(first, last) for u, v in rng.integers(0, 30, (15, 2)) if u != v]
        path.write_text("\n".join(["source,target,time", *rows]) + "\n")
        return path


def _timeloom(*arguments: object) -> None:
    environ = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    subprocess.run([sys.executable, "-m", "timeloom", *map(str, arguments)], env=environ, check=True)


def _sets(settings: Sequence[str]) -> list[str]:
    return [word for one in settings for word in ("--set", one)]


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="soak-") as name:
        soak = Soak(Path(name), chosen.seed)
        try:
            soak.go_on(60 * chosen.minutes)
            soak.finish()
        finally:
            soak.end()
    # A command that was killed early lived too short to tell.
    growths = {who: growth_of(samples) for who, samples in soak.samples.items() if len(samples) >= 5}
    told = [f"{chosen.minutes:g} minutes: {soak.kills} ranks and {soak.commands_killed} commands killed, "
            f"{soak.appended} snapshots appended", "",
            "| process | samples | memory, MiB an hour | files, an hour |", "|---|---|---|---|"]  # fmt: skip
    for who, growth in growths.items():
        told.append(
            f"| {who} | {growth.samples} | {growth.bytes_per_hour / 2**20:.1f} | {growth.handles_per_hour:.1f} |"
        )
    grew = verdict(growths)
    sys.stdout.write("\n".join([*told, *grew]) + "\n")
    return 1 if grew or len(growths) < 5 else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
