"""Rows of neighbours hold every edge once, at its place."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from timeloom.errors import TooLarge
from timeloom.graph.csr import incoming, outgoing
from timeloom.graph.keys import KeyLayout, layout_for


@given(st.sets(st.tuples(st.integers(0, 9), st.integers(0, 9), st.integers(0, 3))), st.booleans())
def test_rows_hold_every_edge_once(edges: set[tuple[int, int, int]], typed: bool) -> None:
    layout = KeyLayout(node_bits=20, type_bits=8 if typed else 0)
    edges = edges if typed else {(u, v, 0) for u, v, _ in edges}
    columns = [np.array([edge[place] for edge in sorted(edges)], np.int64) for place in range(3)]
    keys = np.sort(layout.pack(columns[0], columns[1], columns[2]))
    rows = incoming(keys, layout, 10)
    assert rows.starts[0] == 0
    assert rows.starts[-1] == len(edges)
    for v in range(10):
        found = rows.neighbours[rows.starts[v] : rows.starts[v + 1]].tolist()
        assert found == sorted(u for u, target, _ in edges if target == v)
    back = outgoing(keys, layout, 10)
    assert back.edges is not None
    for u in range(10):
        cut = slice(back.starts[u], back.starts[u + 1])
        assert back.neighbours[cut].tolist() == sorted(v for source, v, _ in edges if source == u)
        assert (layout.sources(keys[back.edges[cut]]) == u).all()
        assert layout.targets(keys[back.edges[cut]]).tolist() == back.neighbours[cut].tolist()


def test_keys_have_room_for_types_and_refuse_too_many_nodes() -> None:
    assert layout_for(10, 0) == KeyLayout(31, 0)
    assert layout_for(2**26, 256).most_types >= 512
    with pytest.raises(TooLarge, match="do not fit a 64-bit edge key"):
        layout_for(2**31 + 1, 0)
