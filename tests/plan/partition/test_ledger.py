"""Does the ledger hold what runs say, with the whole past summed up from nothing?"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from timeloom.errors import BadConfig
from timeloom.plan.partition.ledger import Ledger


def bytes_by_runs(
    servers: list[list[int]], full: list[list[int]], changed: list[list[int]], window: int, k: int
) -> int:
    """SPEC D9.1 word by word: for every maximal run that meets the window, a whole copy and the changes after it."""
    last = len(servers) - 1
    first = max(0, last - window + 1)
    total = 0
    for v in range(len(servers[-1])):
        on = [len(row) > v and row[v] == k for row in servers]
        for t in range(first, last + 1):
            if on[t]:
                total += changed[t][v] if t > first and on[t - 1] else full[t][v]
    return total


@given(seed=st.integers(0, 10**6), window=st.integers(1, 5), num_servers=st.integers(1, 3))
def test_held_bytes_are_those_of_all_runs_that_meet_the_window(seed: int, window: int, num_servers: int) -> None:
    """T29, the side of the partitioner: leaving, returning, death, rebirth, nodes appended, sizes that change."""
    rng = np.random.default_rng(seed)
    ledger = Ledger(servers=num_servers, window=window)
    servers: list[list[int]] = []
    full: list[list[int]] = []
    changed: list[list[int]] = []
    for t in range(9):
        num_nodes = 4 + t // 3
        before = servers[-1] if servers else []
        moves = rng.random(num_nodes) < 0.4
        server = [
            int(rng.integers(-1, num_servers)) if moves[v] or v >= len(before) else before[v] for v in range(num_nodes)
        ]
        servers.append(server)
        full.append(rng.integers(50, 90, num_nodes).tolist())
        changed.append(rng.integers(0, 40, num_nodes).tolist())
        ledger.append(np.array(server, np.int32), np.array(full[-1]), np.array(changed[-1]))
        held = [bytes_by_runs(servers, full, changed, window, k) for k in range(num_servers)]
        assert ledger.held_K.tolist() == held


def test_a_node_that_stays_longer_than_the_window_is_charged_its_whole_copy_still() -> None:
    """The constraint (3a) of DistDy charges w * c = 40 here; it takes C + (w - 1) c = 130 (SPEC section 9)."""
    ledger = Ledger(servers=1, window=4)
    for _ in range(9):
        ledger.append(np.zeros(1, np.int32), np.array([100]), np.array([10]))
    assert ledger.held_K.tolist() == [130]


def test_a_window_without_snapshots_is_refused() -> None:
    with pytest.raises(BadConfig, match="a window of 0 snapshots"):
        Ledger(servers=1, window=0)
