"""Which datasets of no collection are in the catalogue: those that come with classes of nodes."""

from __future__ import annotations

from pathlib import Path

from timeloom.graph.datasets.dataset import Dataset, File
from timeloom.graph.ingest import AttributeOptions, Columns, Ingest, Reading, Windows

_RAW = "https://raw.githubusercontent.com/"
_DBLP = f"{_RAW}MGitHubL/MNCI/3fe66feb6dd9b0440224b26860c8526ed00bea18/data/dblp/dblp.zip"
_DBLP_SHA256 = "eb0ede260a70fdfd00bd7da6cc2308fbe0af53fcb07152b8dfc1725ca55ed9e4"
_PATENT = f"{_RAW}MGitHubL/Deep-Temporal-Graph-Clustering/8cf025bdb2d85047a966b0ded64ff2e2dd1b9eac/data/patent/"
_GIVEN = Windows(kind="given")
_TRIPLES = Reading(columns=Columns(source="1", target="2", time="3"), separator="blank", header="no")


def _contacts(place: str, title: str, *, num_nodes: int, num_events: int, num_snapshots: int) -> Dataset:
    name = f"sociopatterns-{place.replace('_', '-')}"
    columns = Columns(time="1", source="2", target="3")
    return Dataset(
        name=f"local:{name}",
        title=title,
        edges=(File(name=f"sociopatterns_{place}.csv.gz"),),
        licence="SocioPatterns' own: non-commercial as far as known, not stated in the package (tnetwork, BSD-2)",
        preset=Ingest(
            name=name,
            windows=_GIVEN,
            both_directions=True,
            reading=Reading(columns=columns, separator="tab", header="no", time_unit="s"),
        ),
        choice="The 20-second steps in which anybody met; a contact goes both ways.",
        num_nodes=num_nodes,
        num_events=num_events,
        num_snapshots=num_snapshots,
    )


LABELLED = (
    Dataset(
        name="local:pubmed",
        title="papers on diabetes that cite each other",
        edges=(File(name="pubmed_temporal.npz"),),
        licence="none stated by pubmed-temporal (doi 10.5281/zenodo.13932075); features from pgl, Apache-2.0",
        preset=Ingest(
            name="pubmed",
            windows=Windows(kind="every", amount="1"),
            life=0,
            reading=Reading(
                columns=Columns(source="edge_index[0]", target="edge_index[1]", time="edge_year"), time_unit="plain"
            ),
            attributes=AttributeOptions(features="array:pubmed_temporal.npz#x", labels="classes:pubmed_temporal.npz#y"),
        ),
        choice="The years 1967 to 2010; a citation stays. Features: TF-IDF of 500 words.",
        num_nodes=19_717,
        num_events=44_335,
        num_snapshots=44,
    ),
    Dataset(
        name="local:dblp",
        title="computer scientists who write papers together",
        edges=(File(name="dblp.zip", url=_DBLP, sha256=_DBLP_SHA256, members=("dblp.txt",), also=("mnci-dblp.zip",)),),
        beside=(
            File(name="dblp.zip", url=_DBLP, sha256=_DBLP_SHA256, members=("node2label.txt",), also=("mnci-dblp.zip",)),
        ),
        licence="MIT (MNCI)",
        preset=Ingest(
            name="dblp",
            windows=_GIVEN,
            both_directions=True,
            reading=_TRIPLES,
            attributes=AttributeOptions(nodes=Path("node2label.txt"), labels="class:2"),
        ),
        choice="The 25 steps; a paper joins its authors both ways, and the weight is the number of papers.",
        num_nodes=25_387,
        num_events=185_480,
        num_snapshots=25,
    ),
    Dataset(
        name="local:patent",
        title="patents that cite each other",
        edges=(
            File(
                name="patent.txt",
                url=f"{_PATENT}patent.txt",
                sha256="d074fd2977563e0ba41159bc32cc51944e00784f88a84a6453d0525ce115ee77",
            ),
        ),
        beside=(
            File(
                name="node2label.txt",
                url=f"{_PATENT}node2label.txt",
                sha256="f6c1f83600450a538f00d558275afd75b5240d90501cb12528e09419b461497b",
            ),
        ),
        licence="none stated",
        preset=Ingest(
            name="patent",
            windows=_GIVEN,
            life=0,
            reading=_TRIPLES,
            attributes=AttributeOptions(nodes=Path("node2label.txt"), labels="class:2"),
        ),
        choice="The 891 steps; a citation stays.",
        num_nodes=12_214,
        num_events=41_916,
        num_snapshots=891,
    ),
    Dataset(
        name="local:ubuntu",
        title="packages of Ubuntu that need each other, in 8 releases",
        edges=(File(name="ubuntu_deps.npz"),),
        licence="package metadata; no licence of its own stated",
        preset=Ingest(
            name="ubuntu",
            reading=Reading(
                columns=Columns(source="edge_index_{t}[0]", target="edge_index_{t}[1]", type="edge_type_{t}")
            ),
            attributes=AttributeOptions(
                features="array:ubuntu_deps.npz#x",
                labels="classes:ubuntu_deps.npz#label",
                present="ubuntu_deps.npz#nodes_{t}",
            ),
        ),
        choice="A snapshot a release; the kind of need is the edge type. Features: 512 words, yes or no.",
        num_nodes=117_089,
        num_events=2_434_447,
        num_snapshots=8,
    ),
    _contacts(
        "primary_school", "who met whom in a primary school", num_nodes=242, num_events=125_773, num_snapshots=3_100
    ),
    _contacts("hospital", "who met whom in a ward of a hospital", num_nodes=75, num_events=32_424, num_snapshots=9_453),
    Dataset(
        name="local:cora",
        title="papers on machine learning that cite each other, without time",
        edges=(
            File(
                name="cora.npz",
                url=f"{_RAW}shchur/gnn-benchmark/1e72912a0810cdf27ae54fd589a3b43358a2b161/data/npz/cora.npz",
                sha256="068e22d90c3849b4057dfb05851741428992af058efcd4e7ebb4186f3d581de2",
            ),
        ),
        licence="MIT (gnn-benchmark)",
        preset=Ingest(
            name="cora",
            attributes=AttributeOptions(features="array:cora.npz#attr", labels="classes:cora.npz#labels"),
        ),
        choice="One snapshot. Features: 1,433 words.",
        num_nodes=2_708,
        num_events=5_429,
        num_snapshots=1,
    ),
)
