"""Every dataset of ../shared/data becomes, by one command, the graph that its MANIFEST.md describes."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from timeloom.cli import run
from timeloom.graph.check import check
from timeloom.graph.datasets import DATASETS, Dataset, find_dataset, local_copy
from timeloom.graph.dynamic import DynamicGraph, open_graph
from timeloom.graph.ingest import Report, ingest
from timeloom.graph.ingest.signals import read_json

PAGE = Path(__file__).resolve().parents[2] / "docs" / "data.md"
SMALL = [
    "snap:CollegeMsg", "snap:email-Eu-core-temporal", "snap:sx-mathoverflow", "snap:soc-sign-bitcoinotc",
    "snap:soc-sign-bitcoinalpha", "snap:higgs-activity_time", "netrepo:ia-enron-employees", "pygt:chickenpox",
    "pygt:pedalme", "pygt:england-covid", "pygt:montevideo-bus", "pygt:twitter-tennis-rg17", "local:covid-us-counties",
    "local:icews18", "local:yago", "local:julia", "local:flights", "local:rust", "local:pubmed", "local:dblp",
    "local:patent", "local:sociopatterns-primary-school", "local:sociopatterns-hospital", "local:cora",
]  # fmt: skip
LARGE = ["snap:as-733", "local:retrosheet-2000", "local:retrosheet-1903", "local:retrosheet", "local:ubuntu"]
ALL = [*SMALL, *(pytest.param(name, marks=pytest.mark.slow) for name in LARGE)]


class Row(NamedTuple):
    """A row of the table of the page."""

    nodes: str
    events: str
    snapshots: str
    edges: str
    choice: str


@dataclass(frozen=True)
class Made:
    """A graph that was made, with the account."""

    report: Report
    graph: DynamicGraph


def rows_of_page() -> dict[str, Row]:
    found = re.findall(r"^\| `(\S+)` \| (.*) \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    return {name: Row(*rest.split(" | ")) for name, rest in found}


def commands_of_page() -> list[list[str]]:
    text = PAGE.read_text(encoding="utf-8")
    return [line.split() for line in re.findall(r"^timeloom ingest .*$", text, re.MULTILINE)]


def folders(shared_data: Path) -> dict[str, Path]:
    """Return where the page finds a copy of each dataset."""
    commands = [command for command in commands_of_page() if command[4].startswith("../shared/")]
    return {command[2]: shared_data.parent / command[4].removeprefix("../shared/") for command in commands}


@pytest.fixture(scope="module")
def make(shared_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Made]:
    """Return what makes the graph of a dataset, once."""
    made: dict[str, Made] = {}

    def once(name: str) -> Made:
        if name not in made:
            copy = local_copy(find_dataset(name), folders(shared_data)[name])
            out = tmp_path_factory.mktemp("graphs") / "g"
            made[name] = Made(ingest(copy.source, out, copy.options), open_graph(out))
        return made[name]

    return once


@pytest.mark.parametrize("name", ALL)
def test_counts_are_those_of_the_catalogue_and_the_page(name: str, make: Callable[[str], Made]) -> None:
    dataset, report = find_dataset(name), make(name).report
    counts = (report.num_nodes, report.account.read, report.num_snapshots)
    assert counts == (dataset.num_nodes, dataset.num_events, dataset.num_snapshots)
    assert report.account.balances
    assert set(report.account.dropped) <= {"self loop"} or dataset.preset.reading.columns.operation is not None
    assert rows_of_page()[name][:4] == tuple(f"{count:,}" for count in (*counts, report.num_edges))


def test_counts_are_those_of_the_manifest(shared_data: Path) -> None:
    rows = re.findall(r"^\| (\w+/\S+) \|(.*)\|$", (shared_data / "MANIFEST.md").read_text(), re.MULTILINE)
    told = {name: set(re.findall(r"\d[\d,]*", text)) for name, text in rows if (shared_data / name).exists()}
    # The manifest counts these in another way: by day or hour, adds and deletes apart, authors and files apart.
    apart = {"signals/england_covid.json.gz", "signals/twitter_tennis_rg17.json.gz", "medium/julia_dep_events.parquet"}
    seen = set()
    for name, folder in folders(shared_data).items():
        dataset = find_dataset(name)
        if name in ("local:rust", "local:retrosheet-1903", "local:retrosheet"):
            continue
        copy = str(local_copy(dataset, folder).source[0]).partition(":")[0].removeprefix(f"{shared_data}/")
        row = next(row for row in told if row.rstrip("/") in copy)
        seen.add(row)
        assert f"{dataset.num_nodes:,}" in told[row], name
        assert f"{dataset.num_events:,}" in told[row] or row in apart, name
    assert len(seen) == len(told) - 2  # rust and the earlier seasons


def test_counts_that_the_manifest_splits_add_up() -> None:
    assert find_dataset("local:julia").num_events == 110_158 + 25_623
    assert find_dataset("local:rust").num_nodes == 8_738 + 178_252
    assert find_dataset("local:retrosheet").num_events == 10_342_061 + 4_593_022
    assert find_dataset("local:retrosheet").num_nodes == 17_755


@pytest.mark.parametrize(
    ("name", "few", "many"),
    [
        ("pygt:england-covid", 836, 2_158),
        ("pygt:twitter-tennis-rg17", 41, 936),
        ("local:yago", 1, 4_072),
        ("pygt:chickenpox", 102, 102),
        ("pygt:pedalme", 225, 225),
        ("pygt:montevideo-bus", 690, 690),
        ("local:covid-us-counties", 18_554, 18_554),
        pytest.param("local:ubuntu", 240_821, 339_784, marks=pytest.mark.slow),
    ],
)
def test_snapshots_have_as_many_edges_as_the_manifest_says(
    name: str, few: int, many: int, make: Callable[[str], Made]
) -> None:
    edges = make(name).graph.statistics["edges"]
    assert (edges.min(), edges.max()) == (few, many)


@pytest.mark.parametrize(
    ("name", "overlap"),
    [
        ("pygt:england-covid", "0.82"),
        ("pygt:twitter-tennis-rg17", "0.08"),
        ("local:yago", "0.85"),
        ("local:julia", "0.991"),
        ("local:flights", "0.981"),
        ("local:rust", "0.08"),
    ],
)
def test_consecutive_snapshots_overlap_as_the_manifest_says(
    name: str, overlap: str, make: Callable[[str], Made]
) -> None:
    statistics = make(name).graph.statistics
    edges, added, removed = (statistics[key].astype(float) for key in ("edges", "added", "removed"))
    # The last day of the flights is one minute long.
    until = -1 if name == "local:flights" else None
    kept = (edges[1:] - added[1:])[:until]
    jaccard = kept / (edges[1:] + removed[1:])[:until]
    assert f"{jaccard.mean():.{len(overlap) - 2}f}" == overlap


def test_flights_are_counted_by_day(make: Callable[[str], Made]) -> None:
    graph = make("local:flights").graph
    edges = graph.statistics["edges"]
    assert (edges[:-1].min(), edges[:-1].max(), edges[-1]) == (2_956, 3_205, 6)
    assert sum(float(snapshot.weights.sum()) for snapshot in graph.snapshots()) == 3_000_000


def test_julia_ends_with_the_edges_that_are_live(make: Callable[[str], Made]) -> None:
    graph = make("local:julia").graph
    assert graph.statistics["edges"][-1] == 84_535
    assert graph.clock.show(int(graph.starts[0])) == "2019-04-16"
    assert graph.features.at(0).sum(axis=0)[0] == 26


@pytest.mark.slow
def test_every_system_of_the_internet_is_seen(make: Callable[[str], Made]) -> None:
    made = make("snap:as-733")
    active = made.graph.statistics["active"]
    assert (active.min(), active.max()) == (103, 6_474)
    assert made.report.account.dropped == {"self loop": 554_723}
    assert (made.graph.clock.show(made.report.first), made.graph.clock.show(made.report.last)) == (
        "1997-11-08",
        "2000-01-02",
    )


@pytest.mark.parametrize(
    ("name", "num_features", "num_ones", "classes"),
    [
        ("local:cora", 1_433, 49_216, 7),
        ("local:pubmed", 500, 988_031, 3),
        ("local:dblp", 0, 0, 10),
        ("local:patent", 0, 0, 6),
        pytest.param("local:ubuntu", 512, 508_726, 58, marks=pytest.mark.slow),
    ],
)
def test_features_and_classes_come_along(
    name: str, num_features: int, num_ones: int, classes: int, make: Callable[[str], Made]
) -> None:
    graph = make(name).graph
    assert graph.features.num_features == num_features
    assert np.count_nonzero(graph.features.at(0)) == num_ones
    assert len(graph.labels.classes) == classes
    assert len(set(graph.labels.at(0).tolist()) - {-1}) == classes


def test_the_classes_of_pubmed_are_as_large_as_the_manifest_says(make: Callable[[str], Made]) -> None:
    assert np.bincount(make("local:pubmed").graph.labels.at(0)).tolist() == [4_103, 7_739, 7_875]


def test_a_signal_is_the_label_of_its_time(shared_data: Path, make: Callable[[str], Made]) -> None:
    signal = read_json(shared_data / "signals" / "chickenpox.json").attributes.labels
    assert signal is not None
    graph = make("pygt:chickenpox").graph
    assert all(np.array_equal(graph.labels.at(t), signal[t]) for t in range(len(graph)))
    cases = np.load(shared_data / "signals" / "covid_us_counties.npz")["confirmed"]
    graph = make("local:covid-us-counties").graph
    assert all(np.array_equal(graph.labels.at(t), cases[t]) for t in (0, 200, 479))


@pytest.mark.parametrize(
    "name", ["snap:soc-sign-bitcoinotc", "local:julia", "local:pubmed", "pygt:twitter-tennis-rg17"]
)
def test_a_graph_of_the_catalogue_passes_the_check(name: str, make: Callable[[str], Made]) -> None:
    assert list(check(make(name).graph.path)) == []


def test_the_command_line_makes_what_the_page_says(
    shared_data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = "pygt:pedalme"
    assert run(["ingest", name, "--from", str(folders(shared_data)[name]), "--out", str(tmp_path / "g")]) == 0
    row = rows_of_page()[name]
    assert f"{row.snapshots} snapshots, {row.nodes} nodes, {row.edges} edges in all" in capsys.readouterr().out
    assert open_graph(tmp_path / "g").name == "pedalme"


def test_the_command_line_may_change_what_a_preset_chose(shared_data: Path, tmp_path: Path) -> None:
    name = "snap:CollegeMsg"
    out = tmp_path / "g"
    arguments = ["ingest", name, "--from", str(folders(shared_data)[name]), "--every", "7d", "--life", "2"]
    assert run([*arguments, "--out", str(out), "--quiet"]) == 0
    assert len(open_graph(out)) == 28


def test_every_command_of_the_page_names_a_dataset_and_its_copy(shared_data: Path) -> None:
    for command in commands_of_page():
        assert find_dataset(command[2]).name == command[2]
    for name, folder in folders(shared_data).items():
        dataset = find_dataset(name)
        assert local_copy(dataset, folder).source
    assert set(folders(shared_data)) == set(SMALL) | set(LARGE)


def test_every_file_of_the_shared_data_is_read_by_a_command(shared_data: Path) -> None:
    read = set()
    for name, folder in folders(shared_data).items():
        copy = local_copy(find_dataset(name), folder)
        parts = [*copy.source, *([copy.options.attributes.nodes] if copy.options.attributes.nodes else [])]
        read |= {str(part).partition(":")[0] for part in parts}
    held = {
        str(path) for path in shared_data.rglob("*") if path.is_file() and path.name not in ("MANIFEST.md", "stat.txt")
    }
    # Tables of nodes that no option can read without changing the graph: the page says so.
    assert {Path(name).name for name in held - read} == {"airports.csv.gz", "rust_files.parquet"}


@pytest.mark.parametrize("dataset", DATASETS, ids=lambda dataset: dataset.name)
def test_the_page_says_what_the_catalogue_says(dataset: Dataset) -> None:
    row = rows_of_page()[dataset.name]
    counts = (dataset.num_nodes, dataset.num_events, dataset.num_snapshots)
    assert row[:3] == tuple("" if count is None else f"{count:,}" for count in counts)
    assert row.choice == dataset.choice
    assert dataset.licence in PAGE.read_text(encoding="utf-8")


def test_the_page_names_no_dataset_that_does_not_exist() -> None:
    assert set(rows_of_page()) == {dataset.name for dataset in DATASETS}
