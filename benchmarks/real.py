"""What each stage of REAL and DyGNeX is worth on this machine: real ranks, one thread each, against plain order (PSG).

Every variant is the command `timeloom train --workers N` with other settings; a round runs each of them once, in turn.
Of a run the epochs count that go by its final schedule. Told are: the speed over PSG of the same round, the imbalance
(the busiest rank over the idlest one, mean over steps), what the schedule was predicted to take against what it took,
and the peak memory of a rank.

    .venv/bin/python benchmarks/real.py [--rounds 2] [--workers 2] [--only real|dygnex] [--models gcn_gru,...]
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

from timeloom.cli import run as command
from timeloom.records import EpochEnded, Evaluated, Record, Scheduled, Spans, Traffic, read

ROOT = Path(__file__).resolve().parents[1]
SHARED = ROOT.parent / "shared" / "data"
NO_REUSE = ("--set", "reuse.mode=full", "--set", "reuse.cache=off", "--set", "reuse.between_windows=false")
TYPE_I = ("--set", "reuse.between_windows=false")
VARIANTS: dict[str, dict[str, tuple[str, ...]]] = {
    "real": {
        "PSG": ("--system", "psg", *NO_REUSE),
        "+ type I": ("--system", "psg", *TYPE_I),
        "+ type II": ("--system", "psg", "--set", "window.groups=2"),
        "+ greedy": ("--system", "real_g"),
        "+ ILP": ("--system", "real_l"),
        "+ best": ("--system", "real"),
    },
    "dygnex": {
        "PSG": ("--system", "psg", *NO_REUSE),
        "+ deltas": ("--system", "psg", *TYPE_I),
        "+ greedy": ("--system", "dygnex_g"),
        "+ ILP": ("--system", "dygnex_l"),
    },
}
MODELS = ("gcn_gru", "wdgcn", "evolvegcn_o", "gat_lstm")
PLAIN, PROFILED, EPOCHS = 1, 1, 30


@dataclass(frozen=True)
class Told:
    """What a run came to."""

    epoch_s: float
    imbalance: float
    predicted_s: float
    peak_bytes: int
    loss: float


@dataclass(frozen=True)
class Data:
    """A graph, and the windows that it is cut into."""

    path: Path
    settings: tuple[str, ...]


def graphs(names: list[str]) -> dict[str, Data]:
    """Return graphs, made once: slowly changing, growing, and a part of its edges replaced in every snapshot."""
    folder = ROOT / "runs" / "graphs"
    made = {
        "as733": Data(folder / "as733-1997", ("window.length=8",)),
        "ubuntu": Data(folder / "ubuntu-whole", ("window.length=2", "split.train=0.8", "split.val=0.1")),
        "deleted": Data(folder / "deleted-small", ("window.length=8",)),
    }
    static, deleted = str(folder / "static-small"), str(folder / "deleted-small")
    steps = {
        "as733": [
            ["ingest", "snap:as-733", "--from", str(SHARED / "large"), "--stop", "1997-12-15",
             "--out", str(made["as733"].path)],
        ],
        "ubuntu": [["ingest", "local:ubuntu", "--from", str(SHARED / "labelled"), "--out", str(made["ubuntu"].path)]],
        "deleted": [
            ["synth", "powerlaw", "--num-nodes", "5000", "--num-edges", "40000", "--out", static, "--overwrite"],
            ["synth", "delete", static, "--out", deleted, "--num-snapshots", "36", "--turnover", "0.02",
             "--first-share", "0.5", "--last-share", "0.9"],
        ],
    }  # fmt: skip
    for name in names:
        for arguments in [] if made[name].path.exists() else steps[name]:
            if command([*arguments, "--quiet"]) != 0:
                raise SystemExit(f"{name} could not be made")
    return {name: made[name] for name in names}


def run(data: Data, model: str, options: tuple[str, ...], workers: int, out: Path) -> Told:
    """Train with one variant; return what its scheduled epochs came to."""
    settings = {
        "train.epochs": EPOCHS, "train.patience": 0, "train.validate_every": EPOCHS, "train.spans": 100_000,
        "train.threads": 1, "train.save_seconds": 10_000, "model.hidden": 32,
        "schedule.plain_epochs": PLAIN, "schedule.profile_epochs": PROFILED,
    }  # fmt: skip
    changed = [*(f"{name}={value}" for name, value in settings.items()), *data.settings]
    sets = [part for one in changed for part in ("--set", one)]
    arguments = ["train", str(data.path), "--model", model, "--workers", str(workers), "--quiet", "--overwrite"]
    done = subprocess.run(
        [sys.executable, "-m", "timeloom", *arguments, *sets, *options, "--out", str(out)],
        env=os.environ | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        raise SystemExit(f"{' '.join(options)} on {data.path.name}: {done.stderr}")
    return told_of(read(out))


def told_of(records: list[Record]) -> Told:
    """Return what the epochs came to that went by the final schedule."""
    schedules = [one for one in records if isinstance(one, Scheduled)]
    first = schedules[-1].epoch if schedules else PLAIN + PROFILED + 1
    epochs = [one.seconds for one in records if isinstance(one, EpochEnded) and one.epoch >= first]
    busy: dict[int, dict[int, float]] = defaultdict(dict)
    agreeing: list[float] = []
    for one in records:
        if isinstance(one, Spans) and one.epoch >= first:
            busy[one.step][one.rank] = sum(seconds for name, _, seconds in one.parts if name != "communicate")
            agreeing.append(sum(seconds for name, _, seconds in one.parts if name == "communicate"))
    full = [ranks for ranks in busy.values() if min(ranks.values()) > 0]
    predicted: dict[int, dict[int, float]] = defaultdict(lambda: defaultdict(float))
    for place, rank, _, _, seconds in schedules[-1].units if schedules else ():
        predicted[place][rank] += seconds
    least = min(agreeing, default=0.0)
    return Told(
        epoch_s=statistics.median(epochs) if epochs else float("nan"),
        imbalance=statistics.mean([max(ranks.values()) / min(ranks.values()) for ranks in full] or [float("nan")]),
        predicted_s=sum(max(ranks.values()) + least for ranks in predicted.values()) if predicted else float("nan"),
        peak_bytes=max(one.peak_bytes for one in records if isinstance(one, Traffic)),
        loss=next(one.scores["mse"] for one in records if isinstance(one, Evaluated) and one.split == "test"),
    )  # fmt: skip


def spread(values: list[float]) -> str:
    """Return the median and the range."""
    return f"{statistics.median(values):.2f} ({min(values):.2f} .. {max(values):.2f})"


def main(default: str = "real,dygnex") -> None:
    """Print a table a graph and model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--only", default=default)
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--graphs", default="as733,ubuntu,deleted")
    chosen = parser.parse_args()
    made = graphs(chosen.graphs.split(","))
    with tempfile.TemporaryDirectory() as name:
        for system in chosen.only.split(","):
            print(f"\n### {system}, {chosen.workers} ranks of one thread\n")
            print("| graph | model | variant | over PSG | s an epoch | imbalance | predicted / taken | peak MiB |")
            print("|---|---|---|---|---|---|---|---|")
            for data in made.values():
                for model in chosen.models.split(","):
                    rows(system, data, model, chosen.rounds, chosen.workers, Path(name))


def rows(system: str, data: Data, model: str, rounds: int, workers: int, folder: Path) -> None:
    """Print the rows of one graph and model."""
    told: dict[str, list[Told]] = defaultdict(list)
    for _ in range(rounds):
        for variant, options in VARIANTS[system].items():
            told[variant].append(run(data, model, options, workers, folder / "run"))
    for variant, runs in told.items():
        over = [plain.epoch_s / one.epoch_s for plain, one in zip(told["PSG"], runs, strict=True)]
        right = [one.predicted_s / one.epoch_s for one in runs]
        cells = (
            data.path.name, model, variant, spread(over), f"{statistics.median(one.epoch_s for one in runs):.3f}",
            spread([one.imbalance for one in runs]), spread(right) if right[0] == right[0] else "-",
            f"{max(one.peak_bytes for one in runs) / 2**20:.0f}",
        )  # fmt: skip
        print("| " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
