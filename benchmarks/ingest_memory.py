"""How much memory an ingest takes that was allowed less than its input: peak resident size, measured by the kernel.

.venv/bin/python benchmarks/ingest_memory.py [--events 100000000] [--memory 2GiB] [--life 1]
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import polars as pl

BLOCK = 5_000_000


def write_events(path: Path, num_events: int) -> None:
    """Write weighted events of 2 million nodes over 1,000 days, in no order, block by block."""
    with path.open("wb") as file:
        for block in range(num_events // BLOCK):
            rng = np.random.default_rng(block)
            ends = rng.zipf(1.2, (2, BLOCK)) % 2_000_000
            columns = {"source": ends[0], "target": ends[1], "time": rng.integers(1_400_000_000, 1_486_400_000, BLOCK)}
            columns["weight"] = rng.integers(1, 100, BLOCK)
            pl.DataFrame(columns).write_csv(file, include_header=block == 0)


def main() -> None:
    """Write the events, ingest them in a process of their own, and say what that took."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=100_000_000)
    parser.add_argument("--memory", default="2GiB")
    parser.add_argument("--life", default="1")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        table, out = Path(folder) / "events.csv", Path(folder) / "graph"
        write_events(table, chosen.events)
        print(f"{chosen.events:,} events in {table.stat().st_size / 2**30:.2f} GiB of text", flush=True)
        command = [sys.executable, "-m", "timeloom", "ingest", str(table), "--every", "1d", "--out", str(out)]
        began = time.monotonic()
        done = subprocess.run([*command, "--memory", chosen.memory, "--life", chosen.life], check=False)
        seconds = time.monotonic() - began
        peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 2**20
        rows = chosen.events / seconds / 1e6
        print(f"exit {done.returncode}; {seconds:.0f} s, {rows:.2f} M rows/s; peak {peak:.2f} GiB of {chosen.memory}")
        sys.exit(done.returncode)


if __name__ == "__main__":
    main()
