"""A dataset is found by its name, and a copy of it wherever and however it lies."""

from __future__ import annotations

import gzip
import re
import zipfile
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import pytest

from timeloom.errors import BadConfig, BadInput
from timeloom.graph.datasets import DATASETS, Dataset, File, find_dataset, local_copy
from timeloom.graph.dynamic import open_graph
from timeloom.graph.ingest import AttributeOptions, Columns, Ingest, Reading, Windows, ingest

HOSTS = {"snap.stanford.edu", "nrvis.com", "raw.githubusercontent.com", "cdn.jsdelivr.net"}
PUBLIC_SNAP = (
    "CollegeMsg email-Eu-core-temporal sx-mathoverflow sx-askubuntu sx-superuser sx-stackoverflow wiki-talk-temporal "
    "soc-sign-bitcoinotc soc-sign-bitcoinalpha higgs-activity_time as-733"
)
PEERS = {  # PEERS 2.2: window, lags, separator
    "ia-slashdot-reply-dir": (200, 30, "blank"),
    "stackexch": (200, 30, "blank"),
    "rec-amazon-ratings": (100, 30, "comma"),
    "soc-flickr-growth": (100, 30, "blank"),
    "soc-youtube-growth": (100, 20, "blank"),
    "soc-bitcoin": (100, 10, "blank"),
    "rec-amz-Books": (100, 0, "comma"),
}


def test_names_are_unique_and_say_the_collection() -> None:
    names = [dataset.name for dataset in DATASETS]
    assert len(set(names)) == len(names)
    assert {name.partition(":")[0] for name in names} == {"snap", "netrepo", "pygt", "local"}
    assert {f"snap:{name}" for name in PUBLIC_SNAP.split()} <= set(names)


@pytest.mark.parametrize("dataset", DATASETS, ids=lambda dataset: dataset.name)
def test_an_entry_is_complete(dataset: Dataset) -> None:
    assert all((dataset.title, dataset.licence, dataset.choice, dataset.edges))
    assert dataset.preset.name == dataset.name.partition(":")[2]
    assert find_dataset(dataset.name) is dataset
    for file in dataset.files:
        assert "/" not in file.name
        assert file.sha256 is None or (re.fullmatch(r"[0-9a-f]{64}", file.sha256) and file.url)
        if file.url is not None:
            assert urlsplit(file.url).scheme == "https"
            assert urlsplit(file.url).netloc in HOSTS
            assert file.url.endswith("/" + file.name)
        assert bool(file.members) == file.name.endswith(".zip")


@pytest.mark.parametrize(("name", "constants"), PEERS.items())
def test_presets_hold_the_constants_of_the_peers(name: str, constants: tuple[int, int, str]) -> None:
    window, lags, separator = constants
    preset = find_dataset(f"netrepo:{name}").preset
    assert preset.windows == Windows(kind="snapshots", amount=str(window))
    assert preset.life == lags + 1
    assert preset.reading.separator == separator
    assert preset.keep_self_loops
    assert not preset.drop_bad_rows


@pytest.mark.parametrize(
    ("asked", "meant"),
    [
        ("snap:CollegeMessage", "snap:CollegeMsg"),
        ("snap:collegemsg", "snap:CollegeMsg"),
        ("uci:CollegeMsg", "snap:CollegeMsg"),
        ("CollegeMsg", "snap:CollegeMsg"),
        ("snap:chickenpox", "pygt:chickenpox"),
        ("netrepo:soc-bitcoins", "netrepo:soc-bitcoin"),
        ("dataset-collection:cora", "local:cora"),
    ],
)
def test_an_unknown_name_is_answered_with_the_nearest(asked: str, meant: str) -> None:
    with pytest.raises(BadConfig, match=rf"no dataset is called {asked}: did you mean .*{meant}"):
        find_dataset(asked)


def test_a_name_like_no_other_is_answered_with_all() -> None:
    with pytest.raises(BadConfig) as failed:
        find_dataset("zzzz:zzzz")
    assert all(dataset.name in str(failed.value) for dataset in DATASETS)


def test_an_archive_of_edges_and_labels_is_one_file() -> None:
    dblp = find_dataset("local:dblp")
    assert [file.name for file in dblp.files] == ["dblp.zip"]
    assert dblp.verified
    assert not find_dataset("snap:soc-sign-bitcoinotc").verified
    assert not find_dataset("local:julia").verified


EVENTS = Dataset(
    name="test:events",
    title="",
    licence="",
    choice="",
    edges=(File(name="events.txt.gz", also=("other.txt",)),),
    beside=(File(name="nodes.csv"),),
    preset=Ingest(
        windows=Windows(kind="given"),
        attributes=AttributeOptions(nodes=Path("nodes.csv"), features="columns:a,b", labels="class:c"),
    ),
)
PARTS = Dataset(
    name="test:parts",
    title="",
    licence="",
    choice="",
    edges=(File(name="parts.zip", members=("one.txt", "two.txt")),),
    beside=(File(name="parts.zip", members=("nodes.txt",)),),
    preset=Ingest(
        windows=Windows(kind="given"), attributes=AttributeOptions(nodes=Path("nodes.txt"), labels="class:2")
    ),
)
NODES = "id,a,b,c\n1,0.5,1,x\n2,0,2,y\n3,1,3,x\n"
ROWS = {"one.txt": "1 2 0\n2 3 5\n", "two.txt": "3 1 9\n", "nodes.txt": "1 0\n2 1\n3 0\n"}


def events_in(folder: Path, name: str) -> Path:
    """Write a copy of the dataset of events; return its file of edges."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "nodes.csv").write_text(NODES)
    text = "".join(text for part, text in ROWS.items() if part != "nodes.txt").encode()
    (folder / name).write_bytes(gzip.compress(text) if name.endswith(".gz") else text)
    return folder / name


@pytest.mark.parametrize("name", ["events.txt.gz", "events.txt", "other.txt", "other.txt.gz"])
@pytest.mark.parametrize("by_folder", [True, False])
def test_a_copy_is_found_however_it_is_compressed(tmp_path: Path, name: str, by_folder: bool) -> None:
    file = events_in(tmp_path, name)
    copy = local_copy(EVENTS, tmp_path if by_folder else file)
    assert copy.source == [file]
    assert copy.options.attributes.nodes == tmp_path / "nodes.csv"
    assert ingest(copy.source, tmp_path / "g", copy.options).num_snapshots == 3
    graph = open_graph(tmp_path / "g")
    assert graph.features.at(0).tolist() == [[0.5, 1], [0, 2], [1, 3]]
    assert graph.labels.classes == ["x", "y"]


def test_the_file_that_is_named_is_taken_and_no_other(tmp_path: Path) -> None:
    events_in(tmp_path, "events.txt.gz")
    mine = events_in(tmp_path, "mine.tsv")
    assert local_copy(EVENTS, mine).source == [mine]
    assert local_copy(EVENTS, str(mine)).options.attributes.nodes == tmp_path / "nodes.csv"
    # Naming the file beside it means the folder.
    assert local_copy(EVENTS, tmp_path / "nodes.csv").source == [tmp_path / "events.txt.gz"]


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("named", ["", "parts.zip", "one.txt", "renamed.zip"])
def test_an_archive_may_be_packed_or_not(tmp_path: Path, packed: bool, named: str) -> None:
    if packed:
        with zipfile.ZipFile(tmp_path / (named if named.endswith("zip") else "parts.zip"), "w") as archive:
            for member, text in ROWS.items():
                archive.writestr(member, text)
    else:
        for member, text in ROWS.items():
            (tmp_path / member).write_text(text)
    if (tmp_path / named).exists():
        copy = local_copy(PARTS, tmp_path / named)
        assert len(copy.source) == (1 if packed else 2)
        report = ingest(copy.source, tmp_path / "g", copy.options)
        assert (report.num_nodes, report.account.read, report.num_snapshots) == (3, 3, 3)
        assert open_graph(tmp_path / "g").labels.at(0).tolist() == [0, 1, 0]


def test_the_only_member_of_an_archive_may_be_named(tmp_path: Path) -> None:
    dataset = find_dataset("netrepo:stackexch")
    network(tmp_path, "ia-stackexch-user-marks-post-und", " ", 4)
    member = tmp_path / "ia-stackexch-user-marks-post-und.edges"
    member.write_text("1 2 1 5\n")
    (tmp_path / "stackexch.edges").write_text("1 2 1 5\n")
    assert local_copy(dataset, member).source == [member]
    assert local_copy(dataset, tmp_path / "stackexch.edges").source == [tmp_path / "stackexch.edges"]
    assert local_copy(dataset, tmp_path).source == [tmp_path / f"{member.stem}.zip:{member.name}"]


def test_a_folder_called_like_a_file_changes_nothing(tmp_path: Path) -> None:
    signal = Dataset(
        name="test:signal", title="", licence="", choice="", edges=(File(name="signal.npz"),),
        preset=Ingest(
            reading=Reading(columns=Columns(source="edges[0]", target="edges[1]")),
            attributes=AttributeOptions(labels="values:signal.npz#y", present="signal.npz#n{t}"),
        ),
    )  # fmt: skip
    folder = tmp_path / "signal.npz"
    folder.mkdir()
    np.savez(folder / "signal.npz", edges=np.array([[0, 1], [1, 2]]), y=np.zeros((4, 3)))
    attributes = local_copy(signal, folder).options.attributes
    assert attributes.labels == f"values:{folder}/signal.npz#y"
    assert attributes.present == f"{folder}/signal.npz#n{{t}}"


def test_a_copy_that_is_not_there_is_told_with_what_is(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"--from .*nowhere does not exist: name a copy of events.txt.gz"):
        local_copy(EVENTS, tmp_path / "nowhere")
    with pytest.raises(BadInput, match=r"test:events needs events.txt.gz, but .* is empty"):
        local_copy(EVENTS, tmp_path)
    (tmp_path / "events.csv").touch()
    with pytest.raises(BadInput, match=r"test:events needs events.txt.gz, but .* holds events.csv: name"):
        local_copy(EVENTS, tmp_path)
    with pytest.raises(BadInput, match=r"test:events needs nodes.csv, but .* holds events.csv: name"):
        local_copy(EVENTS, tmp_path / "events.csv")
    (tmp_path / "one.txt").touch()
    with pytest.raises(BadInput, match=r"test:parts needs parts.zip"):
        local_copy(PARTS, tmp_path)
    with pytest.raises(BadInput, match=r"is no file of local:yago: name one of train.txt, valid.txt, test.txt"):
        local_copy(find_dataset("local:yago"), tmp_path / "events.csv")


def network(folder: Path, name: str, separator: str, columns: int) -> Path:
    """Write a file as the Network Repository does: two lines of comments, then 1,000 events of which some are loops."""
    rng = np.random.default_rng(0)
    rows = [[str(rng.integers(1, 9)), str(rng.integers(1, 9)), "1", str(1_000_000_000 + 60 * n)] for n in range(1_000)]
    text = "% asym positive\n% 1000 8 8\n" + "".join(
        separator.join(row if columns == 4 else [*row[:2], row[3]]) + "\n" for row in rows
    )
    with zipfile.ZipFile(folder / f"{name}.zip", "w") as archive:
        archive.writestr(f"{name}.edges", text)
        archive.writestr("readme.html", "<html>")
    return folder / f"{name}.zip"


@pytest.mark.parametrize(("name", "constants"), PEERS.items())
def test_no_row_of_the_network_repository_is_lost(tmp_path: Path, name: str, constants: tuple[int, int, str]) -> None:
    window, lags, separator = constants
    dataset = find_dataset(f"netrepo:{name}")
    network(
        tmp_path,
        dataset.edges[0].name.removesuffix(".zip"),
        {"comma": ","}.get(separator, " "),
        3 if name == "soc-bitcoin" else 4,
    )
    copy = local_copy(dataset, tmp_path)
    account = ingest(copy.source, tmp_path / "g", copy.options).account
    assert (account.read, account.dropped) == (1_000, {})
    graph = open_graph(tmp_path / "g")
    assert len(graph) == window
    # One event a minute, cut evenly: from snapshot `lags` on, each holds lags + 1 windows of 1,000 / window events.
    weights = [float(graph.snapshot(t).weights.sum()) for t in range(window)]
    assert weights[0] == 1_000 / window
    assert set(weights[lags:]) == {1_000 / window * (lags + 1)}
