"""How a bare machine gets the project's own ``.venv``: ``python3 scripts/bootstrap.py [EXTRA ...]``.

Standard library only. It must start on an old Python 3 too, in order to find a newer one or to ask for it.
"""

import contextlib
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
MADE_IN = VENV / "made-in.txt"
NAMES = ("python3.11", "python3.12", "python3.13", "python3.14", "python3", "python")
NEW_ENOUGH = "import sys; sys.exit(sys.version_info < (3, 11))"
TORCH = os.environ.get("TORCH") or "torch==2.13.0"


def main() -> None:
    """Leave a ``.venv`` that holds timeloom, its extra ``test`` and the extras named on the command line."""
    extras = ["test", *sorted(set(sys.argv[1:]) - {"test"})]
    stamp = VENV / f"installed-{'-'.join(extras)}.txt"
    if is_done(stamp):
        return
    with lock():
        if not is_done(stamp):
            install(",".join(extras), stamp)


def is_done(stamp: Path) -> bool:
    """Whether this very ``pyproject.toml`` was installed here, with an interpreter that is still there."""
    return PYTHON.exists() and stamp.exists() and stamp.read_text() == stamp_text()


def stamp_text() -> str:
    """What a stamp holds. The folder is in it because a venv writes its folder into its own programs."""
    return f"{hashlib.sha256((ROOT / 'pyproject.toml').read_bytes()).hexdigest()} {TORCH} {ROOT}\n"


@contextlib.contextmanager
def lock() -> "Iterator[None]":
    """Keep other runs of this program out until this one has ended, however it ends."""
    with open(str(ROOT / ".venv.lock"), "w") as file:
        # A pip that we started holds the lock with us: it may outlive us if we are killed.
        os.set_inheritable(file.fileno(), True)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("another bootstrap is at work here, waiting for it")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def install(extras: str, stamp: Path) -> None:
    """Make ``.venv`` if there is none made here, install the project into it, then write the stamp."""
    if not (MADE_IN.exists() and MADE_IN.read_text() == str(ROOT) and probe(str(PYTHON), "import pip")):
        make_venv()
    for old in VENV.glob("installed-*.txt"):
        if old.read_text() != stamp_text():
            old.unlink()
    say(f"installing timeloom[{extras}] and what it needs into .venv (the first time takes a minute or two)")
    pip = [str(PYTHON), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    # First and pinned: a range among our dependencies must never be what chooses the build of torch.
    run([*pip, TORCH], f"pip could not install {TORCH}, its own words are above; name another with TORCH=...")
    run([*pip, "--editable", f"{ROOT}[{extras}]"], "pip could not install timeloom, its own words are above")
    partial = stamp.with_suffix(".partial")
    partial.write_text(stamp_text())
    os.replace(str(partial), str(stamp))
    say("ready")


def make_venv() -> None:
    """Replace ``.venv`` by an empty one."""
    base = find_python()
    say(f"making .venv with {base}")
    run([base, "-m", "venv", "--clear", str(VENV)], "could not make .venv, the reason is above")
    MADE_IN.write_text(str(ROOT))


def find_python() -> str:
    """Return an interpreter that is new enough: the one that runs this file if it is, else the first by name."""
    # Not sys.executable: that may be the very .venv which is about to be replaced.
    running = os.path.join(sys.base_prefix, "bin", f"python{sys.version_info[0]}.{sys.version_info[1]}")
    found = [path for path in (running, *map(shutil.which, NAMES)) if path and probe(path, NEW_ENOUGH)]
    if not found:
        fail(
            f"timeloom needs Python 3.11 or newer, but {sys.executable} is {sys.version.split()[0]} "
            f"and none of {', '.join(NAMES)} on the PATH is newer: install one (Debian: apt-get install python3-venv)"
        )
    able = [path for path in found if probe(path, "import ensurepip, venv")]
    if not able:
        fail(f"{found[0]} cannot make a virtual environment: install its venv module (apt-get install python3-venv)")
    return able[0]


def probe(python: str, statement: str) -> bool:
    """Whether this interpreter starts and runs the statement without an error."""
    command = [python, "-c", statement]
    try:
        return subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode == 0
    except OSError:
        return False


def run(command: "list[str]", complaint: str) -> None:
    """Run a command quietly; if it fails, show all it said and end with the complaint."""
    ended = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, close_fds=False)
    if ended.returncode != 0:
        sys.stderr.write(ended.stdout.decode(errors="replace"))
        fail(f"{complaint} (exit status {ended.returncode})")


def say(words: str) -> None:
    """Tell the person at the terminal what goes on; stdout belongs to the command that called this one."""
    print(f"bootstrap: {words}", file=sys.stderr, flush=True)


def fail(sentence: str) -> None:
    """End with one sentence and exit status 1."""
    raise SystemExit(f"bootstrap: {sentence}")


if __name__ == "__main__":
    main()
