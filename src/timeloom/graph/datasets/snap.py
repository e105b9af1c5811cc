"""Which temporal graphs of the Stanford collection (SNAP) are in the catalogue.

A checksum is that of a file which came, still compressed by SNAP, through somebody's public copy; where only the text
inside came that way, there is none.
"""

from __future__ import annotations

from timeloom.graph.datasets.dataset import Dataset, File
from timeloom.graph.ingest import Columns, Ingest, Reading, Windows

_LICENCE = "none stated by SNAP; cite the paper that the dataset's page names"
_POSTS_LICENCE = "none stated by SNAP; the posts themselves are Stack Exchange content"
_DAILY, _WEEKLY = Windows(kind="every", amount="1d"), Windows(kind="every", amount="7d")
_EVENTS = Reading(columns=Columns(source="1", target="2", time="3"), separator="blank", header="no", time_unit="s")
_WEEKS = "Weeks. Self loops (answers to oneself) are left out and counted."


def _page(name: str, sha256: str | None = None, also: tuple[str, ...] = ()) -> tuple[File, ...]:
    return (File(name=name, url=f"https://snap.stanford.edu/data/{name}", sha256=sha256, also=also),)


def _ratings(*, decimals: bool) -> Reading:
    columns = Columns(source="1", target="2", weight="3", time="4")
    form = "decimal" if decimals else "integer"
    return Reading(columns=columns, separator="comma", header="no", time_unit="s", time_format=form)


SNAP = (
    Dataset(
        name="snap:CollegeMsg",
        title="messages between students of one college (also known as UCI messages)",
        edges=_page("CollegeMsg.txt.gz", "50ae2d98ed3bad9ddb18dbd495a89e5e10cfb8f7e86932827db29fc41b41f9fa"),
        licence=_LICENCE,
        preset=Ingest(name="CollegeMsg", windows=_DAILY, reading=_EVENTS),
        choice="Days.",
        num_nodes=1_899,
        num_events=59_835,
        num_snapshots=195,
    ),
    Dataset(
        name="snap:email-Eu-core-temporal",
        title="e-mail within a European research institution",
        edges=_page(
            "email-Eu-core-temporal.txt.gz", "f6cc93249978e59d1aba111b55ea10ec553917419a3be1210012b5db3580efa6"
        ),
        licence=_LICENCE,
        preset=Ingest(name="email-Eu-core-temporal", windows=_DAILY, reading=_EVENTS),
        choice="Days; 278 of them have no e-mail. Time counts seconds from the first e-mail, so dates begin in 1970.",
        num_nodes=986,
        num_events=332_334,
        num_snapshots=804,
    ),
    Dataset(
        name="snap:sx-mathoverflow",
        title="answers and comments on MathOverflow",
        edges=_page("sx-mathoverflow.txt.gz", "cdc635fda76dab06ab02ca242563fa333bb83d096571342ef0326d85ff0c04da"),
        licence=_POSTS_LICENCE,
        preset=Ingest(name="sx-mathoverflow", windows=_WEEKLY, reading=_EVENTS),
        choice=_WEEKS,
        num_nodes=24_818,
        num_events=506_550,
        num_snapshots=336,
    ),
    Dataset(
        name="snap:sx-askubuntu",
        title="answers and comments on Ask Ubuntu",
        edges=_page("sx-askubuntu.txt.gz"),
        licence=_POSTS_LICENCE,
        preset=Ingest(name="sx-askubuntu", windows=_WEEKLY, reading=_EVENTS),
        choice=_WEEKS,
    ),
    Dataset(
        name="snap:sx-superuser",
        title="answers and comments on Super User",
        edges=_page("sx-superuser.txt.gz"),
        licence=_POSTS_LICENCE,
        preset=Ingest(name="sx-superuser", windows=_WEEKLY, reading=_EVENTS),
        choice=_WEEKS,
        num_nodes=194_085,
        num_events=1_443_339,
    ),
    Dataset(
        name="snap:sx-stackoverflow",
        title="answers and comments on Stack Overflow",
        edges=_page("sx-stackoverflow.txt.gz"),
        licence=_POSTS_LICENCE,
        preset=Ingest(name="sx-stackoverflow", windows=_WEEKLY, reading=_EVENTS),
        choice=_WEEKS,
        num_nodes=2_601_977,
        num_events=63_497_050,
    ),
    Dataset(
        name="snap:wiki-talk-temporal",
        title="edits of each other's talk pages on Wikipedia",
        edges=_page("wiki-talk-temporal.txt.gz"),
        licence=_LICENCE,
        preset=Ingest(name="wiki-talk-temporal", windows=_WEEKLY, reading=_EVENTS),
        choice="Weeks. Self loops (edits of one's own page) are left out and counted.",
    ),
    Dataset(
        name="snap:soc-sign-bitcoinotc",
        title="who trusts whom on Bitcoin OTC, from -10 to 10",
        edges=_page("soc-sign-bitcoinotc.csv.gz"),
        licence=_LICENCE,
        preset=Ingest(name="soc-sign-bitcoinotc", windows=_WEEKLY, reading=_ratings(decimals=True)),
        choice="Weeks; the rating is the weight.",
        num_nodes=5_881,
        num_events=35_592,
        num_snapshots=273,
    ),
    Dataset(
        name="snap:soc-sign-bitcoinalpha",
        title="who trusts whom on Bitcoin Alpha, from -10 to 10",
        edges=_page("soc-sign-bitcoinalpha.csv.gz"),
        licence=_LICENCE,
        preset=Ingest(name="soc-sign-bitcoinalpha", windows=_WEEKLY, reading=_ratings(decimals=False)),
        choice="Weeks, 4 of them without a rating; the rating is the weight.",
        num_nodes=3_783,
        num_events=24_186,
        num_snapshots=272,
    ),
    Dataset(
        name="snap:higgs-activity_time",
        title="retweets, mentions and replies around the announcement of the Higgs boson",
        edges=_page("higgs-activity_time.txt.gz", "901b199716a23b0fc0371705e3ae9941b5c9493277aec65456abc4988674ad79"),
        licence=_LICENCE,
        preset=Ingest(
            name="higgs-activity_time",
            windows=Windows(kind="every", amount="1h"),
            reading=Reading(
                columns=Columns(source="1", target="2", time="3", type="4"),
                separator="blank",
                header="no",
                time_unit="s",
            ),
        ),
        choice="Hours; the kind of activity (RT, MT, RE) is the edge type. Self loops are left out and counted.",
        num_nodes=304_691,
        num_events=563_069,
        num_snapshots=168,
    ),
    Dataset(
        name="snap:as-733",
        title="the autonomous systems of the internet, day by day",
        edges=_page("as-733.tar.gz", also=("as733.tar.gz",)),
        licence=_LICENCE,
        preset=Ingest(
            name="as-733",
            windows=Windows(kind="given"),
            reading=Reading(columns=Columns(source="1", target="2"), separator="tab", time_format="yyyymmdd"),
        ),
        choice="The 733 days recorded, with rows in both directions already. Self loops are left out and counted.",
        num_nodes=7_716,
        num_events=11_965_533,
        num_snapshots=733,
    ),
)
