"""What every test may count on: repeatable examples, and the shared data sets where this machine has them."""

import os
import signal
from pathlib import Path

import pytest
from hypothesis import settings

# Two test processes with two threads each would fight for two cores; read by torch when it is first imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# A shell that starts the tests beside itself has them ignore Ctrl-C, and what they start ignores it, too.
signal.signal(signal.SIGINT, signal.default_int_handler)

settings.register_profile("timeloom", derandomize=True, deadline=None, print_blob=True)
settings.load_profile("timeloom")


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real data sets beside the repository; a test that asks for it is skipped without it."""
    folder = Path(__file__).resolve().parents[2] / "shared" / "data"
    if not folder.is_dir():
        pytest.skip(f"no data sets in {folder}")
    return folder
