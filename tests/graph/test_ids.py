"""Every id gets one code, in order of appearance, in a time that does not depend on which ids they are."""

from __future__ import annotations

import time

import numpy as np
import pytest

from timeloom.graph.ingest.ids import Ids


@pytest.mark.parametrize("shift", [0, 20, 40, 45])
def test_ids_that_differ_in_some_bits_only_take_no_longer(shift: int) -> None:
    ids = np.random.default_rng(0).permutation(200_000) << shift
    Ids("node", 1 << 30).encode(ids[:10])
    nodes = Ids("node", 1 << 30)
    began = time.process_time()
    codes = nodes.encode(np.concatenate([ids, ids[::-1]]))
    assert time.process_time() - began < 1.0
    assert np.array_equal(codes[:200_000], np.arange(200_000))
    assert np.array_equal(codes[200_000:], np.arange(200_000)[::-1])
    ranked, ranks = nodes.ranked()
    assert np.array_equal(ranked, np.arange(200_000) << shift)
    assert np.array_equal(ranks, ids >> shift)
