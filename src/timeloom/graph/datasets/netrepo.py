"""Which graphs of the Network Repository are in the catalogue: those that DynaHB, FlareDTDG and StarryGL train on.

The presets hold these systems' constants (PEERS 2.2): time is cut into `window` equal parts, and an edge lives for
`lags` + 1 of them. What differs, because here no row is skipped or dropped:

* They lose the edges of the first timestamp (`skiptime`; not in rec-amz-Books), those of the last timestamp (a strict
  comparison), and the one line that pandas takes for a header. Here windows reach from the first event to the last one.
* They have window - lags snapshots, each of lags + 1 whole parts, and then leave out snapshots with few edges. Here
  there are `window` snapshots. The first `lags` of them are still filling up; after that, snapshot t here begins and
  ends like snapshot t - lags there, but for the edges just named.
* They keep parallel edges and sum their weights into degrees. Here parallel edges are one edge with the summed weight:
  the same degrees, and the same aggregates.
* Like there, the two columns of stackexch and of rec-amazon-ratings share one range of ids. Judging by the peers'
  counts of nodes (545,196 and 2,146,057) user 5 and item 5 are two things there; `--bipartite` tells them apart.
"""

from __future__ import annotations

from timeloom.graph.datasets.dataset import Dataset, File
from timeloom.graph.ingest import Columns, Ingest, Reading, Windows

_LICENCE = "none stated for the data; the Network Repository asks to cite Rossi and Ahmed, AAAI 2015"
_WEIGHTED = Columns(source="1", target="2", weight="3", time="4")
_PLAIN = Columns(source="1", target="2", time="3")


def _peers(
    name: str,
    title: str,
    *,
    window: int,
    lags: int,
    separator: str = "blank",
    columns: Columns = _WEIGHTED,
    of: str = "",
) -> Dataset:
    """Return the dataset with the constants of the peers' loader; ``of`` is its name in the repository if another."""
    published = of or name
    archive = File(
        name=f"{published}.zip",
        url=f"https://nrvis.com/download/data/dynamic/{published}.zip",
        members=(f"{published}.edges",),
        also=(f"{name}.edges",) if of else (),
    )
    return Dataset(
        name=f"netrepo:{name}",
        title=title,
        edges=(archive,),
        licence=_LICENCE,
        preset=Ingest(
            name=name,
            windows=Windows(kind="snapshots", amount=str(window)),
            reading=Reading(columns=columns, separator=separator, header="no"),
            life=lags + 1,
            keep_self_loops=True,
        ),
        choice=f"The peers' constants: {window} equal windows, an edge lives for {lags + 1}; self loops are kept.",
        num_snapshots=window,
    )


NETREPO = (
    _peers("ia-slashdot-reply-dir", "replies between users of Slashdot", window=200, lags=30),
    _peers(
        "stackexch",
        "users who mark posts on Stack Overflow",
        window=200,
        lags=30,
        of="ia-stackexch-user-marks-post-und",
    ),
    _peers("rec-amazon-ratings", "ratings of products on Amazon", window=100, lags=30, separator="comma"),
    _peers("soc-flickr-growth", "friendships on Flickr as they were made", window=100, lags=30),
    _peers("soc-youtube-growth", "friendships on YouTube as they were made", window=100, lags=20),
    _peers("soc-bitcoin", "transactions between users of Bitcoin", window=100, lags=10, columns=_PLAIN),
    _peers("rec-amz-Books", "ratings of books on Amazon", window=100, lags=0, separator="comma"),
    Dataset(
        name="netrepo:ia-enron-employees",
        title="e-mail between employees of Enron",
        edges=(
            File(
                name="ia-enron-employees.txt",
                url="https://raw.githubusercontent.com/BHafsa/DynmaicGraph/5c79c1e0731c596e0661f320042428978d205f77/"
                "ia-enron-employees/ia-enron-employees.txt",
                sha256="550a509fdbbfa31dba52a7de85bc42ade8937bb1134c83bf5a3d8391061aeb34",
                also=("ia-enron-employees.edges",),
            ),
        ),
        licence=_LICENCE,
        preset=Ingest(
            name="ia-enron-employees",
            windows=Windows(kind="every", amount="7d"),
            reading=Reading(columns=_WEIGHTED, separator="blank", header="no", time_unit="s"),
            keep_self_loops=True,
        ),
        choice="Weeks; self loops (copies to oneself) are kept, and the weight is the number of e-mails.",
        num_nodes=151,
        num_events=50_572,
        num_snapshots=163,
    ),
)
