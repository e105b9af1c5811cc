"""What is known of a dataset: its files, where they are published, their licence, and how they become a graph."""

from __future__ import annotations

from dataclasses import dataclass

from timeloom.graph.ingest import Ingest


@dataclass(frozen=True, slots=True, kw_only=True)
class File:
    """One file of a dataset."""

    name: str
    """The name under which it is published; a copy may be compressed in another way."""
    url: str | None = None
    """None: nobody publishes it as one file, so a copy must be there."""
    sha256: str | None = None
    """The checksum of what the url gives. None: nobody here has had that very file, so a download stays unverified."""
    members: tuple[str, ...] = ()
    """What is read of an archive."""
    also: tuple[str, ...] = ()
    """Other names that copies go by."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dataset:
    """One entry of the catalogue."""

    name: str
    title: str
    edges: tuple[File, ...]
    """What is ingested."""
    beside: tuple[File, ...] = ()
    """What the preset's features and labels come from, where that is another file."""
    licence: str
    preset: Ingest
    """How it becomes a graph. Files of nodes, features and labels are named as in `edges` and `beside`, without a
    folder; `local_copy` puts the places of a copy in."""
    choice: str
    """What the preset chose, and why."""
    num_nodes: int | None = None
    num_events: int | None = None
    """How many rows there are, before self loops are left out and events of one edge in one snapshot are merged."""
    num_snapshots: int | None = None
    """How many snapshots the preset makes. None, here and above: not counted here, nor stated where it is published."""

    @property
    def files(self) -> tuple[File, ...]:
        """All files; an archive that holds edges and labels is one file."""
        return tuple({file.name: file for file in (*self.edges, *self.beside)}.values())

    @property
    def verified(self) -> bool:
        """Whether all files can be fetched, and are then known to be the ones that were meant."""
        return all(file.url is not None and file.sha256 is not None for file in self.files)
