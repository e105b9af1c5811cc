"""Every row of a text table is read, or its file, line, column and reason are told; no edge is taken for a header."""

from __future__ import annotations

import bz2
import codecs
import gzip
import io
import lzma
import os
import tarfile
import zipfile
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import zstandard

from tests.graph.reference import stored
from timeloom.errors import BadConfig, BadInput, BadRow
from timeloom.graph.dynamic import open_graph
from timeloom.graph.ingest import Columns, Ingest, Reading, Windows, files, ingest, layout, members
from timeloom.graph.ingest.files import TextFile
from timeloom.graph.ingest.rows import Account, BadRows
from timeloom.graph.ingest.text import TextSource
from timeloom.graph.ingest.tokens import REASONS, Form, Reason

GIVEN = Windows(kind="given")
WEIGHTED = Reading(columns=Columns(source="1", target="2", time="3", weight="4"))
CHANGES = Reading(columns=Columns(source="1", target="2", time="3", operation="4"))
TYPED = Reading(columns=Columns(source="1", target="2", time="3", type="4"))
Row = tuple[object, ...]


@pytest.fixture(params=[1, 64, 4 << 20])
def block_bytes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Read in blocks of so few bytes that every row, mark and line break lies across a border once."""
    monkeypatch.setattr(files, "BLOCK_BYTES", request.param)
    return int(request.param)


@pytest.fixture
def first_row_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    """Judge what a table looks like by its first row alone, as if the next ones came after thousands of others."""
    monkeypatch.setattr(layout, "SAMPLE_ROWS", 0)


def put(path: Path, data: bytes | str) -> Path:
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    return path


def read(path: Path, reading: Reading, *, drop: bool = False) -> tuple[list[Row], Account, BadRows]:
    """Return all good rows of a text table, the account and the bad ones."""
    source = TextSource([TextFile(path)], reading)
    account = Account()
    bad = BadRows(account, drop=drop)
    rows: list[Row] = []
    for block, _ in source.blocks(account, bad):
        columns = [getattr(block, name) for name in ("source", "target", "time", "weight", "type", "operation")]
        lists = [
            column.tolist() if isinstance(column, np.ndarray) else column.to_pylist()
            for column in columns
            if column is not None
        ]
        rows.extend(zip(*lists, strict=True))
    return rows, account, bad


# A good row in front, the bad one, and the column it is bad in, for every reason that a text can have.
BAD: dict[Reason, list[tuple[Reading, str, str, int]]] = {
    Reason.fields: [
        (Reading(), "1,2,3", "1,2", 3), (Reading(), "1,2,3", "1", 2), (Reading(), "1,2,3", "1,2,3,4", 4),
        (Reading(), "1,2,3", "1,2,3,4,5", 4), (Reading(), "1,2,3", "x,y", 3), (Reading(), "1 2 3", "1 2", 3),
        (Reading(), "1\t2\t3", "1\t2", 3), (Reading(), "1,2,3", "1,2,3,", 4),
    ],
    Reason.missing: [
        (Reading(), "1,2,3", ",2,3", 1), (Reading(), "1,2,3", "1,,3", 2), (Reading(), "1,2,3", "1,2,", 3),
        (Reading(), "1,2,3", '1,"",3', 2), (Reading(), "1,2,3", "1, \t,3", 2), (Reading(), "1\t2\t3", "\t2\t3", 1),
        (WEIGHTED, "1,2,3,4", "1,2,3,", 4),
    ],
    Reason.not_integer: [
        (Reading(), "1,2,3", "x,2,3", 1), (Reading(), "1,2,3", "1,2.0,3", 2), (Reading(), "1,2,3", "nan,2,3", 1),
        (Reading(), "1,2,3", "1,0x2,3", 2), (Reading(), "1,2,3", '1," 2",3', 2), (Reading(), "1,2,3", "1\x00,2,3", 1),
        (Reading(), "1,2,3", "1 2,2,3", 1), (Reading(), "1,2,3", "99999999999999999999x,2,3", 1),
    ],
    Reason.negative: [
        (Reading(), "1,2,3", "-1,2,3", 1), (Reading(), "1,2,3", "1,-0,3", 2),
        (Reading(), "1,2,3", "1,-99999999999999999999,3", 2), (Reading(ids="integers"), "1,2,3", "1,-2,3", 2),
    ],
    Reason.overflow: [
        (Reading(), "1,2,3", "9223372036854775808,2,3", 1), (Reading(), "1,2,3", "1,99999999999999999999999,3", 2),
    ],
    Reason.leading_zero: [(Reading(), "1,2,3", "1,007,3", 2), (Reading(), "1,2,3", "+1,2,3", 1)],
    Reason.not_number: [
        (WEIGHTED, "1,2,3,4", "1,2,3,x", 4), (WEIGHTED, "1,2,3,4", "1,2,3,1.2.3", 4),
        (WEIGHTED, "1;2;3;4", "1;2;3;4,5", 4),
    ],
    Reason.not_finite: [
        (WEIGHTED, "1,2,3,4", "1,2,3,NaN", 4), (WEIGHTED, "1,2,3,4", "1,2,3,-inf", 4),
        (WEIGHTED, "1,2,3,4", "1,2,3,1e999", 4),
    ],
    Reason.not_time: [
        (Reading(), "1,2,3", "1,2,x", 3), (Reading(), "1,2,3", "1,2,nan", 3), (Reading(), "1,2,3", "1,2,e", 3),
        (Reading(), "1,2,2020-01-31", "1,2,2020-02-31", 3), (Reading(), "1,2,3.5", "1,2,2020-02-01", 3),
        (replace(Reading(), time_format="yyyymmdd"), "1,2,20200131", "1,2,20200132", 3),
    ],
    Reason.decimals: [(Reading(), "1,2,3", "1,2,3.5", 3), (Reading(), "1,2,3", "1,2,3e5", 3)],
    Reason.time_range: [
        (Reading(), "1,2,3", "1,2,9223372036854775808", 3), (Reading(), "1,2,3.5", "1,2,9223372036.0", 3),
        (Reading(), "1,2,3.5", "1,2,1e300", 3), (Reading(), "1,2,2020-01-01", "1,2,2300-01-01", 3),
        (Reading(), "1,2,2020-01-01", "1,2,1500-01-01", 3),
    ],
    Reason.operation: [(CHANGES, "1,2,3,+1", "1,2,3,0", 4), (CHANGES, "1,2,3,+1", "1,2,3,add", 4)],
    Reason.quote: [
        (Reading(), "1,2,3", '1,"2,3', 2), (Reading(), "1,2,3", '"1"x,2,3', 1), (Reading(), "1,2,3", '1,2,"3""', 3),
    ],
    Reason.bytes: [
        (replace(Reading(), ids="names"), "a,b,3", "a,\x01b,3", 2), (TYPED, "1,2,3,x", "1,2,3,a\x7f", 4),
        (replace(Reading(), ids="names"), "a,b,3", "\x00,b,3", 1),
    ],
}  # fmt: skip
CASES = [pytest.param(reason, *case, id=f"{reason.name}:{case[2]!r}") for reason in BAD for case in BAD[reason]]


def test_every_reason_has_a_case() -> None:
    assert set(BAD) == set(Reason) - {Reason.fine, Reason.late}
    assert set(REASONS) == set(Reason) - {Reason.fine}


@pytest.mark.usefixtures("first_row_decides")
@pytest.mark.parametrize(("reason", "reading", "good", "row", "column"), CASES)
@pytest.mark.parametrize("ending", ["\n", "\r\n"])
def test_a_bad_row_is_told_with_its_line_and_column(
    tmp_path: Path, block_bytes: int, reason: Reason, reading: Reading, good: str, row: str, column: int, ending: str
) -> None:
    before = ["# a comment", good, "", " % another", good]
    for name, lines in {"middle": [*before, row, good], "last": [*before, row], "second": [good, row, good]}.items():
        path = put(tmp_path / name, ending.join(lines))
        line = lines.index(row) + 1
        with pytest.raises(BadRow) as caught:
            read(path, reading)
        assert f"{path} line {line} column {column}: {REASONS[reason]}" in str(caught.value)
        rows, account, bad = read(path, reading, drop=True)
        assert len(rows) == lines.count(good)
        assert account.dropped == {REASONS[reason]: 1}
        assert account.read == len(rows) + 1
        assert [(place.where, place.reason) for place in bad.examples] == [
            (f"{path} line {line} column {column}", reason)
        ]
        assert account.notes.get("comment lines", 0) == sum(text.strip()[:1] in ("#", "%") for text in lines if text)
        assert account.notes.get("blank lines", 0) == lines.count("")


def test_lines_are_counted_from_the_first_of_the_file_on(tmp_path: Path, block_bytes: int) -> None:
    lines = ["# note", "", "src,dst,t", *["1,2,3"] * 20, "#", "1,2,x", "1,2,3"]
    with pytest.raises(BadRow, match=r"a\.csv line 25 column 3: a time cannot be read"):
        read(put(tmp_path / "a.csv", "\n".join(lines)), Reading(time_format="integer"))


def test_the_first_of_many_bad_rows_is_told_and_all_are_counted(tmp_path: Path, block_bytes: int) -> None:
    lines = ["1,2,3,4", *["1,2,3,x", "1,2,3,1e999", "-1,2,3,4", "1,2", "1,2,3,5"] * 30]
    path = put(tmp_path / "a.csv", "\n".join(lines))
    with pytest.raises(BadRow, match=r"a\.csv line 2 column 4: a weight is not a number.*found 'x'"):
        read(path, WEIGHTED)
    rows, account, bad = read(path, WEIGHTED, drop=True)
    assert len(rows) == 31
    dropped = (Reason.not_number, Reason.not_finite, Reason.negative, Reason.fields)
    assert account.dropped == {REASONS[reason]: 30 for reason in dropped}
    assert [place.where.split(" ", 1)[1] for place in bad.examples] == [
        "line 2 column 4", "line 3 column 4", "line 4 column 1", "line 5 column 3", "line 7 column 4",
    ]  # fmt: skip


@pytest.mark.usefixtures("first_row_decides")
def test_a_row_with_two_bad_fields_is_one_bad_row(tmp_path: Path) -> None:
    path = put(tmp_path / "a.csv", "1,2,3,4\n-1,x,y,1e999\n1,2,y,1e999\n1,2,3,1e999\n")
    _, account, bad = read(path, WEIGHTED, drop=True)
    assert account.read == 4
    assert sum(account.dropped.values()) == 3
    assert [place.where[-8:] for place in bad.examples] == ["column 1", "column 3", "column 4"]


@pytest.mark.usefixtures("first_row_decides")
def test_long_fields_are_shown_shortened(tmp_path: Path) -> None:
    path = put(tmp_path / "a.csv", "1,2,3\n" + "x" * 100 + ",2,3\n")
    with pytest.raises(BadRow, match=r"found 'x{40}\.\.\.'"):
        read(path, Reading())


EDGES = [(1, 2, 3), (4, 5, 6), (70, 8, 9)]
TEXTS: dict[str, tuple[str, Reading]] = {
    "commas": ("1,2,3\n4,5,6\n70,8,9\n", Reading()),
    "no last line break": ("1,2,3\n4,5,6\n70,8,9", Reading()),
    "CRLF": ("1,2,3\r\n4,5,6\r\n70,8,9\r\n", Reading()),
    "CR at the very end": ("1,2,3\r\n4,5,6\r\n70,8,9\r", Reading()),
    "mixed line breaks": ("1,2,3\r\n4,5,6\n70,8,9", Reading()),
    "mark": ("\ufeff1,2,3\n4,5,6\n70,8,9\n", Reading()),
    "mark before a header": ("\ufeffsource,target,time\n1,2,3\n4,5,6\n70,8,9\n", Reading()),
    "tabs": ("1\t2\t3\n4\t5\t6\n70\t8\t9\n", Reading()),
    "semicolons": ("1;2;3\n4;5;6\n70;8;9\n", Reading()),
    "pipes": ("1|2|3\n4|5|6\n70|8|9\n", Reading()),
    "blanks": ("1 2 3\n4 5 6\n70 8 9\n", Reading()),
    "many blanks": ("  1  2 \t3\n 4\t5\t 6  \n\t70 8 9\n", Reading()),
    "one blank said": ("1 2  3\n4 5 6 \n70 8 9\n", Reading(separator=" ")),
    "blanks said": ("1 2  3\n4 5 6 \n70 8 9\n", Reading(separator="blank")),
    "tabs said": ("1\t2\t3\n4\t5\t6\n70\t8\t9\n", Reading(separator="tab")),
    "a colon said": ("1:2:3\n4:5:6\n70:8:9\n", Reading(separator=":")),
    "a control character said": ("1\x012\x013\n4\x015\x016\n70\x018\x019\n", Reading(separator="\x01")),
    "blanks around": (" 1 , 2\t,3\n4,\t5 ,6\t\n70,8,9\n", Reading()),
    "quotes": ('"1","2","3"\n"4", "5" ,6\n70,8,"9"\n', Reading()),
    "comments": ("# x\n1,2,3\n%% y\n  # z\n4,5,6\n\n \t\n70,8,9\n#", Reading()),
    "other comments": ("! x\n1,2,3\n4,5,6\n!\n70,8,9\n", Reading(comment="!")),
    "no comments": ("1,2,3\n4,5,6\n70,8,9\n", Reading(comment="")),
    "header": ("source,target,time\n1,2,3\n4,5,6\n70,8,9\n", Reading()),
    "header after comments": ("# x\n\nSource,Target,Time\n1,2,3\n4,5,6\n70,8,9\n", Reading()),
    "unknown header": ("who,whom,when\n1,2,3\n4,5,6\n70,8,9\n", Reading()),
    "header in another order": ("time,dst,src\n3,2,1\n6,5,4\n9,8,70\n", Reading()),
    "quoted header": ('"src","dst","t"\n1,2,3\n4,5,6\n70,8,9\n', Reading()),
    "header with an index": (",src,dst,t\n0,1,2,3\n1,4,5,6\n2,70,8,9\n", Reading()),
    "tabs with an index": ("\tsrc\tdst\tt\n0\t1\t2\t3\n1\t4\t5\t6\n2\t70\t8\t9\n", Reading()),
    "header named by the user": (
        "a,b,c,d\n0,1,2,3\n1,4,5,6\n2,70,8,9\n", Reading(columns=Columns(source="b", target="c", time="d")),
    ),
    "header said": ("5,6,7\n1,2,3\n4,5,6\n70,8,9\n", Reading(header="yes")),
    "columns left out": (
        "x,1,\"a,b\",2,\xff,3\n,4,,5,,6\n,70,\"\",8,\x00,9\n",
        Reading(columns=Columns(source="2", target="4", time="6")),
    ),
    "blank lines of tabs": ("1\t2\t3\n\t\t\n4\t5\t6\n \t \n70\t8\t9\n", Reading()),
    "signs": ("1,2,+3\n4,5,6\n70,8,0009\n", Reading()),
}  # fmt: skip


@pytest.mark.parametrize("name", TEXTS)
def test_a_table_is_read_however_it_is_written(tmp_path: Path, block_bytes: int, name: str) -> None:
    text, reading = TEXTS[name]
    rows, account, _ = read(put(tmp_path / "a", text.encode("latin-1" if "\xff" in text else "utf-8")), reading)
    assert rows == EDGES
    others = sum(account.notes.get(f"{kind} lines", 0) for kind in ("header", "blank", "comment"))
    assert account.read + others == len(text.splitlines())


NAMED: dict[str, tuple[str, list[Row]]] = {
    "separators and quotes in quotes": ('"a,b","say ""no""",1\n"","x",2\n', [("a,b", 'say "no"', 1)]),
    "line breaks in quotes": ('a,"b\nc",1\nd,e,2\n', []),
    "quotes within a name": ('a"b,c""d,1\n', [('a"b', 'c""d', 1)]),
    "blanks within": ("New York,  Los Angeles ,1\n", [("New York", "Los Angeles", 1)]),
    "all languages": ("Zoë,北京,1\nñ,\U0001f600,2\n", [("Zoë", "北京", 1), ("ñ", "\U0001f600", 2)]),
    "other blanks are part of a name": ("a\u00a0b,\u2003c,1\n", [("a\u00a0b", "\u2003c", 1)]),
    "numbers as names": ("007,7,1\n08,+7,2\n", [("007", "7", 1), ("08", "+7", 2)]),
    "one name makes all names": ("1,2,1\n3,b,2\n", [("1", "2", 1), ("3", "b", 2)]),
}


@pytest.mark.parametrize("name", NAMED)
def test_names_are_kept_as_they_are(tmp_path: Path, block_bytes: int, name: str) -> None:
    text, expected = NAMED[name]
    path = put(tmp_path / "a.csv", text)
    if not expected:
        with pytest.raises(BadInput, match=r"a quote .*is not closed"):
            read(path, Reading())
        return
    assert read(path, Reading(header="no"), drop=True)[0] == expected


@pytest.mark.parametrize(
    ("text", "reading", "num_rows"),
    [
        # Data, although no field of the first row is a number.
        ("a,b\nc,d\n", Reading(timed=False), 2),
        ("u,v\nv,u\nu,w\n", Reading(timed=False), 3),
        ("source,target\nx,target\n", Reading(timed=False), 2),
        ("u,v\n", Reading(timed=False, header="no"), 1),
        # Data whose first row lacks something: a bad row, not a header.
        ("a,b,\nc,d,5\ne,f,6\n", Reading(), 3),
        ("a,b,NaN\nc,d,5\ne,f,6\n", Reading(), 3),
        ("a,b,2020-01-01\nc,d,2020-01-02\n", Reading(), 2),
        ("1,2,3\n4,5,6\n", Reading(), 2),
        ("-1,2,3\n4,5,6\n", Reading(), 2),
        # Headers.
        ("u,v\na,b\nc,d\n", Reading(timed=False), 2),
        ("source,target,time\n", Reading(), 0),
        ("name,friend,since\na,b,1\n", Reading(), 1),
        ("name,friend,since\na,b,2020-01-01\n", Reading(), 1),
        ("name,friend,since\na,b,1\nc,d,\ne,f,2\n", Reading(), 3),
        # A header that comes again is a bad row.
        ("src,dst,t\n1,2,3\nsrc,dst,t\n4,5,6\n", Reading(), 3),
    ],
)
def test_a_header_is_recognised_or_it_is_data(tmp_path: Path, text: str, reading: Reading, num_rows: int) -> None:
    _, account, _ = read(put(tmp_path / "a.csv", text), reading, drop=True)
    assert account.read == num_rows
    assert account.read + account.notes.get("header lines", 0) == text.count("\n")


def test_each_file_is_without_its_header(tmp_path: Path) -> None:
    paths = [put(tmp_path / name, "src,dst,t\n1,2,3\n") for name in ("a", "b")]
    report = ingest(paths, tmp_path / "g", Ingest(windows=GIVEN))
    assert report.account.notes["header lines"] == 2
    # A file that has none keeps its first row.
    put(paths[1], "7,8,3\n9,1,3\n")
    ingest(paths, tmp_path / "h", Ingest(windows=GIVEN))
    assert sorted(stored(open_graph(tmp_path / "h"))[0]) == [(1, 2, 0), (7, 8, 0), (9, 1, 0)]


@pytest.mark.parametrize("header", ["auto", "yes"])
def test_files_whose_columns_differ_are_refused(tmp_path: Path, header: str) -> None:
    paths = [put(tmp_path / "a", "src,dst,t\n1,2,3\n"), put(tmp_path / "b", "dst,src,t\n1,2,3\n")]
    with pytest.raises(BadInput, match="b names its columns dst, src, t, but the first file src, dst, t"):
        ingest(paths, tmp_path / "g", Ingest(windows=GIVEN, reading=Reading(header=header)))


def test_the_separator_is_the_one_that_cuts_all_rows_alike(tmp_path: Path) -> None:
    assert read(put(tmp_path / "a", '"a,b";c;1\n"d,,e";f;2\n'), Reading())[0] == [("a,b", "c", 1), ("d,,e", "f", 2)]
    assert read(put(tmp_path / "b", "a,x;c;1\nd,e,y;f;2\n"), Reading())[0] == [("a,x", "c", 1), ("d,e,y", "f", 2)]


@pytest.mark.parametrize("separator", ["", ",,", '"', "\n", "\r", "\0", "é", "1", "a", ".", "-", "+"])
def test_what_cannot_separate_is_refused(tmp_path: Path, separator: str) -> None:
    path = put(tmp_path / "a", "1,2,3\n")
    if separator:
        with pytest.raises(BadConfig, match="is no separator"):
            read(path, Reading(separator=separator))


@pytest.mark.parametrize(
    ("reading", "sentence"),
    [
        (Reading(comment="§"), "can only begin with ASCII"),
        (Reading(columns=Columns(source="1", target="1", time="3")), "--source and --target are both column 1"),
        (Reading(columns=Columns(source="9")), "has no such column"),
        (Reading(columns=Columns(source="²")), "has no such column"),
        (Reading(columns=Columns(source="9" * 5000)), "has no such column"),
        (Reading(columns=Columns(source="x")), "3 columns without names"),
        (Reading(timed=False, columns=Columns(weight="1", type="2")), "does not say which column is which"),
    ],
)
def test_columns_that_cannot_be_meant_are_refused(tmp_path: Path, reading: Reading, sentence: str) -> None:
    with pytest.raises(BadConfig, match=sentence):
        read(put(tmp_path / "a", "1,2,3\n4,5,6\n"), reading)


def test_times_that_are_none_are_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="column 3: '01/02/2020' is no time"):
        read(put(tmp_path / "a", "a,b,01/02/2020\nc,d,01/03/2020\n"), Reading())
    with pytest.raises(BadConfig, match="times have decimals, which --time-unit ms cannot keep"):
        read(put(tmp_path / "a", "1,2,0.5\n"), Reading(time_unit="ms"))


@pytest.mark.parametrize(
    ("values", "asked", "form"),
    [
        ("1 2 -3", "auto", Form.integer), ("1 2.5 3", "auto", Form.decimal), ("1 2e3", "auto", Form.decimal),
        ("2020-01-01 2020-01-02", "auto", Form.date), ("1 2020-01-02", "auto", Form.date),
        ("20200101 20200102", "yyyymmdd", Form.yyyymmdd), ("20200101 20200102", "auto", Form.integer),
        ("1 2", "decimal", Form.decimal), ("٣ 1.5", "auto", Form.decimal),
    ],
)  # fmt: skip
def test_the_form_of_times_is_found(tmp_path: Path, values: str, asked: str, form: Form) -> None:
    path = put(tmp_path / "a", "".join(f"1,2,{value}\n" for value in values.split()))
    assert TextSource([TextFile(path)], Reading(time_format=asked)).layout.forms[2] == form


def test_types_are_integers_where_ids_are_to_be(tmp_path: Path) -> None:
    path = put(tmp_path / "a", "1,2,3,007\n1,2,3,7\n")
    assert [row[3] for row in read(path, TYPED)[0]] == ["007", "7"]
    assert [row[3] for row in read(path, replace(TYPED, ids="integers"))[0]] == [7, 7]


@pytest.mark.parametrize("text", ["", "\n\n", "# only\n% this", "\ufeff", " \t\r\n"])
def test_a_file_without_rows_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(BadInput, match="no rows at all"):
        read(put(tmp_path / "a", text), Reading())


PLAIN = b"1,2,3\n4,5,6\n70,8,9\n" * 50
PACKED: dict[str, Callable[[bytes], bytes]] = {
    "gz": gzip.compress,
    "zst": lambda data: zstandard.ZstdCompressor(write_checksum=True).compress(data),
    "bz2": bz2.compress,
    "xz": lzma.compress,
}


@pytest.mark.parametrize("kind", PACKED)
def test_compressed_files_are_read_whatever_they_are_called(tmp_path: Path, block_bytes: int, kind: str) -> None:
    half = len(PLAIN) // 2
    for data in (PACKED[kind](PLAIN), PACKED[kind](PLAIN[:half]) + PACKED[kind](PLAIN[half:])):
        assert read(put(tmp_path / "a.csv", data), Reading())[0] == EDGES * 50


@pytest.mark.parametrize("kind", PACKED)
def test_a_compressed_file_that_is_cut_or_goes_on_is_refused(tmp_path: Path, kind: str) -> None:
    data = PACKED[kind](PLAIN)
    broken = [data[:size] for size in (7, len(data) // 2, len(data) - 5, len(data) - 1)]
    broken += [data + data[:-1], data + data[:8], data + b"garbage at the end", data[:-9] + b"x" + data[-8:]]
    for number, text in enumerate(broken):
        with pytest.raises(BadInput, match="is broken or cut off"):
            read(put(tmp_path / f"{number}.csv", text), Reading())


def test_xz_files_may_be_padded(tmp_path: Path) -> None:
    padded = lzma.compress(PLAIN) + bytes(8) + lzma.compress(PLAIN) + bytes(4)
    assert len(read(put(tmp_path / "a.xz", padded), Reading())[0]) == 300


def zipped(names: dict[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as archive:
        for name, data in names.items():
            archive.writestr(name, data)
    return out.getvalue()


def test_members_of_a_zip_are_read(tmp_path: Path, block_bytes: int) -> None:
    path = put(tmp_path / "a.zip", zipped({"x.csv": b"1,2,3\n", "y.csv.gz": gzip.compress(b"4,5,6\n"), "d/": b""}))
    ingest([f"{path}:x.csv,y.csv.gz"], tmp_path / "g", Ingest(windows=GIVEN))
    assert [list(edges) for edges in stored(open_graph(tmp_path / "g"))] == [[(1, 2, 0)], [(4, 5, 0)]]
    with pytest.raises(BadConfig, match="say which"):
        ingest(path, tmp_path / "h", Ingest(windows=GIVEN))
    with pytest.raises(BadInput, match=r"has no member 'z\.csv'"):
        ingest(f"{path}:z.csv", tmp_path / "h", Ingest(windows=GIVEN))
    only = put(tmp_path / "b.zip", zipped({"x.csv": PLAIN}))
    assert ingest(only, tmp_path / "i", Ingest(windows=GIVEN)).account.read == 150
    with pytest.raises(BadInput, match=r"b\.bin is a zip archive"):
        ingest(put(tmp_path / "b.bin", zipped({"x.csv": PLAIN})), tmp_path / "h", Ingest(windows=GIVEN))


def test_a_broken_or_locked_zip_is_refused(tmp_path: Path) -> None:
    data = zipped({"x.csv": PLAIN}, zipfile.ZIP_STORED)
    altered = data.replace(b"70,8,9", b"70,8,8", 1)
    locked = bytearray(data)
    locked[6] |= 1
    locked[data.rindex(b"PK\x01\x02") + 8] |= 1
    method = bytearray(data)
    method[8] = method[data.rindex(b"PK\x01\x02") + 10] = 99
    name = bytearray(zipped({"é.csv": PLAIN}))
    name[name.rindex("é".encode())] = 0xFF
    for number, text in enumerate(
        (data[:-30], data[: len(data) // 2], altered, bytes(locked), bytes(method), bytes(name))
    ):
        with pytest.raises(BadInput, match="is broken or cut off"):
            ingest(put(tmp_path / f"{number}.zip", text), tmp_path / "g", Ingest(windows=GIVEN))


def test_wide_text_is_refused(tmp_path: Path, block_bytes: int) -> None:
    for encoding, mark in (("utf-16-le", codecs.BOM_UTF16_LE), ("utf-16-be", codecs.BOM_UTF16_BE)):
        text = "1,2,3\n4,5,6\n".encode(encoding)
        with pytest.raises(BadInput, match="is UTF-16 text"):
            read(put(tmp_path / "a", mark + text), Reading())
        with pytest.raises(BadInput, match="is UTF-16 text"):
            read(put(tmp_path / "b", text), Reading())
    with pytest.raises(BadInput, match="is a Parquet file"):
        read(put(tmp_path / "c", b"PAR1" + bytes(100)), Reading())


def test_a_line_without_end_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="a line of more than"):
        read(put(tmp_path / "a", b"1,2,3\n" + b"x" * (9 << 20)), Reading())


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="cannot be read: Is a directory"):
        read(tmp_path, Reading())
    with pytest.raises(BadInput, match="cannot be read: No such file"):
        read(tmp_path / "none", Reading())
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(BadInput, match="is a pipe or a device"):
        read(tmp_path / "pipe", Reading())


def tarred(names: Mapping[str, bytes | None], kind: bytes = tarfile.REGTYPE) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name, data in names.items():
            info = tarfile.TarInfo(name)
            info.type = tarfile.DIRTYPE if data is None else kind
            info.size = len(data or b"") if kind == tarfile.REGTYPE else 0
            info.linkname = "x" if kind != tarfile.REGTYPE else ""
            archive.addfile(info, io.BytesIO(data or b""))
    return out.getvalue()


MEMBERS = {"d/e10.txt": b"1 2\n2 3\n", "d/e9.txt": b"# none\n", "d/e2.txt": gzip.compress(b"3 1\n")}


def snapshots_of(path: Path, out: Path, reading: Reading | None = None) -> tuple[list[int], list[int]]:
    """Return the start and the number of edges of every snapshot that a folder or archive makes."""
    ingest(path, out, Ingest(reading=reading or Reading()))
    graph = open_graph(out)
    return graph.starts.tolist(), graph.statistics["edges"].tolist()


@pytest.mark.parametrize("kind", ["plain", *PACKED])
def test_each_member_of_a_tar_is_a_snapshot(tmp_path: Path, block_bytes: int, kind: str) -> None:
    pack = PACKED.get(kind, bytes)
    path = put(tmp_path / "a.tar", pack(tarred({"d": None, **MEMBERS, "d/._e2.txt": b"\x00\x05"})))
    assert snapshots_of(path, tmp_path / "g") == ([2, 9, 10], [1, 0, 2])


def test_each_file_of_a_folder_is_a_snapshot(tmp_path: Path, block_bytes: int) -> None:
    (tmp_path / "d").mkdir()
    for name, data in MEMBERS.items():
        put(tmp_path / name, data)
    put(tmp_path / "d" / ".hidden", b"\x00")
    assert snapshots_of(tmp_path / "d", tmp_path / "g") == ([2, 9, 10], [1, 0, 2])
    put(tmp_path / "d" / "one.txt", b"7 8\n")
    assert snapshots_of(tmp_path / "d", tmp_path / "h") == ([0, 1, 2, 3], [1, 0, 2, 1])
    (tmp_path / "d" / "deeper").mkdir()
    with pytest.raises(BadInput, match="deeper is no file"):
        snapshots_of(tmp_path / "d", tmp_path / "i")


def test_a_bad_row_of_a_member_is_told_with_its_place(tmp_path: Path) -> None:
    path = put(tmp_path / "a.tar", tarred({"x1": b"1 2\n", "x2": b"1 2\n1\n"}))
    with pytest.raises(BadRow, match=r"a\.tar:x2 line 2 column 2: another number of fields"):
        snapshots_of(path, tmp_path / "g")


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (tarred(MEMBERS)[:700], "is broken or cut off"),
        (tarred(MEMBERS)[:1024], "does not end with zeros"),
        (tarred(MEMBERS)[:512] + tarred(MEMBERS)[512:].replace(b"ustar", b"usxar", 1), "does not end with zeros"),
        (tarred({"x": b"1 2\n"}) + tarred({"y": b"1 2\n"}), "does not end with zeros"),
        (gzip.compress(tarred(MEMBERS))[:-9], "is broken or cut off"),
        (tarred({}), "holds no files"),
        (b"", "is broken or cut off"),
        (b"no tar" * 200, "is broken or cut off"),
        (tarred({"x": b"1 2\n"}) + b"", ""),
        (tarred({"x": b""}, tarfile.LNKTYPE), "holds x, which is a link"),
        (tarred({"x": b""}, tarfile.SYMTYPE), "holds x, which is a link"),
        (tarred({"x": b""}, tarfile.FIFOTYPE), "holds x, which is a link or no file"),
        (tarred({"x": b"1 2\n"})[:1024] + tarred({"x": b"1 2\n"}), "holds x more than once"),
    ],
)
def test_a_tar_that_is_not_whole_is_refused(tmp_path: Path, data: bytes, sentence: str) -> None:
    path = put(tmp_path / "a.tar", data)
    if not sentence:
        assert snapshots_of(path, tmp_path / "g") == ([0], [1])
        return
    with pytest.raises(BadInput, match=sentence):
        snapshots_of(path, tmp_path / "g")


def test_the_times_of_members_are_their_numbers_or_their_places() -> None:
    assert members.moments_of(["a/x2.txt", "a/x10.txt"]) == {"a/x2.txt": 2, "a/x10.txt": 10}
    assert members.moments_of(["x1", "x01", "x2"]) == {"x01": 0, "x1": 1, "x2": 2}
    assert members.moments_of(["2020-01-02", "2020-01-01"]) == {"2020-01-01": 0, "2020-01-02": 1}
    assert members.moments_of(["b²", "²"]) == {"b²": 0, "²": 1}
    huge = "9" * 5000
    assert members.moments_of([huge, "1"]) == {"1": 0, huge: 1}


def test_members_may_be_days(tmp_path: Path) -> None:
    path = put(tmp_path / "a.tar", tarred({"as20000102.txt": b"1 2\n", "as20000101.txt": b"1 3\n"}))
    reading = Reading(time_format="yyyymmdd")
    assert snapshots_of(path, tmp_path / "g", reading) == ([946_684_800, 946_771_200], [1, 1])
    with pytest.raises(BadInput, match="20000132 is no date written as yyyymmdd"):
        snapshots_of(put(tmp_path / "b.tar", tarred({"x20000132": b"1 2\n"})), tmp_path / "h", reading)


@pytest.mark.usefixtures("first_row_decides")
def test_nothing_runs_on_after_a_bad_row(tmp_path: Path) -> None:
    path = put(tmp_path / "a", "1,2,3\n" * 10 + "x,2,3\n" + "1,2,3\n" * 100)
    source, account = TextSource([TextFile(path)], Reading()), Account()
    with ThreadPoolExecutor(1) as pool:
        blocks = source.read("a", files.lines_of(TextFile(path)), pool, account, BadRows(account, drop=False))
        with pytest.raises(BadRow, match="a line 11 column 1"):
            list(blocks)
