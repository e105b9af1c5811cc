"""A folder or a tar archive with one edge list per snapshot as a source."""

from __future__ import annotations

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePosixPath

import numpy as np

from timeloom.errors import BadInput
from timeloom.graph.ingest.files import TextFile, decompressed, lines_of, natural, tar_members, whole_lines
from timeloom.graph.ingest.layout import Texts
from timeloom.graph.ingest.rows import Account, BadRows, Reading, RowBlock
from timeloom.graph.ingest.text import TextSource


class MembersSource:
    """One edge list per snapshot. A member's time is the number in its name if each has its own, else its place.

    The members of a tar archive are read where they lie and never unpacked. Hidden files are left out.
    """

    def __init__(self, path: Path, reading: Reading) -> None:
        self._path = path
        names = [name for name, _ in self._members()]
        if not names:
            raise BadInput(f"{path} holds no files: expected one edge list per snapshot")
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise BadInput(f"{path} holds {twice} more than once: unpack it and ingest the folder")
        self.moments = moments_of(names)
        self._text = TextSource([], reading, sample=((name, texts) for name, texts in self._members()))
        self.time_unit = reading.time_unit
        if reading.time_format == "yyyymmdd":
            self.time_unit = "s"
            self.moments = {name: _seconds_of(name, moment) for name, moment in self.moments.items()}
        self.size_bytes = 0

    def _members(self) -> Iterator[tuple[str, Texts]]:
        """Yield the name and the text of every member."""
        if not self._path.is_dir():
            packed_bytes = self._path.stat().st_size
            for name, member in tar_members(self._path):
                if not PurePosixPath(name).name.startswith("."):
                    where = f"{self._path}:{name}"
                    yield name, whole_lines(where, decompressed(where, member, packed_bytes), member)
            return
        for path in sorted(self._path.iterdir(), key=lambda path: natural(path.name)):
            if path.name.startswith("."):
                continue
            if not path.is_file():
                raise BadInput(f"{path} is no file: a folder of snapshots holds one edge list each and nothing else")
            yield path.name, lines_of(TextFile(path))

    def blocks(self, account: Account, bad: BadRows) -> Iterator[tuple[RowBlock, int]]:
        """Yield the good rows of all members, each with its member's time."""
        with ThreadPoolExecutor(2) as pool:
            for name, texts in self._members():
                for block, _ in self._text.read(f"{self._path}:{name}", texts, pool, account, bad):
                    block.time = np.full(block.num_rows, self.moments[name], np.int64)
                    yield block, 0


def moments_of(names: list[str]) -> dict[str, int]:
    """Return the time of each member."""
    numbers = [re.findall(r"[0-9]+", PurePosixPath(name).name.split(".")[0]) for name in names]
    single = [int(found[0]) for found in numbers if len(found) == 1 and len(found[0]) < 18]
    if len(set(single)) == len(names):
        return dict(zip(names, single, strict=True))
    return {name: place for place, name in enumerate(sorted(names, key=natural))}


def _seconds_of(name: str, moment: int) -> int:
    try:
        text = f"{moment:08d}"
        return int(np.datetime64(f"{text[:4]}-{text[4:6]}-{text[6:]}", "s").astype(np.int64))
    except ValueError:
        raise BadInput(f"{name}: {moment} is no date written as yyyymmdd") from None
