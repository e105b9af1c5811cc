"""What comes from elsewhere is data: nothing of it is executed, unpacked beyond a limit, or written outside."""

from __future__ import annotations

import ast
import bz2
import gzip
import io
import json
import lzma
import os
import pickle
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import xxhash
import zstandard

from tests.graph.damage import edit_manifest
from tests.train.small_runs import drift, small
from timeloom.cli import run
from timeloom.config import MAX_DEPTH, parse_sets, read_toml
from timeloom.errors import BadConfig, BadInput, BadRun, BadStore, TimeloomError, TooLarge
from timeloom.graph.dynamic import open_graph
from timeloom.graph.ingest import AttributeOptions, Columns, Ingest, Reading, Windows, ingest, signals, unpacked
from timeloom.graph.sizes import read_sizes
from timeloom.graph.store import MANIFEST
from timeloom.plan.machine import costs_at
from timeloom.records import read, read_config
from timeloom.records.seal import seal_config
from timeloom.train import checkpoint
from timeloom.train.reopen import settings_of_run
from timeloom.train.runs import train

PACKAGE = Path(__file__).resolve().parents[1] / "src" / "timeloom"
GIVEN = Ingest(windows=Windows(kind="given"))
BY_NAME = Ingest(
    windows=Windows(kind="given"),
    reading=Reading(columns=Columns(source="source", target="target", time="time")),
)  # fmt: skip

# Modules that execute what they read, or unpack it to disk, and calls that do.
MODULES = {
    "pickle", "cPickle", "_pickle", "dill", "cloudpickle", "joblib", "marshal", "shelve", "yaml", "multiprocessing",
    "runpy", "code", "pty", "telnetlib", "xmlrpc", "torch.multiprocessing", "torch.distributed.rpc",
    "torch.distributed.checkpoint", "torch.package",
}  # fmt: skip
CALLS = {
    "eval", "exec", "compile", "__import__", "torch.load", "torch.save", "torch.jit.load",
    "os.system", "os.popen", "ProcessPoolExecutor", "read_pickle", "to_pickle", "extractall", "unpack_archive",
    "all_gather_object", "broadcast_object_list", "gather_object", "scatter_object_list", "send_object_list",
    "recv_object_list", "loads_pickle", "mktemp",
}  # fmt: skip
LOADS_CODE = {"nn/models.py"}
"""The one file that runs a user's file: --model FILE.py:Class."""


def forbidden(text: str, name: str) -> Iterator[str]:
    """Yield what a source file does that could execute or unpack what it reads."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            found = [one.name for one in node.names] if isinstance(node, ast.Import) else [node.module or ""]
            found += [f"{node.module}.{one.name}" for one in node.names] if isinstance(node, ast.ImportFrom) else []
            for module in found:
                if any(f"{module}.".startswith(f"{bad}.") for bad in MODULES):
                    yield f"{name}:{node.lineno}: imports {module}"
        if not isinstance(node, ast.Call):
            continue
        dotted = ast.unparse(node.func)
        last = dotted.rpartition(".")[2]
        named = {one.arg: ast.unparse(one.value) for one in node.keywords}
        if dotted in CALLS or (last in CALLS and last not in ("eval", "compile")):
            yield f"{name}:{node.lineno}: calls {dotted}"
        if dotted in ("np.load", "numpy.load", "np.lib.format.read_array") and named.get("allow_pickle") != "False":
            yield f"{name}:{node.lineno}: {dotted} without allow_pickle=False"
        if named.get("shell") == "True" or named.get("allow_pickle") == "True" or named.get("weights_only") == "False":
            yield f"{name}:{node.lineno}: {dotted} with {named}"
        if last in ("exec_module", "spec_from_file_location") and name not in LOADS_CODE:
            yield f"{name}:{node.lineno}: runs a file"


def test_nothing_in_the_package_executes_or_unpacks_what_it_reads() -> None:
    files = sorted(PACKAGE.rglob("*.py"))
    assert len(files) > 200
    found = [told for path in files for told in forbidden(path.read_text(), str(path.relative_to(PACKAGE)))]
    assert found == []


@pytest.mark.parametrize("line", [
    "import pickle", "from pickle import loads", "import torch.multiprocessing as mp",
    "from torch.distributed import rpc",
    "import yaml", "x = eval('1')", "exec(text)", "torch.load(path)", "torch.load(path, weights_only=True)",
    "np.load(path)", "np.load(path, allow_pickle=True)", "pd.read_pickle(path)", "tar.extractall(where)",
    "td.broadcast_object_list(x)", "subprocess.run(text, shell=True)", "spec.loader.exec_module(module)",
    "from concurrent.futures import ProcessPoolExecutor\nProcessPoolExecutor(2)", "import marshal", "import shelve",
])  # fmt: skip
def test_what_executes_would_be_found(line: str) -> None:
    assert list(forbidden(line, "graph/store.py")), line


class Payload:
    """What makes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return os.mkdir, (str(self._path),)


@pytest.fixture
def planted(tmp_path: Path) -> Iterator[bytes]:
    """A pickle; the test fails if anybody loads it."""
    trap = tmp_path / "executed"
    data = pickle.dumps(Payload(trap), protocol=4)
    pickle.loads(data)
    assert trap.is_dir(), "the payload works"
    trap.rmdir()
    yield data
    assert not trap.exists(), "a pickle was executed"


def objects(data: bytes) -> dict[str, bytes]:
    """Return the bytes of files that NumPy and torch write with a pickle in them."""
    payload = pickle.loads(b"\x80\x04N.")
    assert payload is None
    array = io.BytesIO()
    header = b"{'descr': '|O', 'fortran_order': False, 'shape': (1,), }"
    array.write(b"\x93NUMPY\x01\x00" + (118).to_bytes(2, "little") + header.ljust(117) + b"\n" + data)
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as file:
        for name in ("source.npy", "target.npy", "time.npy"):
            file.writestr(name, array.getvalue())
        file.writestr("archive/data.pkl", data)
    return {"npy": array.getvalue(), "npz": archive.getvalue(), "pickle": data}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a graph and a run."""
    folder = tmp_path_factory.mktemp("made")
    drift(folder / "graph")
    train(folder / "graph", folder / "run", small())
    return folder


ENDINGS = (".npz", ".npy", ".csv", ".csv.gz", ".json", ".parquet", ".arrow", ".zip", ".tar", ".tar.gz", ".pt", ".pkl")


@pytest.mark.parametrize("ending", ENDINGS)
def test_no_source_of_rows_executes_a_pickle(tmp_path: Path, planted: bytes, ending: str) -> None:
    for kind, data in objects(planted).items():
        path = tmp_path / f"{kind}{ending}"
        path.write_bytes(gzip.compress(data) if ending.endswith(".gz") else data)
        for options in (GIVEN, BY_NAME):
            with pytest.raises(TimeloomError):
                ingest(path, tmp_path / "g", options)
        for option in ("features", "labels", "present"):
            value = {"features": "array:", "labels": "classes:", "present": ""}[option] + f"{path}#source"
            attributes = replace(AttributeOptions(), **{option: value})  # type: ignore[arg-type]
            with pytest.raises(TimeloomError):
                ingest({"source": [0], "target": [1], "time": [0]}, tmp_path / "g",
                       Ingest(windows=Windows(kind="given"), attributes=attributes))  # fmt: skip
        table = AttributeOptions(nodes=path, features="columns:a")
        with pytest.raises(TimeloomError):
            ingest({"source": [0], "target": [1], "time": [0]}, tmp_path / "g",
                   Ingest(windows=Windows(kind="given"), attributes=table))  # fmt: skip


def test_arrow_metadata_is_not_unpickled(tmp_path: Path, planted: bytes) -> None:
    table = pa.table({"source": [0, 1], "target": [1, 2], "time": [0, 1]})
    kinds = {b"ARROW:extension:name": b"arrow.py_extension_type", b"ARROW:extension:metadata": planted}
    field = pa.field("source", pa.int64(), metadata=kinds)
    schema = pa.schema([field, *list(table.schema)[1:]], metadata={b"pandas": planted})
    pq.write_table(table.cast(schema), tmp_path / "e.parquet")
    with pa.OSFile(str(tmp_path / "e.arrow"), "wb") as file, pa.ipc.new_file(file, schema) as writer:
        writer.write_table(table.cast(schema))
    for name in ("e.parquet", "e.arrow"):
        ingest(tmp_path / name, tmp_path / f"{name}.graph", BY_NAME)


def copy_of(made: Path, folder: Path, name: str) -> Path:
    import shutil

    shutil.copytree(made / name, folder / name)
    return folder / name


def test_no_graph_executes_a_pickle(made: Path, tmp_path: Path, planted: bytes) -> None:
    graph = copy_of(made, tmp_path, "graph")
    for name, entry in open_graph(graph).store.manifest["arrays"].items():
        whole = (graph / entry["file"]).read_bytes()
        for data in objects(planted).values():
            (graph / entry["file"]).write_bytes(data.ljust(len(whole), b"\0"))
            with pytest.raises(BadStore):
                open_graph(graph).store.array(name)
        (graph / entry["file"]).write_bytes(whole)
    (graph / MANIFEST).write_bytes(planted)
    with pytest.raises(BadStore):
        open_graph(graph)


def test_no_run_executes_a_pickle(made: Path, tmp_path: Path, planted: bytes) -> None:
    path = copy_of(made, tmp_path, "run")
    (name,) = checkpoint.names(path / "checkpoints")[-1:]
    folder = path / "checkpoints" / name
    saved = io.BytesIO()
    torch.save({"weight": torch.zeros(2)}, saved)
    for data in (*objects(planted).values(), saved.getvalue()):
        (folder / checkpoint.TENSORS).write_bytes(data)
        # The checksums fit: only what the bytes mean is wrong.
        body = json.loads((made / "run" / "checkpoints" / name / checkpoint.STATE).read_bytes())
        del body["checksum"]
        body[checkpoint.TENSORS] = {"bytes": len(data), "checksum": xxhash.xxh3_128_hexdigest(data)}
        text = json.dumps(body).encode()
        seal = b', "checksum": "' + xxhash.xxh3_128_hexdigest(text).encode() + b'"}\n'
        (folder / checkpoint.STATE).write_bytes(text[:-1] + seal)
        with pytest.raises(BadRun, match="is not what this timeloom writes"):
            checkpoint.load(path / "checkpoints", name)
        (folder / checkpoint.STATE).write_bytes(data)
        with pytest.raises(BadRun):
            checkpoint.load(path / "checkpoints", name)
        for file, reader in (("config.toml", read_config), ("records.jsonl", read)):
            whole = (path / file).read_bytes()
            (path / file).write_bytes(data + b"\n")
            with pytest.raises(BadRun):
                reader(path)
            (path / file).write_bytes(whole)


def test_no_other_file_executes_a_pickle(tmp_path: Path, planted: bytes) -> None:
    path = tmp_path / "file"
    for data in objects(planted).values():
        path.write_bytes(data)
        for reader, kind in ((read_toml, BadConfig), (read_sizes, BadInput), (costs_at, BadInput)):
            with pytest.raises(kind):
                reader(path)


def bombs(size: int) -> dict[str, bytes]:
    """Return files that unpack to so many bytes of rows."""
    row = b"1,2,3\n"
    text = row * (size // len(row) + 1)
    zipped, tarred = io.BytesIO(), io.BytesIO()
    with zipfile.ZipFile(zipped, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("e.csv", text)
    with tarfile.open(fileobj=tarred, mode="w") as tar:
        info = tarfile.TarInfo("e1.csv")
        info.size = len(text)
        tar.addfile(info, io.BytesIO(text))
    arrays = io.BytesIO()
    zeros = np.zeros(size // 8, np.int64)
    np.savez_compressed(arrays, source=zeros, target=zeros + 1, time=zeros)
    parquet = io.BytesIO()
    pq.write_table(pa.table({"source": zeros, "target": zeros + 1, "time": zeros}), parquet)
    return {
        ".csv.gz": gzip.compress(text), ".csv.zst": zstandard.compress(text), ".csv.xz": lzma.compress(text),
        ".csv.bz2": bz2.compress(text), ".zip": zipped.getvalue(), ".tar.gz": gzip.compress(tarred.getvalue()),
        ".json.gz": gzip.compress(b"[" * size), ".npz": arrays.getvalue(), ".parquet": parquet.getvalue(),
    }  # fmt: skip


def test_a_bomb_is_refused_with_both_sizes_and_a_way_to_allow_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unpacked, "_ALWAYS_BYTES", 1 << 16)
    monkeypatch.setattr(unpacked, "_RATIO", 2)
    for ending, data in bombs(9_000_000).items():
        assert len(data) * 2 < 8_000_000
        path = tmp_path / f"bomb{ending}"
        path.write_bytes(data)
        options = BY_NAME if ending in (".npz", ".parquet") else GIVEN
        with pytest.raises(
            TooLarge, match=rf"has {len(data):,} bytes and unpacks to [\d,]+ or more.*TIMELOOM_UNPACKED="
        ):
            ingest(path, tmp_path / "g", options)
        assert not (tmp_path / "g").exists()
    monkeypatch.setenv("TIMELOOM_UNPACKED", "20MiB")
    (tmp_path / "good.csv.gz").write_bytes(bombs(100_000)[".csv.gz"])
    assert ingest(tmp_path / "good.csv.gz", tmp_path / "g", GIVEN).num_edges == 1
    monkeypatch.setenv("TIMELOOM_UNPACKED", "lots")
    with pytest.raises(BadConfig, match="TIMELOOM_UNPACKED=lots is no size"):
        ingest(tmp_path / "good.csv.gz", tmp_path / "h", GIVEN)


def test_ordinary_files_are_far_from_the_limit(tmp_path: Path) -> None:
    assert unpacked.most_unpacked(1000) == 1 << 30
    assert unpacked.most_unpacked(1 << 30) == 200 << 30


def test_a_json_file_is_read_whole_and_may_not_be_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signals, "MOST_JSON_BYTES", 1000)
    (tmp_path / "s.json").write_bytes(b"[" + b"1," * 1000)
    with pytest.raises(TooLarge, match=r"holds 2,001 bytes of JSON or more, beyond the 1,000"):
        ingest(tmp_path / "s.json", tmp_path / "g", Ingest())


NAMES = ("../evil.csv", "/tmp/evil.csv", "a/../../evil.csv", "..\\evil.csv", "e\0vil.csv", "\u202e.csv", "e.csv/")


@pytest.mark.parametrize("name", NAMES)
def test_members_of_an_archive_are_never_written_outside(tmp_path: Path, name: str) -> None:
    home = tmp_path / "deep" / "er"
    home.mkdir(parents=True)
    tarred, zipped = home / "e.tar", home / "e.zip"
    with tarfile.open(tarred, "w") as tar:
        info = tarfile.TarInfo(name)
        info.size = 6
        tar.addfile(info, io.BytesIO(b"1,2,3\n"))
    with zipfile.ZipFile(zipped, "w") as archive:
        archive.writestr(name, b"1,2,3\n")
    for path, options in ((tarred, Ingest(reading=Reading(timed=False))), (zipped, GIVEN)):
        try:
            ingest(path, home / "g", options)
        except TimeloomError:
            assert not (home / "g").exists()
        found = {path.relative_to(tmp_path).parts[:3] for path in tmp_path.rglob("*") if path.is_file()}
        assert {parts[:2] for parts in found} == {("deep", "er")}
        assert {parts[2] for parts in found} <= {"e.tar", "e.zip", "g"}
        if (home / "g").exists():
            for file in (home / "g").iterdir():
                file.unlink()
            (home / "g").rmdir()


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE])
def test_a_link_or_a_device_in_an_archive_is_refused(tmp_path: Path, kind: bytes) -> None:
    with tarfile.open(tmp_path / "e.tar", "w") as tar:
        info = tarfile.TarInfo("e1.csv")
        info.type, info.linkname = kind, "/etc/passwd"
        tar.addfile(info)
    with pytest.raises(BadInput, match=r"e1\.csv, which is a link or no file"):
        ingest(tmp_path / "e.tar", tmp_path / "g", Ingest(reading=Reading(timed=False)))


def test_a_graph_names_no_file_outside_itself(made: Path, tmp_path: Path) -> None:
    graph = copy_of(made, tmp_path, "graph")
    for file in ("../secret.npy", "/etc/passwd", "000001-x.npy/../../secret", "000001-" + "a" * 5000):
        edit_manifest(graph, lambda m, file=file: m["arrays"]["nodes.first_seen"].update(file=file))  # type: ignore[misc]
        with pytest.raises(BadStore, match=r"which is no file of a graph: refused|cannot be read"):
            open_graph(graph)


DEEP = 100_000


def is_text_or_too_deep(sets: list[str]) -> bool:
    """Say whether arguments of --set are refused as too deep, or else taken as text."""
    try:
        return isinstance(parse_sets(sets)["a"], str)
    except BadConfig as error:
        return "deep" in str(error)


def test_what_is_nested_deep_is_refused_in_a_sentence(made: Path, tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    for text in (
        f"a = {'[' * DEEP}", f"a = {'[' * DEEP}{']' * DEEP}", f"a = {'{b=' * 5000}1{'}' * 5000}",
        f"[{'a.' * 20_000}b]\nc = 1", f"{'a.' * 20_000}b = 1", f"a = {'[' * (MAX_DEPTH + 1)}{']' * (MAX_DEPTH + 1)}",
    ):  # fmt: skip
        path.write_text(text)
        with pytest.raises(BadConfig, match=r"nested too deep|is not TOML|more than 1048576 bytes"):
            read_toml(path)
    for sets in ([f"{'a.' * 3000}b=1"], [f"a={'[' * 900}{']' * 900}"], [f"a={'{b=' * 300}1{'}' * 300}"]):
        assert is_text_or_too_deep(sets)
    run_folder = copy_of(made, tmp_path, "run")
    (run_folder / "config.toml").write_bytes(seal_config(f"{'a.' * 5000}b = 1\n"))
    with pytest.raises(BadConfig, match="nested too deep"):
        settings_of_run(run_folder)
    for reader, kind in ((read_sizes, BadInput), (costs_at, BadInput)):
        path.write_text("[" * DEEP)
        with pytest.raises(kind):
            reader(path)
    path.with_suffix(".json").write_text("[" * DEEP)
    with pytest.raises(BadInput):
        ingest(path.with_suffix(".json"), tmp_path / "g", Ingest())


@pytest.mark.parametrize(("file", "bytes_", "reader", "kind"), [
    ("graph/manifest.json", (1 << 28) + 1, lambda made: open_graph(made / "graph"), BadStore),
    ("run/config.toml", (1 << 20) + 1, lambda made: read_config(made / "run"), BadRun),
    ("run/records.jsonl", (1 << 28) + 100_000, lambda made: read(made / "run"), BadRun),
])  # fmt: skip
def test_a_file_of_text_that_is_too_long_is_refused(
    made: Path, tmp_path: Path, file: str, bytes_: int, reader: Callable[[Path], object], kind: type[Exception]
) -> None:
    copy_of(made, tmp_path, file.partition("/")[0])
    # A hole takes no room on the disk.
    os.truncate(tmp_path / file, bytes_)
    with pytest.raises(kind, match=r"has more than \d+ bytes|more than \d+ bytes, the most that is read"):
        reader(tmp_path)


def test_a_file_of_ones_own_model_is_run_and_help_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    docs = Path(__file__).resolve().parents[1] / "docs"
    for command in ("train", "follow"):
        assert run([command, "--help"]) == 0
        assert "whose code is run" in " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert run(["models"]) == 0
    assert "whose code is run" in capsys.readouterr().out
    assert "runs the code of the file" in " ".join((docs / "models.md").read_text().split())
