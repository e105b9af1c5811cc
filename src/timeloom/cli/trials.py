"""Runs of several systems on one graph, alike in everything else: started, gone on with, or found finished."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from cyclopts import Parameter

from timeloom.errors import BadConfig, Interrupted, TimeloomError
from timeloom.records import Ended, is_run, read

_ALONE = "none"


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class TrialFlags:
    """What is to be run on a graph, before it is compared."""

    systems: str | None = None
    """Systems of `timeloom systems`, by commas; `none` is one process without a system."""
    model: str | None = None
    """A model of `timeloom models`."""
    task: str | None = None
    """What is predicted."""
    workers: int = 1
    """How many ranks each system has."""
    seeds: str = "0"
    """Seeds, by commas: one run each."""
    out: Path | None = None
    """The folder for the runs; those that are there already are gone on with, or taken as they are."""


def trials(graph: Path, flags: TrialFlags, sets: list[str]) -> Iterator[Path]:
    """Yield the runs, one after the other, each as soon as it has ended."""
    if flags.systems is None or flags.out is None:
        raise BadConfig(
            f"to compare systems on {graph} give --systems, such as real,psg, and --out, a folder for their runs"
        )
    systems, seeds = _listed(flags.systems, "--systems"), _listed(flags.seeds, "--seeds")
    if bad := [seed for seed in seeds if not seed.isdigit()]:
        raise BadConfig(f"--seeds {flags.seeds}: {bad[0]!r} is no seed; give whole numbers by commas, such as 0,1,2")
    for seed in seeds:
        for system in systems:
            out = flags.out / f"{system}-{seed}"
            if not (is_run(out) and _has_ended(out)):
                _run(_command(graph, flags, sets, system, seed, out), out)
            yield out


def _listed(text: str, flag: str) -> list[str]:
    found = [part.strip() for part in text.split(",") if part.strip()]
    if not found or len(set(found)) != len(found):
        raise BadConfig(f"{flag} {text!r} names nothing, or something twice: give names by commas")
    return found


def _command(graph: Path, flags: TrialFlags, sets: list[str], system: str, seed: str, out: Path) -> list[str]:
    workers = [] if system == _ALONE or flags.workers == 1 else ["--workers", str(flags.workers)]
    if is_run(out):
        return ["train", "--resume", str(out), "--quiet", *workers]
    chosen = {"--model": flags.model, "--task": flags.task, "--system": None if system == _ALONE else system}
    named = [part for name, value in chosen.items() if value is not None for part in (name, value)]
    changed = [part for one in [*sets, f"train.seed={seed}"] for part in ("--set", one)]
    return ["train", str(graph), "--out", str(out), "--quiet", *workers, *named, *changed]


def _run(arguments: list[str], out: Path) -> None:
    """Train in a process of its own, so that its memory is its own."""
    sys.stderr.write(f"{out.name}: training\n")
    code = subprocess.run(
        [sys.executable, "-m", "timeloom", *arguments], stdout=subprocess.DEVNULL, check=False
    ).returncode  # fmt: skip
    if code == Interrupted.exit_code:
        raise Interrupted(f"stopped in {out}, and saved: give the same command again to go on")
    if code:
        error = TimeloomError(f"{out} ended with exit code {code}; the others are kept: mend it and try again")
        error.exit_code = code if code > 0 else 1
        raise error


def _has_ended(run: Path) -> bool:
    return any(isinstance(record, Ended) for record in read(run)[-1:])
