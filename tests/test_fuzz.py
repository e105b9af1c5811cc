"""Whatever a checkpoint, the records, the settings or a graph's folder hold: a sentence, or what was written.

Two kinds of bad input. *Damage* is what disks and copies do to bytes; it must be refused, checksums see to it.
*Forgery* changes what a file means and makes its checksums right again; then it must be refused in a sentence, or mean
something that a run can have been told. Whatever is accepted is looked at: accepted in silence would be a failure, too.

`python -m tests.test_fuzz 10000 checkpoint` prints a line of the table in docs/reliability.md.
"""

from __future__ import annotations

import dataclasses
import json
import math
import random
import shutil
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import xxhash
from safetensors.torch import save as bytes_of

from tests.damaged import write_records
from tests.graph.damage import edit_manifest
from tests.report.fake import Fake
from tests.train.small_runs import drift, small
from timeloom.config import build, dump, merge, parse_sets, read_toml
from timeloom.errors import TimeloomError
from timeloom.graph.check import check
from timeloom.graph.dynamic import open_graph
from timeloom.graph.store import MANIFEST
from timeloom.records import as_json, read, read_config
from timeloom.records.seal import seal_config
from timeloom.report.content import content_of
from timeloom.report.html import page_of
from timeloom.report.log import read_log
from timeloom.train import checkpoint
from timeloom.train.reopen import session_of, settings_of_run
from timeloom.train.runs import train
from timeloom.train.settings import RunSettings
from timeloom.train.trainer import Trainer

LIMIT_S = 10.0
"""What takes longer hangs."""
ODD: list[Any] = [
    None, True, False, 0, 1, -1, 7, 2**31, 2**63, -(2**63) - 1, 10**400, 0.5, -0.0, 1e308, math.inf, -math.inf,
    math.nan, "", "x", "none", "../x", "\0", "\ud800", "é\u202e", "a" * 300, "</script>", "$\\frac", "[/b]", [], [[]],
    [None],
    {}, {"": {}}, [1, "a"], {"kind": "x"}, "inf", "1e999", -5, 3.5, [0] * 40,
]  # fmt: skip


def damaged(rng: random.Random, data: bytes) -> bytes:
    """Return other bytes: some flipped, cut out, cut off, doubled, put in, or zeroed as after a power cut."""
    out, change = bytearray(data), rng.randrange(8)
    at = rng.randrange(len(out) + 1)
    to = min(len(out), at + rng.choice([1, 2, 8, 40, 512]))
    if change == 0:
        out = out[:at]
    elif change == 1:
        out = out[:at] + out[to:]
    elif change == 2:
        out = out[:at] + rng.randbytes(rng.randrange(1, 30)) + out[at:]
    elif change == 3:
        out = out[:to] + out[at:]
    elif change == 4:
        out[at:to] = bytes(to - at)
    elif change == 5:
        out = bytearray(rng.randbytes(rng.randrange(200)))
    elif change == 6 and len(out) > 1:
        a, b = sorted(rng.sample(range(len(out)), 2))
        out[a], out[b] = out[b], out[a]
    else:
        for _ in range(rng.randrange(1, 4) if out else 0):
            out[rng.randrange(len(out))] ^= 1 << rng.randrange(8)
    return bytes(out)


def forged(rng: random.Random, value: Any) -> Any:
    """Return a value of JSON of which something means something else."""
    if isinstance(value, dict) and value and rng.random() < 0.85:
        key = rng.choice(sorted(value))
        change = rng.random()
        if change < 0.15:
            return {name: one for name, one in value.items() if name != key}
        if change < 0.25:
            return {**value, rng.choice(["x", "", "__class__", key + "s"]): rng.choice(ODD)}
        return {**value, key: forged(rng, value[key])}
    if isinstance(value, list) and value and rng.random() < 0.7:
        place = rng.randrange(len(value))
        change = rng.random()
        if change < 0.2:
            return value[:place] + value[place + 1 :]
        if change < 0.3:
            return value + value[place:]
        return [*value[:place], forged(rng, value[place]), *value[place + 1 :]]
    if type(value) in (int, float) and math.isfinite(value) and rng.random() < 0.5:
        return rng.choice([value + 1, -value, value * 1000, -value - 1])
    return rng.choice(ODD)


@dataclass
class Count:
    """What came of bad inputs."""

    tried: int = 0
    refused: int = 0
    same: int = 0
    """The bytes were changed, and mean what they meant."""
    other: int = 0
    """They mean something else, which was looked at and can be meant."""
    slowest_s: float = 0.0
    sentences: set[str] = field(default_factory=set)

    def row(self, name: str) -> str:
        """Return a row of the table."""
        return (
            f"| {name} | {self.tried:,} | {self.refused:,} | {self.same:,} | {self.other:,} | 0 | 0 | "
            f"{self.slowest_s:.2f} s |"
        )


Attempt = Callable[[random.Random], str]
"""Makes one bad input and reads it: 'same', 'other', or a TimeloomError is raised. All else is a failure."""


def attempts(attempt: Attempt, name: str, first: int, count: int) -> Count:
    """Try so many bad inputs."""
    told = Count()
    for number in range(first, first + count):
        began = time.monotonic()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                outcome = attempt(random.Random(f"{name} {number}"))
        except TimeloomError as error:
            outcome = "refused"
            sentence = str(error)
            assert sentence, f"{name} {number}: refused without a word"
            assert "\n" not in sentence, f"{name} {number}: more than a sentence: {sentence!r}"
            assert "Traceback" not in sentence, f"{name} {number}: {sentence!r}"
        except Exception as error:
            raise AssertionError(f"{name} {number}: {error!r}") from error
        seconds = time.monotonic() - began
        assert seconds < LIMIT_S, f"{name} {number} took {seconds:.1f} s"
        told.tried += 1
        told.slowest_s = max(told.slowest_s, seconds)
        setattr(told, outcome, getattr(told, outcome) + 1)
    return told


def reader_of_checkpoints(folder: Path) -> Attempt:
    """Damage a checkpoint, or forge one; a run then goes on from it, or it is refused."""
    graph = open_graph(drift(folder / "graph"))
    train(graph, folder / "run", small())
    settings = settings_of_run(folder / "run")
    home = folder / "run" / "checkpoints"
    (name,) = checkpoint.names(home)[-1:]
    whole = checkpoint.load(home, name)
    bytes_ = {file: (home / name / file).read_bytes() for file in (checkpoint.TENSORS, checkpoint.STATE)}
    body = json.loads(bytes_[checkpoint.STATE])
    del body["checksum"]

    def write(state: Any, tensors: Mapping[str, torch.Tensor] | None) -> None:
        data = bytes_[checkpoint.TENSORS] if tensors is None else bytes_of(dict(tensors))
        entry = {"bytes": len(data), "checksum": xxhash.xxh3_128_hexdigest(data)}
        text = json.dumps(state | {checkpoint.TENSORS: entry} if tensors is not None else state).encode()
        (home / name / checkpoint.TENSORS).write_bytes(data)
        seal = b', "checksum": "' + xxhash.xxh3_128_hexdigest(text).encode() + b'"}\n'
        (home / name / checkpoint.STATE).write_bytes(text[:-1] + seal)

    def attempt(rng: random.Random) -> str:
        for file, data in bytes_.items():
            (home / name / file).write_bytes(data)
        if rng.random() < 0.7:
            file = rng.choice(sorted(bytes_))
            data = damaged(rng, bytes_[file])
            (home / name / file).write_bytes(data)
            found = checkpoint.load(home, name)
            assert data == bytes_[file], "damage was accepted"
            assert found.state == whole.state
            return "same"
        if rng.random() < 0.5:
            state = forged(rng, body)
            write(state if isinstance(state, dict) else {"state": state}, None)
        else:
            write(body, forged_tensors(rng, whole.tensors))
        found = checkpoint.load(home, name)
        trainer = Trainer(session_of(settings, found, graph), None)
        try:
            trainer.restore(found)
        finally:
            trainer.close()
        return "same" if found.state == whole.state and same(found.tensors, whole.tensors) else "other"

    return attempt


def forged_tensors(rng: random.Random, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return tensors of which one is missing, is more, or has another name, shape or type."""
    found, name = dict(tensors), rng.choice(sorted(tensors))
    change = rng.randrange(6)
    one = found.pop(name)
    if change == 1:
        found[name] = torch.zeros(rng.choice([(0,), (1,), (3, 2), (2, 2, 2), ()]))
    elif change == 2:
        found[rng.choice(["x", "now/x", "optimizer/99.exp_avg", "optimizer/x", "carry/000", "beside/rank00000"])] = one
    elif change == 3:
        found[name] = one.reshape(-1)
    elif change == 4:
        found[name] = one.to(rng.choice([torch.float64, torch.int64, torch.uint8, torch.bfloat16, torch.bool]))
    elif change == 5:
        found[name] = torch.cat([one.reshape(-1), one.reshape(-1)])
    return found


def same(left: Mapping[str, torch.Tensor], right: Mapping[str, torch.Tensor]) -> bool:
    """Say whether tensors have the same names, types, shapes and values."""
    return left.keys() == right.keys() and all(
        left[name].dtype == right[name].dtype and left[name].shape == right[name].shape
        and torch.equal(torch.nan_to_num(left[name]), torch.nan_to_num(right[name]))
        for name in left
    )  # fmt: skip


def reader_of_records(folder: Path) -> Attempt:
    """Damage the records of a run, or forge them; what is accepted is also made a report."""
    run = Fake(epochs=2, steps=2).make(folder / "run")
    records = run / "records.jsonl"
    data = records.read_bytes()
    whole = read(run)
    bodies = [as_json(record) for record in whole]

    def attempt(rng: random.Random) -> str:
        if rng.random() < 0.6:
            spoilt = damaged(rng, data)
            records.write_bytes(spoilt)
            found = read(run)
            # A last line without an end is that of a process that was killed there: all lines before it count.
            lines = spoilt[: spoilt.rfind(b"\n") + 1]
            assert data.startswith(lines), "damage was accepted"
            assert found == whole[: lines.count(b"\n")]
            return "same"
        changed = [dict(one) for one in bodies]
        place = rng.randrange(len(changed))
        one = forged(rng, changed[place])
        changed[place] = one
        write_records(records, [json.dumps(each).encode() for each in changed])
        found = read(run)
        told = [as_json(record) for record in found]
        page = page_of(content_of([read_log(run)]))
        assert page.count("<script") == page.count("</script") == 2, "markup was accepted"
        return "same" if told == bodies else "other"

    return attempt


def reader_of_settings(folder: Path) -> Attempt:
    """Read settings that were spoilt, from a file, from --set and from the folder of a run."""
    settings = build(RunSettings, merge({"graph": "g"}, small()))
    text = dump(settings)
    (folder / "run").mkdir()
    run = folder / "run"
    (run / "records.jsonl").touch()
    path = folder / "c.toml"
    keys = [line.partition(" =")[0] for line in text.splitlines() if "=" in line]
    tables = [line.strip("[]") for line in text.splitlines() if line.startswith("[")]

    def value(rng: random.Random) -> str:
        odd = rng.choice(ODD)
        try:
            told = json.dumps(odd)
        except (ValueError, OverflowError):
            told = "nan"
        return rng.choice(
            [told, told, str(odd), "[" * rng.randrange(1, 300), "1979-05-27", "0x1F", "'''", "{a=1}", "+1_0"]
        )

    def attempt(rng: random.Random) -> str:
        way = rng.randrange(4)
        if way == 0:
            path.write_bytes(damaged(rng, text.encode()))
            found = build(RunSettings, read_toml(path))
        elif way == 1:
            lines = text.splitlines()
            place = rng.randrange(len(lines))
            lines[place] = f"{rng.choice(keys)} = {value(rng)}"
            path.write_bytes("\n".join(lines).encode("utf-8", "surrogatepass"))
            found = build(RunSettings, read_toml(path))
        elif way == 2:
            sets = [f"{rng.choice(tables)}.{rng.choice(keys)}={value(rng)}" for _ in range(rng.randrange(1, 4))]
            found = build(RunSettings, merge({"graph": "g"}, parse_sets(sets)))
        else:
            sealed = seal_config(text)
            data = damaged(rng, sealed) if rng.random() < 0.5 else seal_config(
                damaged(rng, text.encode()).decode("utf-8", "replace")
            )  # fmt: skip
            (run / "config.toml").write_bytes(data)
            read_config(run)
            if data[: len(text)] != text.encode():
                assert data != sealed
            found = settings_of_run(run)
        # What is accepted can be written, and is read back as the same.
        path.write_text(dump(found))
        assert build(RunSettings, read_toml(path)) == found
        return "same" if found == settings else "other"

    return attempt


def reader_of_graphs(folder: Path) -> Attempt:
    """Damage the files of a graph, or forge its manifest; what is accepted is checked and read to the end."""
    graph = drift(folder / "graph")
    files = {path.name: path.read_bytes() for path in graph.iterdir() if path.is_file() and path.suffix}
    whole = contents(graph)

    def attempt(rng: random.Random) -> str:
        for name, data in files.items():
            (graph / name).write_bytes(data)
        if rng.random() < 0.5:
            name = rng.choice([MANIFEST, *sorted(files)])
            spoilt = damaged(rng, files[name])
            (graph / name).write_bytes(spoilt)
            if rng.random() < 0.1:
                (graph / name).unlink()
            problems = list(check(graph))
            if problems:
                raise TimeloomError(problems[0].replace("\n", " "))
            assert (graph / name).read_bytes() == files[name], "damage was accepted"
            return "same"
        edit_manifest(graph, lambda manifest: _replace(manifest, forged(rng, json.loads(json.dumps(manifest)))))
        problems = list(check(graph))
        if problems:
            raise TimeloomError(problems[0].replace("\n", " "))
        return "same" if contents(graph) == whole else "other"

    return attempt


def _replace(manifest: dict[str, Any], other: Any) -> None:
    manifest.clear()
    manifest.update(other if isinstance(other, dict) else {"x": other})


def contents(path: Path) -> tuple[Any, ...]:
    """Return all that a graph says."""
    graph = open_graph(path)
    edges = [(one.keys.tolist(), one.weights.tolist(), one.alive.tolist()) for one in graph.snapshots()]
    return graph.starts.tolist(), graph.end, np.asarray(graph.ids.all()).tolist(), edges


READERS: dict[str, Callable[[Path], Attempt]] = {
    "checkpoint": reader_of_checkpoints, "records": reader_of_records, "settings": reader_of_settings,
    "graph": reader_of_graphs,
}  # fmt: skip
FAST = {"checkpoint": 200, "records": 200, "settings": 300, "graph": 60}


@pytest.mark.parametrize("name", READERS)
def test_some_hundred_bad_inputs_give_a_sentence_or_what_can_be_meant(tmp_path: Path, name: str) -> None:
    told = attempts(READERS[name](tmp_path), name, 0, FAST[name])
    assert told.refused > told.tried / 4


@pytest.mark.slow
@pytest.mark.parametrize("part", range(10))
@pytest.mark.parametrize("name", READERS)
def test_ten_thousand_bad_inputs_give_a_sentence_or_what_can_be_meant(tmp_path: Path, name: str, part: int) -> None:
    attempts(READERS[name](tmp_path), name, 1000 * part, 1000)


def main() -> None:
    """Try so many bad inputs of a reader, from a number on, and print what came of them."""
    count, name, first = int(sys.argv[1]), sys.argv[2], int(sys.argv[3]) if len(sys.argv) > 3 else 0
    folder = Path(tempfile.mkdtemp())
    try:
        told = attempts(READERS[name](folder), name, first, count)
    finally:
        shutil.rmtree(folder)
    sys.stdout.write(json.dumps({"name": name, **dataclasses.asdict(told), "sentences": []}) + "\n")
    sys.stdout.write(told.row(name) + "\n")


if __name__ == "__main__":
    main()
