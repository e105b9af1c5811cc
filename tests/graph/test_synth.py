"""Synthetic graphs are what their options say: their sizes, how much they change, and how degrees are spread."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.optimize import minimize_scalar

from timeloom.errors import BadConfig
from timeloom.graph.check import check
from timeloom.graph.dynamic import DynamicGraph, open_graph
from timeloom.graph.ingest import Ingest, Windows, ingest
from timeloom.graph.ingest.attributes import AttributeOptions
from timeloom.graph.ingest.rows import Columns, Reading
from timeloom.graph.ingest.rules import Budget
from timeloom.graph.keys import Float64s, Int64s
from timeloom.graph.synth import Delete, Drift, Kind, PowerLaw, delete, drift, powerlaw, synth
from timeloom.graph.synth.draw import Stream, apportion, keyed, pick, power_law_weights
from timeloom.graph.synth.evolve import draw_new

SMALL = Budget(512 << 20)
SMALL_DRIFT = Drift(num_nodes=300, num_edges=900, num_snapshots=12, num_communities=4, turnover=0.4, seed=3)
DENSE = PowerLaw(num_nodes=12, num_edges=33, num_snapshots=20, first_share=1.0, turnover=1.0, exponent=2.1)
SMALL_GROWTH = PowerLaw(num_nodes=300, num_edges=900, num_snapshots=12, turnover=0.1, seed=3)


def make(kind: Kind, folder: Path, *, block_rows: int = 1 << 18) -> DynamicGraph:
    """Make a graph whose every row had an effect, and open it."""
    out = folder / f"g{len(list(folder.iterdir()))}"
    report = synth(kind, out, budget=SMALL, block_rows=block_rows)
    assert report.account.dropped == {}
    assert report.account.notes == {}
    assert report.account.kept == report.account.read
    return open_graph(out)


def edges_of(graph: DynamicGraph) -> list[list[int]]:
    return [snapshot.keys.tolist() for snapshot in graph.snapshots()]


def classes_of(graph: DynamicGraph) -> list[list[int]]:
    return [graph.labels.at(t).tolist() for t in range(len(graph))]


def turnovers(graph: DynamicGraph) -> Float64s:
    counted = graph.statistics
    return counted["removed"][1:] / counted["edges"][:-1]


def fitted_exponent(degrees: Int64s, low: int, high: int) -> float:
    """Return the exponent of the power law that degrees from ``low`` to ``high`` most likely follow."""
    tail, low_edge, high_edge = degrees[(degrees >= low) & (degrees <= high)], low - 0.5, high + 0.5

    def surprise(exponent: float) -> float:
        room = (low_edge ** (1 - exponent) - high_edge ** (1 - exponent)) / (exponent - 1)
        return float(exponent * np.log(tail).mean() + np.log(room))

    return float(minimize_scalar(surprise, bounds=(1.2, 8.0), method="bounded").x)


@pytest.fixture(scope="module")
def static(tmp_path_factory: pytest.TempPathFactory) -> DynamicGraph:
    """Four snapshots with names, types, weights, features and labels."""
    folder = tmp_path_factory.mktemp("static")
    rng = np.random.default_rng(1)
    nodes = [f"n{number}" for number in range(40)]
    pairs = [(nodes[a], nodes[b]) for a, b in rng.integers(40, size=(600, 2)) if a != b]
    table = {
        "a": [pair[0] for pair in pairs],
        "b": [pair[1] for pair in pairs],
        "t": rng.integers(4, size=len(pairs)),
        "w": rng.integers(1, 9, size=len(pairs)).astype(float),
        "kind": [f"k{kind}" for kind in rng.integers(3, size=len(pairs))],
    }
    (folder / "nodes.csv").write_text("id,x,y\n" + "".join(f"{name},{k}.5,{k % 3}\n" for k, name in enumerate(nodes)))
    columns = Columns(source="a", target="b", time="t", weight="w", type="kind")
    extra = AttributeOptions(nodes=folder / "nodes.csv", features="columns:x", labels="class:y")
    given = Ingest(windows=Windows(kind="given"), reading=Reading(columns=columns), attributes=extra)
    ingest(table, folder / "graph", given)
    return open_graph(folder / "graph")


# Every kind


@pytest.mark.parametrize("kind", [SMALL_DRIFT, SMALL_GROWTH], ids=["drift", "powerlaw"])
def test_a_seed_settles_the_graph_however_rows_are_cut(kind: Drift | PowerLaw, tmp_path: Path) -> None:
    graph, again = make(kind, tmp_path), make(kind, tmp_path, block_rows=17)
    assert edges_of(again) == edges_of(graph)
    assert classes_of(again) == classes_of(graph)
    assert edges_of(make(replace(kind, seed=4), tmp_path)) != edges_of(graph)
    assert list(check(graph.path)) == []


def test_a_seed_settles_which_edges_are_deleted(static: DynamicGraph, tmp_path: Path) -> None:
    kind = Delete(graph=static, num_snapshots=6, last_share=0.8, turnover=0.1)
    graph = make(kind, tmp_path)
    assert edges_of(make(kind, tmp_path, block_rows=17)) == edges_of(graph)
    assert edges_of(make(replace(kind, seed=1), tmp_path)) != edges_of(graph)
    assert list(check(graph.path)) == []


def test_many_parts_make_a_graph_of_exact_sizes(
    static: DynamicGraph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (drift, powerlaw, delete):
        monkeypatch.setattr(module, "PART_EDGES", 70)
    drifting, growing = make(SMALL_DRIFT, tmp_path), make(SMALL_GROWTH, tmp_path)
    assert drifting.statistics["edges"].tolist() == [900] * 12
    assert abs(turnovers(drifting).mean() - 0.4) < 0.02
    assert growing.statistics["edges"].tolist() == SMALL_GROWTH.edges_by_snapshot.tolist()
    assert turnovers(growing) == pytest.approx([0.1] * 11, abs=0.006)
    assert (np.diff(growing.first_seen) >= 0).all()
    kind = Delete(graph=static, num_snapshots=6, last_share=0.8, turnover=0.1)
    law = delete.DeleteLaw(kind)
    assert law.num_parts > 5
    assert make(kind, tmp_path).statistics["edges"].tolist() == law.sizes_T.tolist()


def test_a_snapshot_without_edges_or_without_a_change_exists(static: DynamicGraph, tmp_path: Path) -> None:
    graph = make(Delete(graph=static, edges_by_snapshot=(0, 5, 5, 0, 0, 9, 9)), tmp_path)
    assert graph.statistics["edges"].tolist() == [0, 5, 5, 0, 0, 9, 9]
    assert graph.statistics["added"].tolist() == [0, 5, 0, 0, 0, 9, 0]
    still = make(PowerLaw(num_nodes=50, num_edges=100, num_snapshots=5, first_share=1.0, turnover=0.0), tmp_path)
    assert still.statistics["edges"].tolist() == [100] * 5
    assert [*check(graph.path), *check(still.path)] == []


def test_no_edge_leads_from_a_node_to_itself(tmp_path: Path) -> None:
    for kind in (SMALL_DRIFT, SMALL_GROWTH, DENSE):
        for snapshot in make(kind, tmp_path).snapshots():
            assert (snapshot.sources != snapshot.targets).all()


def test_a_graph_as_dense_as_allowed_can_be_drawn(tmp_path: Path) -> None:
    # With every snapshot, 33 edges must be found among the 99 pairs that are not in the one before.
    assert turnovers(make(DENSE, tmp_path)).tolist() == [1.0] * 19


def test_apportioned_parts_are_near_their_shares_and_sum_up() -> None:
    shares = np.random.default_rng(0).random(50)
    parts = apportion(12_345, shares)
    assert parts.sum() == 12_345
    assert abs(parts - shares / shares.sum() * 12_345).max() <= 1.0
    assert apportion(0, np.zeros(3)).tolist() == [0, 0, 0]


def test_every_part_of_every_snapshot_has_its_own_generator() -> None:
    drawn = [
        keyed(seed, stream, part=part, t=t).random()
        for seed in (0, 1) for stream in Stream for part in (0, 1) for t in (0, 1)
    ]  # fmt: skip
    assert len(set(drawn)) == len(drawn)
    assert keyed(1, Stream.edges, part=1, t=1).random() == keyed(1, Stream.edges, part=1, t=1).random()


def test_places_are_picked_as_often_as_their_weights_say() -> None:
    weights = np.array([0.0, 1.0, 3.0, 0.0, 6.0, 0.0])
    picked = pick(np.cumsum(weights), np.random.default_rng(0).random(100_000))
    assert np.bincount(picked, minlength=6) / 100_000 == pytest.approx(weights / 10, abs=0.005)
    assert pick(np.cumsum(weights), np.array([0.99999, 0.0, 0.05])).tolist() == [4, 1, 1]


def test_weights_follow_a_power_law_up_to_the_largest_allowed() -> None:
    weights = power_law_weights(10_000, 0.001, 2.5, np.random.default_rng(0))
    assert weights.sum() == pytest.approx(1.0)
    assert weights.max() == pytest.approx(0.001, rel=0.01)
    ranks = np.array([100, 400])
    high, low = np.sort(weights)[::-1][ranks]
    whole = power_law_weights(10_000, 1.0, 2.5, np.random.default_rng(0))
    assert np.sort(whole)[::-1][ranks] * (ranks + 1) ** (2 / 3) == pytest.approx([whole.max()] * 2, rel=0.01)
    assert 1.0 < high / low < 4 ** (2 / 3)


def test_new_edges_are_drawn_without_favour() -> None:
    rng, old = np.random.default_rng(0), np.arange(0, 1_000, 4)
    counts = np.zeros(1_000)
    for _ in range(400):
        new = draw_new(400, old, lambda count: rng.integers(1_000, size=count))
        assert len(np.unique(new)) == 400
        counts[new] += 1
    assert counts[old].sum() == 0
    quarters = counts.reshape(4, -1).sum(axis=1) / counts.sum()
    assert quarters == pytest.approx([0.25] * 4, abs=0.005)


# Growth under a power law


@pytest.mark.parametrize("curve", ["linear", "exponential"])
def test_a_growing_graph_follows_its_curve_and_turnover_exactly(curve: str, tmp_path: Path) -> None:
    kind = PowerLaw(num_nodes=1_000, num_edges=5_000, num_snapshots=21, curve=curve, first_share=0.2, turnover=0.08)
    graph = make(kind, tmp_path)
    edges = graph.statistics["edges"]
    along = np.arange(21) / 20
    expected = 0.2 + 0.8 * along if curve == "linear" else 0.2 ** (1 - along)
    assert edges.tolist() == np.rint(5_000 * expected).tolist()
    assert np.abs(graph.statistics["removed"][1:] - 0.08 * edges[:-1]).max() <= 0.5
    joined = [int(np.count_nonzero((graph.first_seen >= 0) & (graph.first_seen <= t))) for t in range(21)]
    assert joined == np.rint(1_000 * expected).tolist()


@pytest.mark.parametrize("exponent", [2.2, 3.0])
def test_growing_degrees_follow_the_power_law_asked_for(exponent: float, tmp_path: Path) -> None:
    kind = PowerLaw(num_nodes=20_000, num_edges=200_000, num_snapshots=5, exponent=exponent)
    into, out_of = make(kind, tmp_path).snapshot(-1).degrees()
    for degrees in (into, out_of):
        assert fitted_exponent(degrees.astype(np.int64), 15, 250) == pytest.approx(exponent, abs=0.2)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_ten_million_edges_are_made_within_one_gibibyte(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from timeloom.graph.synth import PowerLaw, synth; "
        "from timeloom.graph.ingest.rules import Budget; "
        "kind = PowerLaw(num_nodes=1_000_000, num_edges=10_000_000, num_snapshots=10, turnover=0.02); "
        "report = synth(kind, sys.argv[1], budget=Budget(1 << 30)); "
        # Not getrusage: its peak survives exec, so that it may be that of the process which runs the tests.
        "peak = Path('/proc/self/status').read_text().split('VmHWM:')[1].split()[0]; "
        "print(report.account.kept, peak)"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "g")]
    ended = subprocess.run(command, capture_output=True, text=True, check=True)
    kept, peak_kib = map(int, ended.stdout.split())
    assert kept > 10_000_000
    assert peak_kib << 10 < 1 << 30
    graph = open_graph(tmp_path / "g")
    assert graph.statistics["edges"][-1] == 10_000_000


# Deleting edges of a static graph


def named(graph: DynamicGraph, t: int) -> dict[tuple[Any, Any, Any], float]:
    """Return the weight of each edge of a snapshot under original ids."""
    snapshot = graph.snapshot(t)
    names, types = graph.ids.all(), graph.type_ids.all()
    numbers = zip(snapshot.sources, snapshot.targets, snapshot.types, snapshot.weights, strict=True)
    return {(names[a], names[b], types[k] if len(types) else ""): float(w) for a, b, k, w in numbers}


def test_deleting_keeps_ids_types_weights_features_and_labels(static: DynamicGraph, tmp_path: Path) -> None:
    for snapshot in (None, 2):
        graph = make(Delete(graph=static, snapshot=snapshot, num_snapshots=5), tmp_path)
        whole: dict[tuple[Any, Any, Any], float] = {}
        for t in range(4) if snapshot is None else [snapshot]:
            whole |= named(static, t)
        assert named(graph, -1) == whole
        for t in range(5):
            assert named(graph, t).items() <= whole.items()
        assert list(graph.ids.all()) == list(static.ids.all())
        assert graph.features.at(0).tolist() == static.features.at(0).tolist()
        assert graph.labels.at(0).tolist() == static.labels.at(0).tolist()
        assert graph.labels.classes == static.labels.classes
        assert graph.labels.fixed
        assert list(check(graph.path)) == []


@pytest.mark.parametrize("features", ["none", "log-degree", "random:4:7", "one-hot:y"])
def test_deleting_keeps_every_kind_of_features(features: str, tmp_path: Path) -> None:
    (tmp_path / "nodes.csv").write_text("id,y\n3,red\n5,\n7,blue\n9,red\n")
    extra = AttributeOptions(nodes=tmp_path / "nodes.csv", features=features)
    table = {"source": [3, 5, 7, 9], "target": [5, 7, 3, 9]}
    given = Ingest(reading=Reading(timed=False), attributes=extra, keep_self_loops=True)
    ingest(table, tmp_path / "static", given)
    static = open_graph(tmp_path / "static")
    graph = make(Delete(graph=static, num_snapshots=2, first_share=0.4), tmp_path)
    assert graph.ids.all() == pytest.approx([3, 5, 7, 9])
    assert named(graph, 1) == named(static, 0)
    assert graph.features.at(1).tolist() == static.features.at(0).tolist()


def test_deleting_without_turnover_only_adds(static: DynamicGraph, tmp_path: Path) -> None:
    graph = make(Delete(graph=static, num_snapshots=10, curve="exponential"), tmp_path)
    size = graph.statistics["edges"][-1]
    assert graph.statistics["removed"].tolist() == [0] * 10
    assert graph.statistics["edges"].tolist() == np.rint(size * 0.1 ** (1 - np.arange(10) / 9)).tolist()


def test_deleting_turns_over_as_much_as_asked_and_spares_no_edge(tmp_path: Path) -> None:
    static = make(Drift(num_snapshots=3), tmp_path)
    kind = Delete(graph=static, snapshot=1, num_snapshots=40, first_share=0.5, last_share=0.5, turnover=0.2)
    graph = make(kind, tmp_path)
    assert graph.statistics["edges"].tolist() == [5_000] * 40
    assert graph.statistics["removed"].tolist() == [0] + [1_000] * 39
    keys = static.snapshot(1).keys
    shares = np.mean([np.isin(keys, snapshot.keys) for snapshot in graph.snapshots()], axis=0)
    assert np.mean((shares == 0.0) | (shares == 1.0)) < 0.001
    tenths = shares.reshape(10, -1).mean(axis=1)
    assert tenths == pytest.approx([0.5] * 10, abs=0.03)


# What is refused


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"num_edges": 0}, "num_edges=0 was asked for"),
        ({"curve": "steep"}, "curve='steep' is unknown: use linear or exponential"),
        ({"first_share": 0.0}, "first_share=0 was asked for"),
        ({"turnover": 1.1}, "turnover=1.1 was asked for"),
        ({"num_nodes": 700, "first_share": 0.01}, "snapshot 0 is to have 1000 edges, but the 7 .* raise first_share"),
    ],
)
def test_a_growth_that_cannot_be_meant_is_refused(asked: dict[str, Any], words: str) -> None:
    with pytest.raises(BadConfig, match=words):
        PowerLaw(**asked)


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"snapshot": 4}, "snapshot=4 was asked for, but it must lie between 0 and 3"),
        ({"edges_by_snapshot": (5, -1)}, "edges_by_snapshot goes from -1 to 5"),
        ({"edges_by_snapshot": (5, 9999)}, "a snapshot of 9999 edges was asked for, but 'graph' has"),
        ({"turnover": 0.1}, "turnover=0.1 takes .* lower turnover or last_share"),
    ],
)
def test_deleting_what_cannot_be_meant_is_refused(
    asked: dict[str, Any], words: str, static: DynamicGraph, tmp_path: Path
) -> None:
    with pytest.raises(BadConfig, match=words):
        synth(Delete(graph=static, **asked), tmp_path / "g", budget=SMALL)
    assert not (tmp_path / "g").exists()


def test_a_graph_that_is_there_already_is_replaced_only_when_asked(tmp_path: Path) -> None:
    graph = make(SMALL_GROWTH, tmp_path)
    with pytest.raises(BadConfig, match="exists already"):
        synth(SMALL_DRIFT, graph.path, budget=SMALL)
    assert edges_of(open_graph(graph.path)) == edges_of(graph)
    synth(replace(SMALL_DRIFT, name="moving"), graph.path, budget=SMALL, overwrite=True)
    assert open_graph(graph.path).name == "moving"
