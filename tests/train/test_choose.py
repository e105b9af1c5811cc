"""The way to a window's rows with the least predicted time is taken, and taken again when a run is resumed."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.graph.tiny import tiny
from tests.train.small_runs import drift, of_kind, same_bits, saved, small
from timeloom.errors import BadInput
from timeloom.graph.tasks import TaskSettings
from timeloom.kernels.norms import Norm
from timeloom.nn.settings import ModelSettings
from timeloom.nn.watch import Asked, Sum
from timeloom.plan import machine as costs_of_machine
from timeloom.plan.batch.windows import WindowSettings
from timeloom.plan.cost import Costs, Kernel, Law
from timeloom.train.choose import Decided, Sizes, decided_of, least, predicted
from timeloom.train.costs import BUILT_IN, costs_file, read_costs, write_costs
from timeloom.train.runs import resume, train
from timeloom.train.session import Session, open_session
from timeloom.train.settings import ReuseSettings, RunSettings, TrainSettings

SYM = Norm("sym")
CPU = torch.device("cpu")
# A number summed, stepped, attended, picked or multiplied costs a second; nothing else costs anything.
UNIT = Costs({kernel: Law((0.0, 0.0, 0.0, 0.0, 1.0), (0.0, 0.0, 0.0, 0.0, 1.0)) for kernel in BUILT_IN.laws}, 1)
PLAIN = Decided(costs=UNIT, keeps=False, free=False, sums_first=False)


def asked(*sums: Sum, attended: tuple[int, ...] = (), flops: int = 0) -> Asked:
    return Asked(sums, attended, by_node=True, hops=1, flops=flops, width=2, opening=None, reads_edges=False)


def sizes(rows: int = 15, table_edges: int = 30, entries: int | None = 10) -> Sizes:
    told = None if entries is None else {SYM: entries, None: 2 * entries}
    return Sizes(10, (20, 21, 22), rows, table_edges, told)


def test_each_way_costs_what_it_computes() -> None:
    of_inputs, of_products = Sum(SYM, 3, of_inputs=True), Sum(SYM, 4, of_inputs=False)
    assert predicted(sizes(), asked(of_inputs), PLAIN) == {
        "full": 3 * 63, "versions": 3 * 30 + 2 * 30, "delta": 3 * 20 + 3 * 10
    }  # fmt: skip
    # What has a gradient is summed forward and back.
    told = predicted(sizes(), asked(of_products), PLAIN)
    assert told == {"full": 2 * 4 * 63, "versions": 2 * 4 * 30 + 60, "delta": 2 * 4 * 30}
    told = predicted(sizes(), asked(attended=(5,)), PLAIN)
    assert told == {"full": 5 * 63, "versions": 5 * 30 + 60, "delta": 5 * (20 + 10 + 20)}
    told = predicted(sizes(), asked(of_inputs, flops=1000), replace(PLAIN, free=True))
    assert told == {"full": 30, "versions": 15 + 60, "delta": 30}
    assert "delta" not in predicted(sizes(entries=None), asked(of_inputs), PLAIN)


def test_the_least_is_taken_and_the_simplest_of_equal_ones() -> None:
    assert least({"full": 2.0, "versions": 1.0, "delta": 3.0}) == "versions"
    assert least({"full": 2.0, "versions": 2.0, "delta": 2.0}) == "full"
    assert least({"full": 2.0, "delta": 1.0}) == "delta"


def session_of(*, costs: Costs = BUILT_IN) -> Session:
    graph = tiny(0, num_nodes=10, num_snapshots=9, weighted=False, features="fixed")
    settings = RunSettings(
        graph="", model=ModelSettings(name="gcn_gru", hidden=2), task=TaskSettings(name="degree"),
        window=WindowSettings(length=3), train=TrainSettings(precision="float64", device="cpu"),
        reuse=ReuseSettings(mode="auto", cache="off"),
    )  # fmt: skip
    return open_session(settings, graph, decided=Decided(costs=costs, keeps=False, free=False, sums_first=False))


def priced(dear: Kernel) -> Costs:
    """Return costs in which one kernel is dear."""
    nothing, much = Law((0.0,) * 5, (0.0,) * 5), Law((1.0,) * 5, (1.0,) * 5)
    return Costs({kernel: much if kernel == dear else nothing for kernel in BUILT_IN.laws}, 1)


def test_the_encoder_takes_the_least_and_remembers_it() -> None:
    # Where picking is dear no table is made; where passes are, a chain has the fewest.
    assert session_of(costs=priced("gather")).walker.encoder.mode((0, 1, 2)) == "full"
    assert session_of(costs=priced("sum")).walker.encoder.mode((0, 1, 2)) == "delta"
    encoder = session_of(costs=priced("step")).walker.encoder
    assert encoder.mode((0, 1, 2)) == "full"
    assert encoder.chosen == {(0, 1, 2): "full"}
    assert encoder.mode((4,)) == "full", "a snapshot alone shares nothing"
    with torch.no_grad():
        assert session_of(costs=priced("sum")).walker.encoder.mode((0, 1, 2)) == "full"


def test_sizes_are_those_of_the_table_and_of_the_steps() -> None:
    session = session_of()
    encoder = session.walker.encoder
    told = encoder.sizes((0, 1, 2))
    views = [session.feed.view(t) for t in range(3)]
    assert told.edges_T == tuple(len(view.edges) for view in views)
    made = encoder._make_table((0, 1, 2), (None,) * 3)
    assert told.table_rows == made.view.num_nodes
    assert told.table_edges == made.view.num_edges
    assert told.entries is not None
    assert told.entries[SYM] == sum(encoder._steps.sums(t, SYM).num_entries for t in (1, 2))


def test_costs_are_kept_for_a_machine_and_a_number_of_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(costs_of_machine, "cache_home", lambda: tmp_path)
    assert read_costs(CPU, 3) is BUILT_IN
    path = write_costs(replace(UNIT, threads=3), CPU)
    assert path == costs_file(CPU, 3)
    assert read_costs(CPU, 3) == replace(UNIT, threads=3)
    assert read_costs(CPU, 2) is BUILT_IN
    path.write_text("{")
    with pytest.raises(BadInput, match="timeloom calibrate"):
        read_costs(CPU, 3)
    path.write_text("{}")
    with pytest.raises(BadInput, match="timeloom calibrate"):
        read_costs(CPU, 3)


def test_what_was_decided_comes_back_from_a_checkpoint() -> None:
    decided = Decided(costs=UNIT, keeps=True, free=False, sums_first=True)
    assert decided_of(json.loads(json.dumps(decided.as_json()))) == decided


def test_a_resumed_run_goes_by_the_costs_it_began_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(costs_of_machine, "cache_home", lambda: tmp_path / "home")
    graph = drift(tmp_path / "g", num_snapshots=11)
    settings = small({"train": {"epochs": 4, "log_steps": True}})
    train(graph, tmp_path / "whole", settings)
    train(graph, tmp_path / "cut", small(settings, {"train": {"epochs": 2}}))
    other = priced("sum")
    write_costs(replace(other, threads=torch.get_num_threads()), CPU)
    resume(tmp_path / "cut", {"train": {"epochs": 4}})
    assert saved(tmp_path / "cut").state["decided"] == saved(tmp_path / "whole").state["decided"]
    assert same_bits(saved(tmp_path / "cut").tensors, saved(tmp_path / "whole").tensors)
    train(graph, tmp_path / "new", settings)
    assert saved(tmp_path / "new").state["decided"]["costs"]["laws"]["sum"] == {
        "cached": [1.0] * 5,
        "beyond": [1.0] * 5,
    }
    assert of_kind(tmp_path / "new", "started")
