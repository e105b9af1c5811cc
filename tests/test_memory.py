"""An ingest that may take less memory than its input takes no more than it may: peak resident size, by the kernel."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PEAK = """
import sys
from pathlib import Path
from timeloom.graph.ingest.rules import Budget
from timeloom.graph.synth import PowerLaw, synth
law = PowerLaw(num_nodes=200_000, num_edges=6_000_000, num_snapshots=5, turnover=0.02, first_share=0.5)
synth(law, sys.argv[1], budget=Budget(512 << 20))
# Not getrusage: its peak survives exec, so that it may be that of the process which runs the tests.
print(int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]) >> 10)
"""


@pytest.mark.slow
def test_few_large_snapshots_stay_within_the_budget(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", PEAK, str(tmp_path / "g")], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 512, f"{done.stdout} MiB of 512"


@pytest.mark.slow
@pytest.mark.parametrize("life", ["1", "forever"])
def test_many_events_stay_within_the_budget(life: str) -> None:
    pytest.importorskip("polars")
    program = ROOT / "benchmarks/ingest_memory.py"
    command = [sys.executable, str(program), "--events", "20000000", "--memory", "800MiB", "--life", life]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    peak = float(done.stdout.rsplit("peak ", 1)[1].split(" GiB")[0])
    assert peak < 800 / 1024, done.stdout
