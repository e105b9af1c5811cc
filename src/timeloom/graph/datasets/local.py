"""Which datasets of no collection are in the catalogue: those that come without classes of nodes.

What has no url was put together from thousands of files (data/MANIFEST.md says how) and is published nowhere as one.
"""

from __future__ import annotations

from pathlib import Path

from timeloom.graph.datasets.dataset import Dataset, File
from timeloom.graph.ingest import AttributeOptions, Bounds, Columns, Ingest, Reading, Windows

_RAW = "https://raw.githubusercontent.com/"
_YAGO = f"{_RAW}INK-USC/RE-Net/a0e5f4732c5bb20d939f0f69e34fb9cf156ac1b2/data/YAGO/"
_RETROSHEET_LICENCE = (
    "The information used here was obtained free of charge from and is copyrighted by Retrosheet. "
    'Interested parties may contact Retrosheet at "www.retrosheet.org".'
)
_GIVEN, _YEARLY = Windows(kind="given"), Windows(kind="every", amount="1y")
_FACTS = Reading(columns=Columns(source="1", type="2", target="3", time="4"), separator="tab", header="no")
_APPEARANCES = Reading(columns=Columns(source="batter", target="pitcher", time="date"), time_format="yyyymmdd")
_EARLIER, _LATER = File(name="retrosheet_pa_1903_1999.parquet"), File(name="retrosheet_pa_2000_2024.parquet")
_SEASONS = "Years; an edge batter -> pitcher weighs the number of meetings. `--type outcome` tells outcomes apart."


def _seasons(
    name: str, title: str, *edges: File, num_nodes: int, num_events: int, num_snapshots: int, note: str = ""
) -> Dataset:
    return Dataset(
        name=f"local:{name}",
        title=f"who pitched to whom in baseball's major leagues, {title}",
        edges=edges,
        licence=_RETROSHEET_LICENCE,
        preset=Ingest(name=name, windows=_YEARLY, reading=_APPEARANCES),
        choice=_SEASONS + note,
        num_nodes=num_nodes,
        num_events=num_events,
        num_snapshots=num_snapshots,
    )


LOCAL = (
    Dataset(
        name="local:covid-us-counties",
        title="COVID-19 in the counties of the United States, day by day",
        edges=(File(name="covid_us_counties.npz"),),
        licence=(
            'CC BY 4.0, "COVID-19 Data Repository by the Center for Systems Science and Engineering (CSSE) at '
            'Johns Hopkins University"; county borders: US Census, public domain'
        ),
        preset=Ingest(
            name="covid-us-counties",
            reading=Reading(columns=Columns(source="edge_index[0]", target="edge_index[1]")),
            attributes=AttributeOptions(labels="values:covid_us_counties.npz#confirmed"),
        ),
        choice="One topology, the borders; the confirmed cases so far are the labels of each day.",
        num_nodes=3_140,
        num_events=18_554,
        num_snapshots=480,
    ),
    Dataset(
        name="local:icews18",
        title="events between countries and other actors in 2018",
        edges=(
            File(
                name="ICEWS18.zip",
                url=f"{_RAW}AONE-NLP/DiffuTKG/1378a0fffdafca4ddf8634df1546be3b9743f018/data/ICEWS18.zip",
                sha256="f0ddc040d8cc292df7f10e8e2a62f53326e63277216a56be5ba6b00b65bc2148",
                members=("train.txt", "valid.txt", "test.txt"),
            ),
        ),
        licence="none stated",
        preset=Ingest(name="icews18", windows=_GIVEN, reading=_FACTS),
        choice="The 304 days; the relation is the edge type. Time counts hours, so a day is 24.",
        num_nodes=23_033,
        num_events=468_558,
        num_snapshots=304,
    ),
    Dataset(
        name="local:yago",
        title="facts that hold for years",
        edges=(
            File(
                name="train.txt",
                url=f"{_YAGO}train.txt",
                sha256="31f78c30627ffe143940a5dadf06562602944e58f1c766481e894a366561f7ec",
            ),
            File(
                name="valid.txt",
                url=f"{_YAGO}valid.txt",
                sha256="c99d9d520264a9f0f8ef5774436f0d3941fbb3637181b6f2ad0dd665da9d2bb2",
            ),
            File(
                name="test.txt",
                url=f"{_YAGO}test.txt",
                sha256="9b2c808c89f9045ddbc92983b84e88333fa1ce695abacd4f2531d47d9df5248a",
            ),
        ),
        licence="none stated",
        preset=Ingest(name="yago", windows=_GIVEN, reading=_FACTS),
        choice="The 189 years; the relation is the edge type.",
        num_nodes=10_585,
        num_events=201_089,
        num_snapshots=189,
    ),
    Dataset(
        name="local:julia",
        title="which Julia package depends on which, as edges appear and disappear",
        edges=(File(name="julia_dep_events.parquet"),),
        beside=(File(name="julia_nodes.parquet"),),
        licence="MIT (JuliaRegistries/General)",
        preset=Ingest(
            name="julia",
            windows=Windows(kind="every", amount="7d"),
            bounds=Bounds(start="2019-04-16"),
            reading=Reading(columns=Columns(source="src", target="dst", time="time", operation="op"), time_unit="s"),
            attributes=AttributeOptions(nodes=Path("julia_nodes.parquet"), node_id="id", features="columns:stdlib,jll"),
        ),
        choice=(
            "Weeks from 2019-04-16, where the history begins: edges older than that (time 0) are there at the start. "
            "An edge stays until an operation removes it. Features: standard library, binary wrapper."
        ),
        num_nodes=14_245,
        num_events=135_781,
        num_snapshots=384,
    ),
    Dataset(
        name="local:flights",
        title="flights between the airports of the United States in the first half of 2001",
        edges=(File(name="flights-3m.parquet"),),
        licence='US Bureau of Transportation Statistics ("other-open"), as in the npm package vega-datasets (BSD-3)',
        preset=Ingest(
            name="flights",
            windows=Windows(kind="every", amount="1d"),
            reading=Reading(columns=Columns(source="origin", target="destination", time="date")),
        ),
        choice=(
            "Days; the weight is the number of flights. The 182nd day holds the 6 flights of 2001-07-01 00:00. "
            "`--weight delay --duplicates mean` weighs by delay instead."
        ),
        num_nodes=229,
        num_events=3_000_000,
        num_snapshots=182,
    ),
    Dataset(
        name="local:rust",
        title="which author of rust-lang/rust changed which file",
        edges=(File(name="rust_author_file.parquet"),),
        licence="MIT or Apache-2.0 (the repository); the table holds numbers only",
        preset=Ingest(
            name="rust",
            windows=Windows(kind="every", amount="30d"),
            reading=Reading(
                columns=Columns(source="author", target="file", time="time"), time_unit="s", bipartite=True
            ),
        ),
        choice="30 days; an edge author -> file weighs the number of changes. Author 5 is node s:5, file 5 is t:5.",
        num_nodes=186_990,
        num_events=1_427_179,
        num_snapshots=198,
    ),
    _seasons("retrosheet-2000", "2000 to 2024", _LATER, num_nodes=6_915, num_events=4_593_022, num_snapshots=25),
    _seasons(
        "retrosheet-1903",
        "1903 to 1999",
        _EARLIER,
        num_nodes=11_992,
        num_events=10_342_061,
        num_snapshots=97,
        note=" 1904 has no record.",
    ),
    _seasons(
        "retrosheet",
        "1903 to 2024",
        _EARLIER,
        _LATER,
        num_nodes=17_755,
        num_events=14_935_083,
        num_snapshots=122,
        note=" 1904 has no record.",
    ),
)
