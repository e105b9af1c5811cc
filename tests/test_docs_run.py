"""Every command of the README and the docs is run, as it stands there, on a small graph.

Commands of a page follow each other in one folder, in which there is what earlier pages have made. Training is
shortened to two epochs; nothing else is changed. What cannot be run here stands in `ELSEWHERE`, with where it is.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import timeloom
from tests.test_docs import PAGES, ROOT, blocks

SHORT = ["--set", "train.epochs=2", "--set", "train.threads=1"]
NAMED = {
    "MODEL": "gcn_gru", "RUN": "runs/of-results", "GRAPH": "mails", "KIND": "drift",
}  # fmt: skip
ELSEWHERE = {
    r"make ": "tests/test_examples.py runs the demo; the others are this suite, `make check` and `make docs`",
    r"export PATH": "only changes the shell",
    r"timeloom ingest \S+ .*--out graphs/": "tests/graph/test_datasets.py: many and large files",
    r"timeloom --install-completion": "tests/cli/test_help.py, with a home folder of its own",
    r"torchrun --nnodes 2": "tests/cli/test_two_machines.py, on two network namespaces",
    r"torchrun --nnodes \$NODES": "tests/test_examples.py, on one machine",
    r"srun |sbatch ": "the tests of examples/slurm.sh, with a stand-in for SLURM",
    r"kubectl ": "there is no cluster here; tests/test_examples.py reads the manifest",
    r"timeloom follow mails --task links": "waits ten minutes for snapshots; tests/cli/test_follow.py",
    r"timeloom follow mails --system distdy": "waits for the 200th snapshot; tests/cli/test_follow.py",
}
"""Commands that begin so are not run here, and where they are."""
NOT_SHORT = ("--resume", "--help")


def lines_of(page: Path) -> list[str]:
    """Return the commands of a page, one a line, without comments."""
    text = "\n".join(blocks(page, "sh")).replace("\\\n", " ")
    return [shlex.join(words) for line in text.splitlines() if (words := shlex.split(line, comments=True))]


def elsewhere(line: str) -> bool:
    return any(re.match(pattern, line.replace("'", "")) for pattern in ELSEWHERE)


def runnable(line: str) -> list[str]:
    """Return what is run for a command."""
    words = re.sub(r" --set train.epochs=\S+", "", line) if "--resume" not in line else line
    told = [NAMED.get(word, word) for word in shlex.split(words)]
    trains = "train" in told or "--systems" in told
    return told + (SHORT if trains and not set(NOT_SHORT) & set(told) else [])


def mails(path: Path, *, first_day: int, days: int) -> None:
    """Write mails among 400 people in a table."""
    rng = np.random.default_rng(first_day)
    at = np.sort(rng.integers(first_day * 86_400, (first_day + days) * 86_400, 400 * days)) + 1_767_225_600
    who = rng.integers(0, 400, len(at))
    to = (who + rng.integers(1, 6, len(at))) % 400
    rows = [f"{u},{v},{t}" for u, v, t in zip(who, to, at, strict=True)]
    path.write_text("\n".join(["source,target,time", *rows]) + "\n")


def environment() -> dict[str, str]:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}


def do(words: list[str], folder: Path) -> str:
    """Run a command; return what it printed."""
    if words[0] == "timeloom":
        words = [sys.executable, "-m", *words]
    done = subprocess.run(words, cwd=folder, env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{shlex.join(words)}\n{done.stdout[-2000:]}\n{done.stderr[-3000:]}"
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what pages take for granted: tables, graphs, runs, files of one's own."""
    folder = tmp_path_factory.mktemp("docs")
    mails(folder / "mails.csv", first_day=0, days=30)
    mails(folder / "mails-of-june.csv", first_day=40, days=5)
    text = (folder / "mails.csv").read_text().replace("source,target,time", "buyer,seller,at,amount", 1)
    head, *rows = text.splitlines()
    (folder / "trades.csv").write_text("\n".join([head, *(f"{row},{place % 9 + 1}" for place, row in enumerate(rows))]))
    firms = [f"{node},{node % 7},{node % 5},{'ab'[node % 2]}" for node in range(400)]
    (folder / "firms.csv").write_text("\n".join(["id,size,age,sector", *firms]) + "\n")
    for name in ("my_model.py", "pyg_layers.py"):
        shutil.copy(ROOT / "examples" / name, folder / name)
    (folder / "wide.toml").write_text(blocks(ROOT / "docs/settings.md", "toml")[0])
    do(["timeloom", "ingest", "mails.csv", "--every", "1d", "--life", "4", "--out", "mails"], folder)
    timeloom.synth(timeloom.Drift(num_nodes=60, num_edges=200, num_snapshots=14), folder / "drift")
    for name in ("mails", "degree", "first", "real", "flare", "real-0", "real-1", "flare-0"):
        task = "links" if name == "mails" else "degree"
        seed = ["--set", f"train.seed={name.partition('-')[2] or 0}"]
        do(["timeloom", "train", "mails", "--task", task, "--out", f"runs/{name}", *SHORT, *seed], folder)
    return folder


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("page", [page for page in PAGES if lines_of(page)], ids=lambda page: page.name)
def test_every_command_of_a_page_does_what_it_says(
    page: Path, prepared: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    folder = tmp_path / "folder"
    shutil.copytree(prepared, folder)
    if "../shared/data" in "\n".join(line for line in lines_of(page) if not elsewhere(line)):
        (tmp_path / "shared").mkdir()
        (tmp_path / "shared" / "data").symlink_to(request.getfixturevalue("shared_data"))
    for block in blocks(page, "python") if page.name == "start.md" else []:
        subprocess.run([sys.executable, "-c", block], cwd=folder, env=environment(), check=True)
    for line in lines_of(page):
        if elsewhere(line):
            continue
        words = runnable(line)
        out = words[words.index("--out") + 1] if "--out" in words else ""
        if out and (folder / out).is_dir():
            # The page makes it itself.
            shutil.rmtree(folder / out)
        told = do(words, folder)
        if out:
            assert (folder / out).exists(), f"{line}: {out} was to be made"
        assert told or "calibrate" in words or words[0] != "timeloom", f"{line}: nothing was told"


def test_every_command_is_run_here_or_said_to_be_run_elsewhere() -> None:
    every = [line for page in PAGES for line in lines_of(page)]
    unknown = [line for line in every if not elsewhere(line) and line.split()[0] not in ("timeloom", "torchrun")]
    assert unknown == [], "what is neither timeloom nor named in ELSEWHERE"
    unused = [pattern for pattern in ELSEWHERE if not any(re.match(pattern, line.replace("'", "")) for line in every)]
    assert unused == [], "what no page has any more"


def test_what_is_left_out_is_run_where_it_is_said() -> None:
    for where in ELSEWHERE.values():
        for path in re.findall(r"(?:tests|examples|docs)/[\w/.]+\w", where):
            assert (ROOT / path).exists(), path
