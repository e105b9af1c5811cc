"""Whatever bytes are ingested, what comes out is a sentence, or the graph that a slow reading of them gives."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import os
import random
import re
import sys
import tarfile
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from tests.graph.reference import Edges, Event, snapshots, stored
from tests.graph.text_reference import Read, read
from timeloom.errors import BadRow, TimeloomError
from timeloom.graph.check import check
from timeloom.graph.dynamic import open_graph
from timeloom.graph.ingest import Columns, Ingest, Reading, Report, Windows, files, ingest
from timeloom.graph.ingest.files import TextFile
from timeloom.graph.ingest.layout import Layout
from timeloom.graph.ingest.text import TextSource
from timeloom.graph.ingest.tokens import REASONS, Role

GIVEN = Windows(kind="given")
NUMBERS = [
    b"0", b"-1", b"007", b"+3", b"9223372036854775807", b"9223372036854775808", b"-9223372036854775807", b"1e3",
    b"1e999",
    b"1e-999", b"nan", b"inf", b"1.5", b"0.30000000000000004", b".", b"-", b"", b" ", b"99999999999999999999999", b"x",
    b"1_0", b"0x1", b"2020-02-29", b"2020-02-30", b"2020-01-01T00:00:00.5+01:00", b"1600-01-01", b"20200101",
    b"\xc3\xa9",
    b"\xff", b"\x00", b'"', b'"1"', b'""', b'"a', b"#", b"\xef\xbb\xbf",
]  # fmt: skip


@dataclass(frozen=True)
class Table:
    """A text table as somebody might write it, and how it is read."""

    data: bytes
    reading: Reading
    separator: bytes


def some_table(rng: random.Random) -> Table:
    """Return a good text table of one of many styles."""
    separator = rng.choice([b",", b"\t", b";", b"|", b" "])
    names = rng.random() < 0.3
    times = rng.choice(["plain", "seconds", "decimal", "date", "none"])
    extra = rng.choice(["", "weight", "weight", "type"])
    rows = []
    for _ in range(rng.randrange(1, 40)):
        moment = rng.randrange(12)
        time = {
            "plain": f"{moment}", "seconds": f"{1_600_000_000 + 3600 * moment}",
            "decimal": f"{moment}.{moment * 25:03}",
            "date": f"2020-01-{moment + 1:02}" + ("" if separator == b" " or moment % 2 else " 10:00"), "none": "",
        }[times]  # fmt: skip
        ends = [f"{'n' * names}{rng.randrange(9)}" for _ in range(2)]
        last = {"": "", "weight": rng.choice(["1", "2.5", "-3", "0.1", "0"]), "type": rng.choice("ab")}[extra]
        rows.append([field.encode() for field in (*ends, time, last) if field])
    header = [b"src", b"dst"] + [b"time"] * (times != "none") + [extra.encode()] * bool(extra)
    if has_header := rng.random() < 0.4:
        rows.insert(0, header)
    quoted = separator != b" " and rng.random() < 0.2
    lines = [
        separator.join(b'"%s"' % field if quoted and rng.random() < 0.5 else field for field in row) for row in rows
    ]
    if rng.random() < 0.3:
        lines.insert(rng.randrange(len(lines) + 1), rng.choice([b"# note", b"", b"  ", b"%"]))
    data = rng.choice([b"\n", b"\n", b"\r\n"]).join(lines) + rng.choice([b"\n", b""])
    places = [str(place) for place in range(1, len(header) + 1)]
    columns = dict(zip([name.decode() for name in header], places, strict=True))
    reading = Reading(
        columns=Columns(
            source="1", target="2", time=columns.get("time"), weight=columns.get("weight"), type=columns.get("type")
        ),
        timed=times != "none",
        separator=rng.choice(["auto", {b" ": "blank", b"\t": "tab"}.get(separator, separator.decode())]),
        header=rng.choice(["auto", "yes" if has_header else "no"]),
        ids=rng.choice(["auto", "auto", "names", "integers"]),
        time_format={"plain": "integer", "seconds": "auto", "decimal": "decimal", "date": "date", "none": "auto"}[times]
        if rng.random() < 0.5
        else "auto",
    )
    return Table(data, reading, separator)


def spoilt(rng: random.Random, table: Table) -> bytes:
    """Return the table with some of its text changed as tables get changed."""
    data = table.data
    for _ in range(rng.choice([0, 1, 1, 1, 2, 4])):
        lines = data.split(b"\n")
        place = rng.randrange(len(lines))
        fields = lines[place].split(table.separator)
        change = rng.randrange(8)
        if change == 0:
            data = flipped(rng, data)
        elif change == 1:
            data = data[: rng.randrange(len(data) + 1)]
        elif change == 2:
            other = rng.choice([b",", b"\t", b";", b" ", b"|"])
            lines[place] = lines[place].replace(table.separator, other)
            data = data.replace(table.separator, other) if rng.random() < 0.5 else b"\n".join(lines)
        elif change == 3:
            column = rng.randrange(4)
            short = [table.separator.join(line.split(table.separator)[:column]) for line in lines]
            data = (
                b"\n".join(short) if rng.random() < 0.3 else b"\n".join([*lines[:place], short[place], *lines[place:]])
            )
        elif change == 4:
            fields[rng.randrange(len(fields))] = rng.choice(NUMBERS)
            data = b"\n".join([*lines[:place], table.separator.join(fields), *lines[place + 1 :]])
        elif change == 5:
            at = rng.randrange(len(data) + 1)
            data = data[:at] + rng.choice([rng.randbytes(rng.randrange(1, 9)), rng.choice(NUMBERS)]) + data[at:]
        elif change == 6:
            data = b"\n".join(
                [*lines[:place], table.separator.join([*fields, rng.choice(NUMBERS)]), *lines[place + 1 :]]
            )
        else:
            data = (
                rng.randbytes(rng.randrange(200)) if rng.random() < 0.2 else data + data[: rng.randrange(len(data) + 1)]
            )
    return data


def flipped(rng: random.Random, data: bytes) -> bytes:
    """Return bytes with a few bits changed, or a piece cut out, cut off or put in."""
    out = bytearray(data)
    change = rng.randrange(5)
    at = rng.randrange(len(out) + 1)
    if change == 0:
        return bytes(out[:at])
    if change == 1:
        return bytes(out[:at] + out[at + rng.randrange(1, 40) :])
    if change == 2:
        return bytes(out[:at] + rng.randbytes(rng.randrange(1, 20)) + out[at:])
    for _ in range(rng.randrange(1, 4) if out else 0):
        out[rng.randrange(len(out))] ^= 1 << rng.randrange(8)
    return bytes(out)


def ingested(source: Path, out: Path, options: Ingest) -> Report | TimeloomError:
    """Return what an ingest says, in success or in a sentence; anything else is raised."""
    try:
        found: Report | TimeloomError = ingest(source, out, options)
    except TimeloomError as error:
        found = error
    assert isinstance(found, Report) == out.exists(), "a failed ingest leaves nothing"
    return found


def read_text(rng: random.Random, folder: Path) -> str:
    """Ingest a spoilt text table, as it is or packed, and compare it with a slow reading; return what came of it."""
    table = some_table(rng)
    data = spoilt(rng, table)
    pack = rng.choice([bytes, bytes, bytes, *PACKED.values()])
    path = folder / "table.csv"
    path.write_bytes(pack(data))
    windows = None if not table.reading.timed else rng.choice([GIVEN, GIVEN, Windows(kind="snapshots", amount="3")])
    options = Ingest(windows=windows, reading=table.reading, drop_bad_rows=rng.random() < 0.7)
    found = ingested(path, folder / "g", options)
    try:
        layout = TextSource([TextFile(path)], table.reading).layout
    except TimeloomError:
        assert isinstance(found, TimeloomError)
        return "refused"
    expected = read(data, layout)
    if not options.drop_bad_rows and expected.bad:
        line, column, reason = expected.bad[0]
        assert isinstance(found, BadRow), found
        assert f"line {line} column {column}: {REASONS[reason]}" in str(found)
    elif isinstance(found, TimeloomError):
        usable = [row for row in expected.rows if row[Role.source] != row[Role.target]]
        sentences = "no row is left|more windows than there are ticks" if usable else "no row is left"
        assert re.search(sentences, str(found)), found
        assert not usable or windows != GIVEN
    else:
        compare(found, folder / "g", expected, options, layout)
    return "refused" if isinstance(found, TimeloomError) else "read"


def compare(report: Report, out: Path, expected: Read, options: Ingest, layout: Layout) -> None:
    """Demand that a graph and its account are what a slow reading gives."""
    loops = sum(row[Role.source] == row[Role.target] for row in expected.rows)
    dropped = {REASONS[reason]: count for reason, count in expected.reasons.items()}
    account = report.account
    assert account.read == len(expected.rows) + len(expected.bad)
    assert account.dropped == dropped | ({"self loop": loops} if loops else {})
    assert account.kept + account.merged == len(expected.rows) - loops
    assert {what: count for what, count in account.notes.items() if what.endswith("lines")} == expected.others
    assert account.notes.get("times rounded to a billionth", 0) == expected.num_rounded
    events = [event_of(row) for row in expected.rows if row[Role.source] != row[Role.target]]
    times = sorted({event.time for event in events})
    starts = times if times else [0]
    if options.windows is not None and options.windows.kind == "snapshots":
        starts = [times[0] + i * (times[-1] - times[0] + 1) // 3 for i in range(3)]
    graph = open_graph(out)
    assert graph.starts.tolist() == starts
    assert stored(graph) == snapshots(events, starts)
    assert graph.num_nodes == len({row[role] for row in expected.rows for role in (Role.source, Role.target)})
    assert list(check(out)) == []


def event_of(row: dict[Role, Any]) -> Event:
    weight, kind = row.get(Role.weight, 1.0), row.get(Role.type, 0)
    return Event(row[Role.source], row[Role.target], row.get(Role.time, 0), weight, kind)


PACKED: dict[str, Callable[[bytes], bytes]] = {
    "gz": gzip.compress,
    "zst": lambda data: zstandard.ZstdCompressor(write_checksum=True).compress(data),
    "bz2": bz2.compress,
    "xz": lzma.compress,
}
ROWS = {"source": [3, 1, 2, 1], "target": [1, 2, 3, 3], "time": [1, 1, 2, 3], "weight": [1.0, 2.5, 3.0, -1.0]}
TEXT = b"3,1,1\n1,2,1\n2,3,2\n1,3,3\n" * 9
NAMED = Reading(columns=Columns(source="source", target="target", time="time", weight="weight"))
BY_MEMBER = Ingest(windows=None, reading=Reading(timed=False))


def zipped(data: bytes) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("table.csv", data)
    return out.getvalue()


def tarred(data: bytes) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as archive:
        for number in range(3):
            info = tarfile.TarInfo(f"e{number}.csv")
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return out.getvalue()


def parquet(data: bytes) -> bytes:
    out = io.BytesIO()
    pq.write_table(pa.table(ROWS), out)
    return out.getvalue()


def arrow(data: bytes) -> bytes:
    out = io.BytesIO()
    table = pa.table(ROWS)
    with pa.ipc.new_file(out, table.schema) as writer:
        writer.write_table(table)
    return out.getvalue()


def npz(data: bytes) -> bytes:
    out = io.BytesIO()
    arrays: dict[str, Any] = {name: np.array(column) for name, column in ROWS.items()}
    np.savez_compressed(out, **arrays)
    return out.getvalue()


def signal(data: bytes) -> bytes:
    edges = [[0, 1], [1, 2], [2, 0]]
    return json.dumps({"edges": edges, "weights": [1.0, 2.0, 0.5], "FX": [[1.0, 2.0, 3.0], [2.0, 3.0, 4.0]]}).encode()


@dataclass(frozen=True)
class Kind:
    """A kind of file: its ending, how text becomes one, how it is ingested, and if a change cannot go unnoticed."""

    ending: str
    make: Callable[[bytes], bytes]
    options: Ingest
    sealed: bool


TIMED = Ingest(windows=GIVEN)
KINDS = {
    **{kind: Kind(f".csv.{kind}", pack, TIMED, sealed=True) for kind, pack in PACKED.items()},
    "zip": Kind(".zip", zipped, TIMED, sealed=True),
    "tar": Kind(".tar.gz", tarred, BY_MEMBER, sealed=True),
    "parquet": Kind(".parquet", parquet, Ingest(windows=GIVEN, reading=NAMED), sealed=False),
    "arrow": Kind(".arrow", arrow, Ingest(windows=GIVEN, reading=NAMED), sealed=False),
    "npz": Kind(".npz", npz, Ingest(windows=GIVEN, reading=NAMED), sealed=False),
    "json": Kind(".json", signal, Ingest(), sealed=False),
}


def read_broken(rng: random.Random, folder: Path, kind: Kind) -> str:
    """Ingest a file whose bytes were changed after it was written; return what came of it."""
    whole = kind.make(TEXT)
    data = flipped(rng, whole)
    path = folder / f"file{kind.ending}"
    path.write_bytes(data)
    found = ingested(path, folder / "g", kind.options)
    if isinstance(found, TimeloomError):
        return "refused"
    assert list(check(folder / "g")) == []
    if kind.sealed:
        path.write_bytes(whole)
        ingest(path, folder / "whole", kind.options)
        assert contents(folder / "g") == contents(folder / "whole")
    return "read"


def contents(out: Path) -> tuple[list[int], list[Edges]]:
    graph = open_graph(out)
    return graph.starts.tolist(), stored(graph)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read in small blocks, so that their borders matter, and do not wait for the disk."""
    monkeypatch.setattr(os, "fsync", lambda file: None)
    monkeypatch.setattr(files, "BLOCK_BYTES", 50)


def folders(tmp_path: Path, count: int) -> Iterator[tuple[int, Path]]:
    for number in range(count):
        folder = tmp_path / str(number)
        folder.mkdir()
        yield number, folder
        for path in sorted(folder.rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
        folder.rmdir()


@pytest.mark.parametrize("part", range(4))
def test_spoilt_text_gives_a_sentence_or_the_right_graph(tmp_path: Path, part: int) -> None:
    for number, folder in folders(tmp_path, 60):
        read_text(random.Random(f"text {part} {number}"), folder)


@pytest.mark.parametrize("name", KINDS)
def test_a_broken_file_gives_a_sentence_or_the_right_graph(tmp_path: Path, name: str) -> None:
    for number, folder in folders(tmp_path, 30):
        read_broken(random.Random(f"{name} {number}"), folder, KINDS[name])


@pytest.mark.slow
@pytest.mark.parametrize("part", range(10))
def test_ten_thousand_spoilt_texts(tmp_path: Path, part: int) -> None:
    for number, folder in folders(tmp_path, 1000):
        read_text(random.Random(f"more text {part} {number}"), folder)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(10))
@pytest.mark.parametrize("name", KINDS)
def test_ten_thousand_broken_files_of_each_kind(tmp_path: Path, name: str, part: int) -> None:
    for number, folder in folders(tmp_path, 1000):
        read_broken(random.Random(f"more {name} {part} {number}"), folder, KINDS[name])


def main() -> None:
    """Ingest so many bad files of a kind, or texts, from a number on, and print what came of them.

    `python -m tests.graph.test_fuzz 1000 npz 0`
    """
    count, name, first = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    told: dict[str, Any] = {"name": name, "tried": 0, "refused": 0, "read": 0, "slowest_s": 0.0}
    os.fsync = lambda fd: None
    files.BLOCK_BYTES = 50
    with tempfile.TemporaryDirectory() as home:
        for number, folder in folders(Path(home), count):
            rng, began = random.Random(f"{name} from {first} {number}"), time.monotonic()
            outcome = read_text(rng, folder) if name == "text" else read_broken(rng, folder, KINDS[name])
            told |= {"tried": told["tried"] + 1, outcome: told[outcome] + 1}
            told["slowest_s"] = max(told["slowest_s"], time.monotonic() - began)
    sys.stdout.write(json.dumps(told) + "\n")


if __name__ == "__main__":
    main()
