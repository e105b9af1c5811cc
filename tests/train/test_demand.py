"""What nobody reads is not computed: counted, not timed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from tests.train.test_rehearse import large
from tests.train.test_reuse import graph_of
from timeloom.graph.tasks import TaskSettings
from timeloom.nn.settings import ModelSettings
from timeloom.plan.batch.windows import WindowSettings
from timeloom.plan.types import Unit
from timeloom.train.localise import WholeView
from timeloom.train.session import Session, open_session
from timeloom.train.settings import ReuseSettings, RunSettings, TrainSettings
from timeloom.train.walk import Demand, first_carry

LAST = Unit(first=1, last=6, targets=(5,), fresh=True)


def session_of(name: str, layers: int = 1, num_nodes: int = 9) -> Session:
    settings = RunSettings(
        graph="", model=ModelSettings(name=name, hidden=4, heads=2, layers=layers), task=TaskSettings(name="degree"),
        window=WindowSettings(length=5), train=TrainSettings(precision="float64", device="cpu"),
        reuse=ReuseSettings(mode="full", cache="off"),
    )  # fmt: skip
    return open_session(settings, graph_of(seed=2, num_nodes=num_nodes))


def demand_of(session: Session, unit: Unit, reads: Any = None) -> Demand:
    return session.walker.demand(unit, reads)


def rows_made(session: Session, unit: Unit, reads: Any = None) -> list[set[int]]:
    """Return the nodes of each snapshot that have a row in the first layer's table; all where it has none."""
    times = tuple(range(unit.first, unit.last))
    encoded = session.walker.encoder.encode(times, demand_of(session, unit, reads).encoded[0])
    if encoded.place_TN is None:
        return [set(range(session.feed.graph.num_nodes))] * len(times)
    return [set(torch.nonzero(row >= 0)[:, 0].tolist()) for row in encoded.place_TN]


def heard_by(session: Session, t: int, nodes: set[int]) -> set[int]:
    """Return some nodes and those that they hear."""
    rows = session.feed.view(t).edges.into
    return nodes.union(*(rows.neighbours_E[rows.starts_M[v] : rows.starts_M[v + 1]].tolist() for v in nodes))


def test_an_evolving_weight_is_only_used_for_what_somebody_looks_at() -> None:
    # A node that is away shows the row of the snapshot in which it was last there; the state of none is kept.
    session = session_of("evolvegcn_o", num_nodes=30)
    made, pending = rows_made(session, LAST), np.ones(30, np.bool_)
    for t in range(5, 0, -1):
        alive = session.feed.snapshot(t).alive
        wanted = set(np.flatnonzero(pending & alive).tolist())
        whole = len(wanted) > 0.8 * alive.sum()
        assert made[t - 1] == (set(range(30)) if whole else heard_by(session, t, wanted)), t
        pending &= ~alive
    assert len(made[0]) < 10
    every = rows_made(session, Unit(first=1, last=6, targets=(1, 2, 3, 4, 5), fresh=True))
    assert [len(nodes) for nodes in every] == [30] * 5


def test_the_last_layer_leaves_out_earlier_snapshots_where_only_the_last_is_read() -> None:
    demand = demand_of(session_of("evolvegcn_o", layers=2, num_nodes=30), LAST)
    last = [0 if mask is None else int(mask.sum()) for mask in demand.encoded[1]]
    assert demand.encoded[1][-1] is None, "the last snapshot is read whole"
    assert sum(last[:-1]) < 30, "of four others together not even one snapshot's rows"
    # A recurrence reads every snapshot before a target.
    demand = demand_of(session_of("gcn_gru", layers=2), LAST)
    assert demand.encoded == [(None,) * 5] * 2


def test_rows_outside_the_neighbourhood_of_the_targets_are_not_in_the_table() -> None:
    session = session_of("gcn_gru", num_nodes=40)
    reads = np.zeros(40, np.bool_)
    reads[[5, 7]] = True
    unit = Unit(first=4, last=6, targets=(5,), fresh=True)
    wanted = demand_of(session, unit, lambda t: reads).encoded[0]
    made = rows_made(session, unit, lambda t: reads)
    for place, t in enumerate((4, 5)):
        mask = wanted[place]
        assert mask is not None
        assert set(np.flatnonzero(mask)) <= {5, 7}
        assert made[place] == heard_by(session, t, set(np.flatnonzero(mask).tolist()))
        assert 0 < len(made[place]) < 20


def test_a_snapshot_of_which_nobody_reads_a_row_is_not_gone_over(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    honest = WholeView.aggregate

    def counting(self: WholeView, *given: Any) -> Any:
        seen.append(self.t)
        return honest(self, *given)

    monkeypatch.setattr(WholeView, "aggregate", counting)
    # Its summary reads all nodes of every snapshot, but the sums of earlier ones are read by nobody where all stay.
    graph = large(50, 200)
    session = open_session(
        RunSettings(
            graph="", model=ModelSettings(name="evolvegcn_h", hidden=4), task=TaskSettings(name="degree"),
            window=WindowSettings(length=5), train=TrainSettings(device="cpu"), reuse=ReuseSettings(cache="off"),
        ),
        graph,
    )  # fmt: skip
    session.walker.walk(LAST, first_carry(session.model, session.feed))
    assert seen == [5]
