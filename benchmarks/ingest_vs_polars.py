"""How long an ingest takes, against polars reading the same file and sorting it by time.

Both are run in turn in one process (kernels compiled, file in the page cache), then as whole commands. polars stops
with a sorted table in memory; the ingest also maps ids, merges duplicates, finds what changes and writes a checked
store.

    .venv/bin/python benchmarks/ingest_vs_polars.py [--events 5000000] [--rounds 7]
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl

from timeloom.graph.ingest import Ingest, Windows, ingest

DAYS = 200


def write_events(path: Path, num_events: int) -> None:
    """Write events of a power-law graph over 200 days, in no order."""
    rng = np.random.default_rng(0)
    ends = (rng.zipf(1.3, (2, num_events)) % 100_000).astype(np.int64)
    seconds = rng.integers(1_500_000_000, 1_500_000_000 + DAYS * 86_400, num_events)
    pl.DataFrame({"source": ends[0], "target": ends[1], "time": seconds}).write_csv(path)


def timed(work: Callable[[], object]) -> float:
    """Return the seconds that some work takes."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def compare(name: str, ours: Callable[[], object], theirs: Callable[[], object], rounds: int) -> None:
    """Run both in turn and print the ratio of each round."""
    ratios, mine, other = [], [], []
    for _ in range(rounds):
        mine.append(timed(ours))
        other.append(timed(theirs))
        ratios.append(mine[-1] / other[-1])
    spread = f"{min(ratios):.2f} .. {max(ratios):.2f}"
    print(
        f"{name}: ratio {statistics.median(ratios):.2f} ({spread}) over {rounds} rounds; "
        f"timeloom {statistics.median(mine):.2f} s, polars {statistics.median(other):.2f} s"
    )


def main() -> None:
    """Compare in one process, then as commands."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=5_000_000)
    parser.add_argument("--rounds", type=int, default=7)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        table, out = Path(folder) / "events.csv", Path(folder) / "graph"
        write_events(table, chosen.events)

        def ours() -> None:
            shutil.rmtree(out, ignore_errors=True)
            ingest(table, out, Ingest(windows=Windows(kind="every", amount="1d")))

        def theirs() -> object:
            return pl.read_csv(table).sort("time")

        command = [sys.executable, "-m", "timeloom", "ingest", str(table), "--every", "1d", "--quiet"]
        script = f"import polars; polars.read_csv({str(table)!r}).sort('time')"

        def our_command() -> None:
            shutil.rmtree(out, ignore_errors=True)
            subprocess.run([*command, "--out", str(out)], check=True, capture_output=True)

        def their_command() -> None:
            subprocess.run([sys.executable, "-c", script], check=True)

        ours()
        compare("in one process", ours, theirs, chosen.rounds)
        our_command()
        compare("as commands", our_command, their_command, chosen.rounds)


if __name__ == "__main__":
    main()
