"""A table of row versions gives every snapshot the rows that it would have computed for itself (T8)."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from timeloom.kernels.versions import (
    Bools,
    Heard,
    RowTable,
    asked_for,
    changed_rows,
    link_rows,
    name_rows,
    spread,
    turned_round,
)


def drawn(seed: int, *, num_nodes: int, num_snapshots: int, turnover: float, weighted: bool) -> list[Tensor]:
    """Return [N, N] weights (target, source) of snapshots that differ in a few places."""
    rng = np.random.default_rng(seed)
    dense = (rng.random((num_nodes, num_nodes)) < 0.3) * (rng.integers(1, 4, (num_nodes, num_nodes)) if weighted else 1)
    found = []
    for t in range(num_snapshots):
        other = (rng.random(dense.shape) < 0.3) * (rng.integers(1, 4, dense.shape) if weighted else 1)
        dense = np.where(rng.random(dense.shape) < turnover, other, dense) * (t != num_snapshots // 2 or seed % 3 > 0)
        found.append(torch.from_numpy(dense.astype(np.float64)))
    return found


def heard_of(dense: Tensor, *, weighted: bool) -> Heard:
    target, source = np.nonzero(dense.numpy())
    starts = np.searchsorted(target, np.arange(len(dense) + 1)).astype(np.int32)
    return Heard(starts, source.astype(np.int32), dense.numpy()[target, source] if weighted else np.empty(0))


def sum_in_table(table: RowTable, heard: list[Heard], x: Tensor) -> Tensor:
    edges = link_rows(table, heard)
    weights = torch.from_numpy(edges.weights_Q) if len(edges.weights_Q) else torch.ones(len(edges.neighbours_Q))
    rows = np.repeat(np.arange(len(table)), np.diff(edges.starts_M))
    out = torch.zeros_like(x)
    return out.index_add(0, torch.from_numpy(rows), weights[:, None].double() * x[edges.neighbours_Q])


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("hops", [1, 2, 3])
@pytest.mark.parametrize("seed", range(12))
def test_rows_of_the_table_equal_those_of_each_snapshot(seed: int, hops: int, weighted: bool) -> None:
    rng = np.random.default_rng([seed, hops])
    dense = drawn(seed, num_nodes=9, num_snapshots=6, turnover=0.02 * (seed % 4), weighted=weighted)
    heard = [heard_of(one, weighted=weighted) for one in dense]
    wanted = np.ones((6, 9), np.bool_) if seed % 2 else rng.random((6, 9)) < 0.3
    fresh = np.ones((6, 9), np.bool_)
    nothing = np.zeros(9, np.bool_)
    for t in range(1, 6):
        changed = changed_rows([heard[t - 1]], [heard[t]], nothing, nothing)
        fresh[t] = spread([heard[t]], changed, hops - 1)
    asked = np.stack([asked_for([heard[t]], wanted[t], hops) for t in range(6)])
    table = name_rows(fresh, asked)
    x = torch.from_numpy(rng.normal(size=(9, 4)))
    whole = [x] * 6
    rows = x[table.node_R]
    for _ in range(hops):
        whole = [torch.relu(one @ old) + old for one, old in zip(dense, whole, strict=True)]
        rows = torch.relu(sum_in_table(table, heard, rows)) + rows
    for t in range(6):
        place = table.place_TN[t]
        assert (place[wanted[t]] >= 0).all()
        torch.testing.assert_close(rows[place[wanted[t]]], whole[t][wanted[t]], rtol=1e-12, atol=1e-12)
    assert len(table) <= np.count_nonzero(asked)
    if seed % 2 and seed % 4 == 0:
        assert len(table) == 9, "nothing changed"


def test_clean_rows_are_one_row_and_changed_ones_are_not() -> None:
    before, after = torch.zeros(4, 4), torch.zeros(4, 4)
    before[1, 0] = after[1, 0] = before[2, 1] = after[2, 1] = 1.0
    after[3, 2] = 1.0
    heard = [heard_of(one, weighted=False) for one in (before, after)]
    nothing = np.zeros(4, np.bool_)

    def places(sends: Bools, hops: int) -> list[bool]:
        changed = spread([heard[1]], changed_rows(heard[:1], heard[1:], sends, nothing), hops - 1)
        table = name_rows(np.stack([np.ones(4, np.bool_), changed]), np.full((2, 4), hops + 1, np.uint8))
        return [bool(one) for one in table.place_TN[0] == table.place_TN[1]]

    assert places(nothing, 1) == [True, True, True, False]
    sends_0 = np.array([True, False, False, False])
    assert places(sends_0, 1) == [False, False, True, False]
    assert places(sends_0, 2) == [False, False, False, False]


def test_weights_alone_make_another_version() -> None:
    one, two = torch.zeros(2, 2, dtype=torch.float64), torch.zeros(2, 2, dtype=torch.float64)
    one[1, 0], two[1, 0] = 1.0, 2.0
    nothing = np.zeros(2, np.bool_)
    plain, weighted = heard_of(one, weighted=False), heard_of(two, weighted=True)
    assert changed_rows([plain], [weighted], nothing, nothing).tolist() == [False, True]
    assert changed_rows([weighted], [plain], nothing, nothing).tolist() == [False, True]
    same = heard_of(one, weighted=True)
    assert changed_rows([plain], [same], nothing, nothing).tolist() == [False, False]


def test_what_a_node_itself_is_makes_another_version() -> None:
    heard = [heard_of(torch.zeros(3, 3), weighted=False)]
    own = np.array([False, True, False])
    assert changed_rows(heard, heard, np.zeros(3, np.bool_), own).tolist() == own.tolist()
    assert changed_rows(heard, heard, own, np.zeros(3, np.bool_)).tolist() == own.tolist()


def test_only_rows_that_are_asked_for_are_in_the_table() -> None:
    chain = torch.zeros(4, 4)
    chain[1, 0] = chain[2, 1] = chain[3, 2] = 1.0
    heard = heard_of(chain, weighted=False)
    wanted = np.array([False, False, False, True])
    assert asked_for([heard], wanted, 1).tolist() == [0, 0, 1, 2]
    assert asked_for([heard], wanted, 2).tolist() == [0, 1, 2, 3]
    assert asked_for([heard], np.zeros(4, np.bool_), 2).tolist() == [0, 0, 0, 0]
    table = name_rows(np.ones((1, 4), np.bool_), asked_for([heard], wanted, 1)[None])
    assert table.node_R.tolist() == [2, 3]
    assert table.place_TN.tolist() == [[-1, -1, 0, 1]]
    edges = link_rows(table, [heard])
    assert edges.starts_M.tolist() == [0, 0, 1], "a row that is only read hears nobody"


def test_a_row_is_read_where_it_was_asked_for_most_deeply() -> None:
    fresh = np.array([[True, True], [False, False]])
    table = name_rows(fresh, np.array([[1, 2], [2, 1]], np.uint8))
    assert table.place_TN.tolist() == [[0, 1], [0, 1]]
    assert table.at_R.tolist() == [1, 0]
    assert table.depth_R.tolist() == [2, 2]


@pytest.mark.parametrize("seed", range(5))
def test_edges_turned_round_are_the_same_edges(seed: int) -> None:
    rng = np.random.default_rng(seed)
    sizes = rng.integers(0, 4, 6)
    starts = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32)
    neighbours = rng.integers(0, 6, starts[-1]).astype(np.int32)
    back_starts, back, order = turned_round(starts, neighbours, 6)
    rows = np.repeat(np.arange(6), sizes)
    assert order.tolist() == np.argsort(neighbours, kind="stable").tolist()
    assert back.tolist() == rows[order].tolist()
    assert np.repeat(np.arange(6), np.diff(back_starts)).tolist() == neighbours[order].tolist()
