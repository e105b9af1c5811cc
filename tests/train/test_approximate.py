"""Approximate sums are what they are called, in every way to a window's rows, and tell how far off they are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.graph.tiny import tiny
from tests.kernels.chains import power_law_chain
from tests.train.small_runs import GIVEN, drift, of_kind, small
from tests.train.test_reuse import CLOSE, by_hand, gradients, same
from timeloom.errors import BadConfig
from timeloom.graph.dynamic import open_graph
from timeloom.graph.ingest import Ingest, ingest
from timeloom.graph.ingest.attributes import AttributeOptions
from timeloom.graph.tasks import GraphLike, TaskSettings
from timeloom.kernels.drift import LAZY_EPS, lazy_source, static_source, sym_approx_chain, sym_approx_step
from timeloom.kernels.norms import Norm
from timeloom.nn.settings import ModelSettings
from timeloom.plan.batch.windows import WindowSettings
from timeloom.plan.types import Unit
from timeloom.train.deviate import deviations, exactness_of
from timeloom.train.runs import train
from timeloom.train.session import Session, open_session
from timeloom.train.settings import ReuseSettings, RunSettings, TrainSettings
from timeloom.train.walk import first_carry

SYM = Norm("sym")
LAGGING = ("sym-lazy", "sym-static-src")
UNIT = Unit(first=1, last=6, targets=(2, 5), fresh=True)


def session_of(name: str = "gcn_gru", graph: GraphLike | None = None, norm: Any = "sym", **reuse: Any) -> Session:
    settings = RunSettings(
        graph="", model=ModelSettings(name=name, hidden=4, heads=2, norm=norm), task=TaskSettings(name="degree"),
        window=WindowSettings(length=4), train=TrainSettings(precision="float64", device="cpu"),
        reuse=ReuseSettings(**{"cache": "off", **reuse}),
    )  # fmt: skip
    given = tiny(3, num_nodes=9, num_snapshots=7, weighted=True, features="fixed") if graph is None else graph
    return open_session(settings, given)


def scales_in_turn(session: Session, norm: Norm, approximate: str, eps: float) -> list[Tensor]:
    made: list[Tensor] = []
    for t in range(len(session.feed.graph)):
        exact = session.feed.whole_view(t).exact_scales(norm).source_N
        assert exact is not None
        if made:
            exact = lazy_source(made[-1], exact, eps) if approximate == "sym-lazy" else static_source(made[-1], exact)
        made.append(exact)
    return made


@pytest.mark.parametrize("approximate", LAGGING)
@pytest.mark.parametrize("norm", ["sym", "both"])
def test_scales_lag_from_the_first_snapshot_on_in_whatever_order_they_are_asked_for(
    approximate: str, norm: Any
) -> None:
    graph = tiny(1, num_nodes=8, num_snapshots=40, weighted=False, features="fixed")
    wanted = scales_in_turn(session_of(graph=graph, norm=norm), Norm(norm), approximate, 0.3)
    for order in (range(40), range(39, -1, -1), (17, 3, 39, 16, 15, 0, 33, 32, 31)):
        session = session_of(graph=graph, norm=norm, approximate=approximate, lazy_eps=0.3)
        for t in order:
            scales, exact = session.feed.view(t).scales(Norm(norm)), session.feed.whole_view(t).exact_scales(Norm(norm))
            assert scales.source_N is not None
            assert torch.equal(scales.source_N, wanted[t])
            assert exact.target_N is not None
            assert scales.target_N is not None
            assert torch.equal(scales.target_N, exact.target_N)
    exactly = scales_in_turn(session_of(graph=graph, norm=norm), Norm(norm), "sym-lazy", 0.0)
    assert any(not torch.equal(one, other) for one, other in zip(wanted, exactly, strict=True)), "they never lag"


@pytest.mark.parametrize("approximate", LAGGING)
@pytest.mark.parametrize("mode", ["full", "delta", "versions"])
@pytest.mark.parametrize("name", ["gcn_gru", "tgcn", "evolvegcn_o"])
def test_lagging_scales_are_exact_by_their_own_definition_in_every_way(name: str, mode: str, approximate: str) -> None:
    session = session_of(name, mode=mode, approximate=approximate, lazy_eps=0.6)
    carry = first_carry(session.model, session.feed)
    mine, _ = session.walker.walk(UNIT, carry)
    theirs = by_hand(session, UNIT, carry, hold=True)
    for one, other in zip(mine, theirs, strict=True):
        torch.testing.assert_close(one.out_NH, other.out_NH, **CLOSE)
    for one_g, other_g in zip(gradients(session, mine), gradients(session, theirs), strict=True):
        same(one_g, other_g)
    exact, _ = session_of(name, mode=mode).walker.walk(UNIT, carry)
    assert any(not torch.allclose(one.out_NH, other.out_NH) for one, other in zip(exact, mine, strict=True)), "idle"


def test_eq_4_is_what_a_window_is_made_of_in_training_and_not_where_it_is_scored() -> None:
    session = session_of("evolvegcn_o", approximate="sym-approx")
    times = (1, 2, 3, 4)
    views, x_NF = [session.feed.view(t) for t in times], session.feed.rows(1)
    steps = [
        sym_approx_step(views[k].edges, views[k + 1].edges, views[k].scales(SYM), views[k + 1].scales(SYM))
        for k in range(3)
    ]
    wanted = sym_approx_chain(views[0].edges, steps, views[0].scales(SYM), x_NF)
    made = session.walker.encoder.encode(times, (None,) * 4)
    for place, rows in enumerate(wanted):
        assert torch.equal(made.rows(place)[0], rows)
    assert not torch.allclose(wanted[-1], views[-1].aggregate(x_NF, SYM))
    with torch.no_grad():
        scored = session.walker.encoder.encode(times, (None,) * 4)
    assert torch.equal(scored.rows(3)[0], views[-1].aggregate(x_NF, SYM))
    # The same snapshot in another window is something else: nothing of it is kept, whatever the settings say.
    for cache in ("off", "auto"):
        encoder = session_of("evolvegcn_o", approximate="sym-approx", cache=cache).walker.encoder
        assert torch.equal(encoder.encode(times, (None,) * 4).rows(3)[0], wanted[-1])
        assert not torch.allclose(encoder.encode((2, 3, 4), (None,) * 3).rows(2)[0], wanted[-1])


@pytest.mark.parametrize("approximate", [*LAGGING, "sym-approx"])
def test_the_deviation_is_that_of_the_rows(approximate: str) -> None:
    session = session_of("evolvegcn_o", approximate=approximate, lazy_eps=0.2)
    times = (1, 2, 3, 4)
    made = session.walker.encoder.encode(times, (None,) * 4)
    mine = torch.cat([made.rows(place)[0] for place in range(4)])
    exact = torch.cat([session.feed.whole_view(t).exactly().aggregate(session.feed.rows(t), SYM) for t in times])
    told = session.walker.encoder.deviation(times)
    assert told is not None
    assert told[0] == approximate
    assert told[1] == pytest.approx(float((mine - exact).norm() / exact.norm()), rel=1e-9)


def test_what_is_exact_has_no_deviation_and_attention_in_steps_has_that_of_rounding() -> None:
    for mode in ("full", "delta", "versions"):
        assert session_of("gcn_gru", mode=mode).walker.encoder.deviation((1, 2, 3)) is None
    assert session_of("gat_lstm", mode="versions").walker.encoder.deviation((1, 2, 3)) is None
    session = session_of("gat_lstm", mode="delta")
    told = session.walker.encoder.deviation((1, 2, 3))
    assert told is not None
    assert told[0] == "attention in steps"
    assert told[1] < 1e-12


@pytest.fixture(scope="module")
def power_law(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A graph on disk of which 2 % of the edges change with each snapshot; features that stay."""
    columns: dict[str, list[int]] = {"source": [], "target": [], "time": []}
    for t, edges in enumerate(power_law_chain(1500, 12_000, 0.02, 12)):
        columns["source"] += edges.into.neighbours_E.tolist()
        columns["target"] += edges.into.row_of_edges.tolist()
        columns["time"] += [t] * len(edges)
    path = tmp_path_factory.mktemp("power") / "g"
    ingest(columns, path, Ingest(windows=GIVEN, attributes=AttributeOptions(features="random:8")))
    return path


def told_of(graph: Path, out: Path, **reuse: Any) -> list[dict[str, Any]]:
    features = {"inputs": {"features": "graph"}}
    train(graph, out, small({"reuse": reuse, "train": {"epochs": 3}, "window": {"length": 4}}, features))
    return of_kind(out, "deviated")


def test_a_run_tells_its_deviation_once_an_epoch_and_the_default_is_below_a_thousandth(
    power_law: Path, tmp_path: Path
) -> None:
    told = {name: told_of(power_law, tmp_path / name, approximate=name) for name in (*LAGGING, "sym-approx", "none")}
    assert told["none"] == []
    for name in (*LAGGING, "sym-approx"):
        assert [one["epoch"] for one in told[name]] == [0, 1, 2]
        assert {one["what"] for one in told[name]} == {name}
    off = {name: max(one["deviation"] for one in told[name]) for name in (*LAGGING, "sym-approx")}
    assert 0.0 < off["sym-lazy"] < 1e-3
    assert off["sym-lazy"] < off["sym-static-src"]
    assert off["sym-lazy"] < off["sym-approx"]
    assert of_kind(tmp_path / "sym-lazy", "started")[0]["derived"]["rows"] == exactness_of(
        ReuseSettings(approximate="sym-lazy")
    )


def test_lagging_scales_leave_less_to_change(power_law: Path) -> None:
    def entries(**reuse: Any) -> int:
        told = session_of(graph=open_graph(power_law), **reuse).walker.encoder.sizes((4, 5, 6)).entries
        assert told is not None
        return told[SYM]

    exact, lazy = entries(), entries(approximate="sym-lazy")
    assert lazy < 0.9 * exact
    assert entries(approximate="sym-static-src") < lazy


def test_a_lag_of_0_is_exact_to_the_bit(tmp_path: Path) -> None:
    graph = drift(tmp_path / "g")
    lazy = {"reuse": {"approximate": "sym-lazy", "lazy_eps": 0.0}}
    train(graph, tmp_path / "exact", small({"train": {"log_steps": True}}))
    train(graph, tmp_path / "lazy", small({"train": {"log_steps": True}}, lazy))
    assert of_kind(tmp_path / "lazy", "stepped") == of_kind(tmp_path / "exact", "stepped")
    assert {one["deviation"] for one in of_kind(tmp_path / "lazy", "deviated")} == {0.0}


def test_every_epoch_looks_at_another_window() -> None:
    graph = tiny(3, num_nodes=9, num_snapshots=20, weighted=True, features="fixed")
    session = session_of("evolvegcn_o", graph, approximate="sym-lazy", lazy_eps=0.3)
    told = [one.deviation for epoch in range(2) for one in deviations(session, epoch)]
    assert len(set(told)) == 2


def test_what_cannot_be_approximated_is_refused() -> None:
    with pytest.raises(BadConfig, match="sums of mean norm"):
        session_of("gcn_gru", norm="mean", approximate="sym-lazy")
    with pytest.raises(BadConfig, match="sums of no norm"):
        session_of("gat_lstm", approximate="sym-lazy")
    with pytest.raises(BadConfig, match="unlike evolvegcn_h"):
        session_of("evolvegcn_h", approximate="sym-approx")
    changing = tiny(3, num_nodes=9, num_snapshots=7, weighted=True, features="stored")
    with pytest.raises(BadConfig, match="use sym-lazy"):
        session_of("gcn_gru", changing, approximate="sym-approx")
    assert session_of("gcn_gru", changing, approximate="sym-lazy").walker.encoder.deviation((1, 2)) is not None
    ways: tuple[Any, ...] = ("full", "versions")
    for mode in ways:
        with pytest.raises(BadConfig, match="takes no such way"):
            ReuseSettings(mode=mode, approximate="sym-approx")
    with pytest.raises(BadConfig, match="is no share"):
        ReuseSettings(lazy_eps=1.0)


def test_the_default_lag_is_that_of_the_kernel() -> None:
    assert ReuseSettings().lazy_eps == LAZY_EPS
