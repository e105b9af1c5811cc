"""Which datasets are known by name."""

from __future__ import annotations

from difflib import get_close_matches

from timeloom.errors import BadConfig
from timeloom.graph.datasets.copies import LocalCopy, fetch_dataset, local_copy
from timeloom.graph.datasets.dataset import Dataset, File
from timeloom.graph.datasets.labelled import LABELLED
from timeloom.graph.datasets.local import LOCAL
from timeloom.graph.datasets.netrepo import NETREPO
from timeloom.graph.datasets.pygt import PYGT
from timeloom.graph.datasets.snap import SNAP

__all__ = ["DATASETS", "Dataset", "File", "LocalCopy", "fetch_dataset", "find_dataset", "local_copy"]

DATASETS: tuple[Dataset, ...] = (*SNAP, *NETREPO, *PYGT, *LOCAL, *LABELLED)


def find_dataset(name: str) -> Dataset:
    """Return the dataset of this name, such as `snap:CollegeMsg`."""
    by_name = {dataset.name: dataset for dataset in DATASETS}
    if name in by_name:
        return by_name[name]
    # People leave the collection out, or mistake it, more often than they misspell the name behind it.
    spelled = {key.lower(): known for known in by_name for key in (known, known.partition(":")[2])}
    asked = name.lower()
    near = [spelled[key] for part in (asked, asked.rpartition(":")[2]) for key in get_close_matches(part, spelled, 3)]
    if near:
        raise BadConfig(f"no dataset is called {name}: did you mean {' or '.join(dict.fromkeys(near))}?")
    raise BadConfig(f"no dataset is called {name}; there are {', '.join(by_name)}")
