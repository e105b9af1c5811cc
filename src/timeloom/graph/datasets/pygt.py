"""Which signals of PyTorch Geometric Temporal are in the catalogue."""

from __future__ import annotations

from timeloom.graph.datasets.dataset import Dataset, File
from timeloom.graph.ingest import Ingest

_FOLDER = (
    "https://raw.githubusercontent.com/benedekrozemberczki/pytorch_geometric_temporal/"
    "adefe44265ad8faf239fd6cf3b59b95ca3ee60aa/dataset/"
)


def _signal(
    name: str, title: str, *, file: str, sha256: str, choice: str, num_nodes: int, num_events: int, num_snapshots: int
) -> Dataset:
    return Dataset(
        name=f"pygt:{name}",
        title=title,
        edges=(File(name=file, url=_FOLDER + file, sha256=sha256),),
        licence="MIT (PyTorch Geometric Temporal)",
        preset=Ingest(name=name, keep_self_loops=True),
        choice=f"{choice} Self loops are kept, as there.",
        num_nodes=num_nodes,
        num_events=num_events,
        num_snapshots=num_snapshots,
    )


PYGT = (
    _signal(
        "chickenpox",
        "weekly chickenpox cases in the counties of Hungary",
        file="chickenpox.json",
        sha256="724b48cfb274b2ecbb855bdb99b970b5ef9dd3671694fa477435dc1e08293735",
        choice="One topology; the cases of each week are the labels.",
        num_nodes=20,
        num_events=102,
        num_snapshots=521,
    ),
    _signal(
        "pedalme",
        "weekly bicycle deliveries in the quarters of London",
        file="pedalme_london.json",
        sha256="8c42b893441901fb805c4f0f937543d5bb9297884ac3dec7622a3e9f7c35a79b",
        choice="One topology with weights; the deliveries of each week are the labels.",
        num_nodes=15,
        num_events=225,
        num_snapshots=35,
    ),
    _signal(
        "england-covid",
        "daily mobility between, and COVID-19 cases in, the regions of England",
        file="england_covid.json",
        sha256="497056cc4585b58951fd5cd17554fe0c535f68ea0c907a5b5727ae30e3913450",
        choice="A snapshot a day with that day's mobility as weights; the day's cases are the labels.",
        num_nodes=129,
        num_events=82_529,
        num_snapshots=61,
    ),
    _signal(
        "montevideo-bus",
        "hourly passengers at the bus stops of Montevideo",
        file="montevideo_bus.json",
        sha256="37d9c6286d474077b5c05173c1570c4da42c387013116daa8862c7a6cab86a75",
        choice="One topology with metres as weights; the passengers of each hour are the labels; ids are stop codes.",
        num_nodes=675,
        num_events=690,
        num_snapshots=744,
    ),
    _signal(
        "twitter-tennis-rg17",
        "hourly mentions between Twitter accounts during Roland-Garros 2017",
        file="twitter_tennis_rg17.json",
        sha256="1f9c3501a96881bbc26c899483c3fce73f36081f2df29d91fcd33c6dc4edf9c8",
        choice="A snapshot an hour with that hour's mentions as weights, 2 features and the label of that hour.",
        num_nodes=1_000,
        num_events=40_839,
        num_snapshots=120,
    ),
)
