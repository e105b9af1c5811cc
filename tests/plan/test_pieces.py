"""How windows are dealt out in time, and in which order pieces go forward and back."""

from __future__ import annotations

import pytest

from timeloom.plan.batch.pieces import cut, dealt, forward_and_back, whole
from timeloom.plan.types import Unit


def window(first: int, last: int, keep: int = -1) -> Unit:
    return Unit(first=first, last=last, targets=(last - 1,), fresh=True, keep=keep)


@pytest.mark.parametrize(("size", "ranks", "sizes"), [
    (6, 2, [3, 3]), (7, 3, [3, 2, 2]), (8, 3, [3, 3, 2]), (2, 5, [1, 1]), (1, 1, [1]),
])  # fmt: skip
def test_pieces_follow_each_other_and_differ_by_one_at_most(size: int, ranks: int, sizes: list[int]) -> None:
    pieces = dealt(window(10, 10 + size), ranks)
    assert [len(piece.times) for piece in pieces] == sizes
    assert [t for piece in pieces for t in piece.times] == list(range(10, 10 + size))
    assert [piece.starts for piece in pieces] == [place == 0 for place in range(len(pieces))]
    assert [piece.ends for piece in pieces] == [place == len(pieces) - 1 for place in range(len(pieces))]


def test_one_piece_keeps_the_state() -> None:
    assert [piece.keeps for piece in dealt(window(0, 6, keep=3), 3)] == [False, True, False]
    assert not any(piece.keeps for piece in dealt(window(0, 6), 3))


def test_a_piece_is_cut_into_short_ones() -> None:
    assert [piece.times for piece in cut(whole(window(2, 7)), 2)] == [(2, 3), (4, 5), (6,)]


@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
@pytest.mark.parametrize("windows", [1, 2, 4, 7])
def test_pieces_can_go_in_their_order_and_few_are_held(ranks: int, windows: int) -> None:
    """Played through: a rank goes forward after the rank before it, and back after the rank behind it."""
    left = [forward_and_back(rank, ranks, windows) for rank in range(ranks)]
    done: set[tuple[int, str, int]] = set()
    held, most = [0] * ranks, [0] * ranks
    while any(left):
        moved = False
        for rank, order in enumerate(left):
            if not order:
                continue
            way, place = order[0]
            waits_for = (rank - 1 if way == "forward" else rank + 1, way, place)
            if 0 <= waits_for[0] < ranks and waits_for not in done:
                continue
            assert way == "forward" or (rank, "forward", place) in done
            done.add((rank, way, place))
            held[rank] += 1 if way == "forward" else -1
            most[rank] = max(most[rank], held[rank])
            order.pop(0)
            moved = True
        assert moved, "ranks wait for each other in a circle"
    assert len(done) == 2 * ranks * windows
    assert most == [min(ranks - rank, windows) for rank in range(ranks)]
