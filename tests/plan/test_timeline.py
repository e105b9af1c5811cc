"""How long training waited for batches, and how much of building them was hidden behind it."""

from __future__ import annotations

import numpy as np
import pytest

from timeloom.plan.batch.timeline import Built, Timeline


def built(builder: int, began_s: float, ended_s: float) -> Built:
    return Built(builder, 0, 0, began_s, ended_s)


def test_by_hand_what_is_built_while_training_waits_is_not_hidden() -> None:
    line = Timeline([built(0, 1.0, 4.0), built(1, 3.0, 5.0), built(-1, 2.0, 3.5)], [(0.0, 0.5), (2.0, 3.5), (4.5, 9.0)])
    assert len(line.beside) == 2, "what training built itself is no work beside it"
    assert line.waited_s == 6.5
    assert line.beside_s == 5.0
    assert line.hidden_s == pytest.approx(5.0 - 1.5 - (0.5 + 0.5))


def test_without_waits_all_is_hidden_and_without_builders_nothing_is() -> None:
    assert Timeline([built(0, 1.0, 4.0)]).hidden_s == 3.0
    assert Timeline([], [(0.0, 1.0)]).hidden_s == 0.0
    assert Timeline().beside_s == 0.0


@pytest.mark.parametrize("seed", range(20))
def test_what_is_hidden_is_what_a_look_at_every_moment_finds(seed: int) -> None:
    rng = np.random.default_rng(seed)
    edges = np.sort(rng.choice(1000, 12, replace=False))
    waits = [(int(a), int(b)) for a, b in edges.reshape(-1, 2)]
    starts = rng.integers(0, 900, 5)
    log = [built(0, float(a), float(a + rng.integers(0, 100))) for a in starts]
    moments = np.arange(1000) + 0.5
    waiting = np.zeros(1000, np.bool_)
    for a, b in waits:
        waiting |= (moments > a) & (moments < b)
    hidden = sum(int((~waiting & (moments > one.began_s) & (moments < one.ended_s)).sum()) for one in log)
    assert Timeline(log, waits).hidden_s == pytest.approx(hidden)
