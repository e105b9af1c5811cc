"""What a run leaves behind can be read by anybody, written by one process, and is never half of anything."""

from __future__ import annotations

import errno
import json
import math
import os
import resource
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.damaged import damaged, reseal_records
from timeloom.errors import BadConfig, BadRun, BadStore, Diverged, Interrupted, TooLarge
from timeloom.records import (
    Averaged,
    Batched,
    Deviated,
    Ended,
    EpochEnded,
    Evaluated,
    GraphFacts,
    Placed,
    Predicted,
    Record,
    Resumed,
    RunDirectory,
    Saved,
    Scheduled,
    Spans,
    Started,
    Stepped,
    Traffic,
    Tuned,
    Warned,
    as_json,
    from_json,
    read,
    read_config,
)
from timeloom.records.seal import seal_line, seal_of

CONFIG_TEXT = 'graph = "g"\r\nname = "ü"\n'
EXAMPLES: list[Record] = [
    Started(graph="g", num_parameters=3, derived={"a": 1, "b": 0.5, "c": "x", "d": True}, version="0.1"),
    Stepped(epoch=1, step=2, loss=0.5, grad_norm=1.0, learning_rate=0.01, nodes=3, edges=4, seconds=0.25),
    Evaluated(epoch=1, split="test", scores={"mrr": 0.5}, baselines={"last": {"mrr": 0.25}}, seconds=1.0),
    EpochEnded(epoch=1, loss=0.5, learning_rate=0.01, nodes=3, edges=4, seconds=0.25),
    Saved(checkpoint="epoch-000001-step-000002", epoch=1, step=2),
    Resumed(checkpoint="epoch-000001-step-000002", epoch=1, step=2),
    Warned(sentence="two\nlines, ü and \udcff"),
    Ended(reason="patience", epochs=3, best_epoch=2, seconds=9.0),
    Spans(rank=1, epoch=0, step=3, began=1.7e9, parts=(("load", 0.0, 0.5), ("wait", 0.5, 0.25))),
    Traffic(
        rank=1, epoch=0, calls={"grad": 2}, sent_bytes={"grad": 8}, received_bytes={"grad": 8},
        waited_s={"grad": 0.5}, peak_bytes=100, peak_device_bytes=0,
    ),
    Scheduled(epoch=0, by="greedy", first_step=1, units=((0, 0, 0, 4, 0.5), (0, 1, 4, 8, 0.25)), predicted_s=0.5,
        bound_s=0.4, solved_s=1.0),
    GraphFacts(
        graph="g", nodes=5, edges=(3, 4), active=(2, 3), overlap=(1.0, 0.5), train_stop=1, val_stop=1, test_stop=2
    ),
    Predicted(
        split="test", what="log(1 + in-degree)", form="value", classes=("a", "b"), truth=(1.0, 2.0),
        predicted=(1.5, 1.75),
    ),
    Deviated(epoch=1, what="sym-lazy", deviation=5e-4),
    Averaged(
        epoch=1, step=3, snapshots=0.5, nodes=0.25, steps=(3, 2), loss=0.5, step_seconds=0.1, seconds=0.5,
    ),
    Batched(
        rank=1, epoch=2, reused=3, unused=2, whole=1, built=0, waited_s=0.5, beside=4, beside_s=1.5, hidden_s=1.25,
    ),
    Placed(
        t=3, held_bytes=(10, 20), capacity_bytes=15, kept_share=0.75, moved=2, rounds=4, swaps=1, overflows=1,
        examples=((-1, 1, 20, 15),),
    ),
    Tuned(full=2, decayed=6, alpha=0.1, score=0.5, trials=((2, 0.1, 1.0, 0.5, 1.0, 0.0),)),
]  # fmt: skip
numbers, texts = st.floats(allow_nan=False, allow_infinity=False), st.text(max_size=9)
scores = st.dictionaries(texts, numbers, max_size=3)
COUNTS = st.integers(-(2**63) + 1, 2**63 - 1)
KNOWN: dict[object, st.SearchStrategy[Any]] = {
    "str": texts,
    "int": COUNTS,
    "float": numbers,
    "dict[str, float]": scores,
    "dict[str, int]": st.dictionaries(texts, COUNTS, max_size=3),
    "tuple[int, ...]": st.lists(COUNTS, max_size=3).map(tuple),
    "tuple[str, ...]": st.lists(texts, max_size=3).map(tuple),
    "tuple[float, ...]": st.lists(numbers, max_size=3).map(tuple),
    "tuple[tuple[str, float, float], ...]": st.lists(st.tuples(texts, numbers, numbers), max_size=3).map(tuple),
    "tuple[tuple[int, int, int, int], ...]": st.lists(st.tuples(*[COUNTS] * 4), max_size=3).map(tuple),
    "tuple[tuple[int, int, int, int, float], ...]": st.lists(st.tuples(*[COUNTS] * 4, numbers), max_size=3).map(tuple),
    "tuple[tuple[int, float, float, float, float, float], ...]": st.lists(
        st.tuples(COUNTS, *[numbers] * 5), max_size=3
    ).map(tuple),
    "dict[str, dict[str, float]]": st.dictionaries(texts, scores, max_size=3),
    "dict[str, str | int | float | bool]": st.dictionaries(texts, texts | COUNTS | numbers | st.booleans()),
}


def some(cls: type[Record]) -> st.SearchStrategy[Record]:
    kinds = {name: KNOWN[hint] for name, hint in cls.__annotations__.items() if not hint.startswith("ClassVar")}
    return st.fixed_dictionaries(kinds).map(lambda values: cls(**values))


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run with one record of each kind."""
    with RunDirectory.create(tmp_path / "run", CONFIG_TEXT, overwrite=False) as directory:
        for record in EXAMPLES:
            directory.append(record)
    return tmp_path / "run"


def warnings_in(run: Path) -> list[str]:
    return [record.sentence for record in read(run) if isinstance(record, Warned)]


@pytest.mark.parametrize("cls", get_args(Record))
def test_a_record_reads_back_equal(cls: type[Record]) -> None:
    @given(some(cls))
    def check(record: Record) -> None:
        again = from_json(json.loads(json.dumps(as_json(record), allow_nan=False)))
        assert again == record
        assert repr(again) == repr(record)

    check()
    assert {type(record) for record in EXAMPLES} == set(get_args(Record))


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_a_float_that_is_no_number_is_null_and_reads_back_as_nan(number: float) -> None:
    stepped = Stepped(epoch=1, step=2, loss=number, grad_norm=number, learning_rate=0.1, nodes=3, edges=4, seconds=0.25)
    text = json.dumps(as_json(stepped), allow_nan=False)
    assert '"loss": null' in text
    again = from_json(json.loads(text))
    assert isinstance(again, Stepped)
    assert math.isnan(again.loss)
    evaluated = Evaluated(epoch=1, split="test", scores={}, baselines={"last": {"mrr": number}}, seconds=1.0)
    again = from_json(json.loads(json.dumps(as_json(evaluated), allow_nan=False)))
    assert isinstance(again, Evaluated)
    assert math.isnan(again.baselines["last"]["mrr"])


SAVED = {"kind": "saved", "checkpoint": "x", "epoch": 1, "step": 2}


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        ({**SAVED, "kind": "sved"}, "kind 'sved' is unknown"),
        ({**SAVED, "kind": ["saved"]}, "is unknown"),
        ({}, "kind None is unknown"),
        ({**SAVED, "stp": 1}, "has an unknown field 'stp'"),
        ({"kind": "saved", "epoch": 1, "step": 2}, "has no field 'checkpoint'"),
        ({**SAVED, "step": "2"}, "saved.step as '2'"),
        ({**SAVED, "step": True}, "saved.step as 'True'"),
        ({**SAVED, "step": None}, "saved.step as 'None'"),
        ({**SAVED, "step": 2.0}, "saved.step"),
        ({**SAVED, "step": 2**63}, "saved.step"),
        ({**as_json(EXAMPLES[10]), "units": [[2**63, 0, 0, 4, 0.5]]}, "scheduled.units as '9223372036854775808'"),
        ({**as_json(EXAMPLES[2]), "scores": {"mrr": "x"}}, "evaluated.scores.mrr"),
        ({**as_json(EXAMPLES[2]), "scores": 3}, "evaluated.scores"),
        ({**as_json(EXAMPLES[0]), "derived": {"a": [1]}}, "started.derived.a"),
        ({**as_json(EXAMPLES[8]), "parts": [["load", 0.0]]}, "spans.parts"),
        ({**as_json(EXAMPLES[8]), "parts": [[0, 0.0, 0.0]]}, "spans.parts as '0'"),
        ({**as_json(EXAMPLES[8]), "parts": {"load": 1}}, "spans.parts"),
        ({**as_json(EXAMPLES[11]), "edges": [1, 2.5]}, "graph_facts.edges as '2.5'"),
    ],
)
def test_what_is_no_record_is_refused(data: dict[str, Any], sentence: str) -> None:
    with pytest.raises(BadRun, match=sentence):
        from_json(data)
    assert as_json(from_json(SAVED)) == SAVED


def test_a_whole_number_may_stand_for_a_float() -> None:
    ended = from_json({"kind": "ended", "reason": "done", "epochs": 3, "best_epoch": 2, "seconds": 9})
    assert repr(ended) == "Ended(reason='done', epochs=3, best_epoch=2, seconds=9.0)"


def test_a_run_holds_what_was_put_in(run: Path) -> None:
    assert read(run) == EXAMPLES
    with RunDirectory.open(run) as directory:
        assert directory.records() == EXAMPLES
        assert directory.config_text == CONFIG_TEXT
        assert directory.path == run
        assert directory.checkpoints.is_dir()
        directory.append(Warned(sentence="again"))
        assert read(run) == [*EXAMPLES, Warned(sentence="again")], "a record can be read as soon as it was appended"
    assert {path.name for path in run.iterdir()} == {".lock", "checkpoints", "config.toml", "records.jsonl"}
    for line in (run / "records.jsonl").read_text().splitlines():
        json.loads(line)


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path, run: Path) -> None:
    (tmp_path / "other").mkdir()
    calls: tuple[Callable[[Path], object], ...] = (RunDirectory.open, read)
    for call in calls:
        for path, sentence in ((tmp_path / "none", "does not exist"), (run / "config.toml", "is a file")):
            with pytest.raises(BadRun, match=sentence):
                call(path)
        with pytest.raises(BadRun, match=r"has no config.toml, so it is not a run"):
            call(tmp_path / "other")
    (run / "config.toml").write_bytes(b"\xff")
    with pytest.raises(BadRun, match=r"config.toml cannot be read .its last line is no checksum"):
        RunDirectory.open(run)
    (run / "records.jsonl").unlink()
    with pytest.raises(BadRun, match=r"has no records.jsonl"):
        RunDirectory.open(run)
    assert os.listdir(tmp_path / "other") == []


def test_only_an_empty_folder_is_made_a_run_unless_asked_to_overwrite(tmp_path: Path, run: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "config.toml").write_text("mine")
    for overwrite in (False, True):
        with pytest.raises(BadConfig, match="is a file"):
            RunDirectory.create(tmp_path / "file", "", overwrite=overwrite)
        with pytest.raises(BadConfig, match="is no run: it will not be replaced"):
            RunDirectory.create(tmp_path / "full", "", overwrite=overwrite)
    assert os.listdir(tmp_path / "full") == ["config.toml"]
    with pytest.raises(BadConfig, match="exists already: give another folder, or --overwrite"):
        RunDirectory.create(run, "", overwrite=False)
    assert read(run) == EXAMPLES
    (tmp_path / "empty").mkdir()
    RunDirectory.create(tmp_path / "empty", "", overwrite=False).close()
    RunDirectory.create(tmp_path / "deep" / "er", "", overwrite=False).close()


def test_an_overwritten_run_keeps_nothing_of_the_old_but_what_is_not_ours(run: Path) -> None:
    (run / "checkpoints" / "epoch-000001-step-000002").mkdir()
    (run / "report.html").touch()
    (run / "notes.txt").write_text("mine")
    with RunDirectory.create(run, "new = 1\n", overwrite=True) as directory:
        assert directory.records() == []
        assert os.listdir(directory.checkpoints) == []
        assert directory.config_text == "new = 1\n"
    assert {path.name for path in run.iterdir()} == {
        ".lock",
        "checkpoints",
        "config.toml",
        "records.jsonl",
        "notes.txt",
    }


@pytest.mark.parametrize("torn", [b'{"kind"', b'{"kind": "warned", "sentence": "x"}', b'{"ki\0\0', b"\0\0\0"])
def test_a_torn_last_line_was_never_written(run: Path, torn: bytes) -> None:
    with (run / "records.jsonl").open("ab") as file:
        file.write(torn)
    assert read(run) == EXAMPLES
    with RunDirectory.open(run) as directory:
        directory.append(Warned(sentence="after"))
        assert directory.records() == [*EXAMPLES, Warned(sentence="after")]


@pytest.mark.parametrize("line", [b"", b"[1]", b"{", b"\xff", b"{}", b'{"kind": "x"}', b"NaN", b"[" * 100_000])
def test_a_broken_line_is_refused_and_named(run: Path, line: bytes) -> None:
    lines = (run / "records.jsonl").read_bytes().splitlines(keepends=True)
    before = seal_of(lines[1])
    assert before is not None
    (run / "records.jsonl").write_bytes(b"".join([*lines[:2], seal_line(line, before)[0], *lines[2:]]))
    with pytest.raises(BadRun, match=r"records.jsonl, line 3 cannot be read"):
        read(run)


def test_what_json_has_not_is_refused(run: Path) -> None:
    reseal_records(run, lambda lines: [line.replace(b'"loss": 0.5', b'"loss": NaN') for line in lines])
    with pytest.raises(BadRun, match=r"line 2 cannot be read .NaN is not JSON"):
        read(run)


def is_begun(whole: bytes, left: bytes) -> bool:
    """Say whether a line was begun, and not ended, behind all that there was."""
    return left.startswith(whole) and b'{"kind": "'.startswith(left[len(whole) :].rstrip(b"\0"))


@pytest.mark.parametrize("torn", [b"\xff", b"x", b"{}", b'{"kinds"', b"\0\0x"])
def test_an_end_that_nobody_began_is_refused_by_who_reads_and_removed_by_who_goes_on(run: Path, torn: bytes) -> None:
    with (run / "records.jsonl").open("ab") as file:
        file.write(torn)
    with pytest.raises(BadRun, match=rf"line {len(EXAMPLES) + 1} cannot be read .it is no record's beginning"):
        read(run)
    RunDirectory.open(run).close()
    assert read(run) == EXAMPLES


def test_no_damage_of_the_records_or_the_settings_is_accepted(run: Path) -> None:
    rng = np.random.default_rng(0)
    for turn in range(300):
        path = run / ("records.jsonl", "config.toml")[turn % 2]
        whole = path.read_bytes()
        path.write_bytes(damaged(whole, rng))
        left = path.read_bytes()
        if path.name == "records.jsonl" and (whole.startswith(left) or is_begun(whole, left)):
            # An end that is cut off, or a line that was begun, is that of a process that was killed there.
            assert read(run) == EXAMPLES[: left.count(b"\n")]
        else:
            with pytest.raises(BadRun, match=path.name):
                assert (read(run), read_config(run)) is None
        path.write_bytes(whole)
    assert read(run) == EXAMPLES


def test_a_line_that_was_left_out_moved_or_put_in_is_noticed(run: Path) -> None:
    records = run / "records.jsonl"
    lines = records.read_bytes().splitlines(keepends=True)
    for changed, number in (
        ([lines[0], *lines[2:]], 2),
        ([lines[0], lines[2], lines[1], *lines[3:]], 2),
        ([lines[0], lines[0], *lines[1:]], 2),
        (lines[1:], 1),
        ([b'{"kind": "warned", "sentence": "x"}\n', *lines], 1),
        ([*lines[:-1], lines[-1][:-1] + b"\x0b"], len(lines)),
    ):
        records.write_bytes(b"".join(changed))
        with pytest.raises(BadRun, match=rf"records.jsonl, line {number} cannot be read .*restore it from a copy"):
            read(run)


def test_damage_before_a_checkpoint_is_noticed_when_a_run_goes_on(run: Path) -> None:
    with RunDirectory.open(run) as directory:
        size = directory.size()
    lines = (run / "records.jsonl").read_bytes().splitlines(keepends=True)
    (run / "records.jsonl").write_bytes(b"".join([*lines[:3], lines[3].replace(b"0.5", b"0.7", 1), *lines[4:]]))
    with RunDirectory.open(run) as directory:
        with pytest.raises(BadRun, match=r"line 4 cannot be read .*--resume RUN --checkpoint NAME"):
            directory.truncate(size)
        before = sum(map(len, lines[:3]))
        directory.truncate(before)
        directory.append(Warned(sentence="again"))
    assert read(run) == [*EXAMPLES[:3], Warned(sentence="again")]


def test_records_of_work_that_is_done_again_are_not_there_twice(run: Path) -> None:
    with RunDirectory.open(run) as directory:
        size = directory.size()
        assert size == (run / "records.jsonl").stat().st_size
        directory.append(Warned(sentence="lost"))
        assert directory.size() > size
    with RunDirectory.open(run) as directory:
        directory.truncate(size)
        assert directory.records() == EXAMPLES
        directory.append(Warned(sentence="kept"))
        assert directory.records() == [*EXAMPLES, Warned(sentence="kept")]
        for wrong in (size - 3, -1, 10**9):
            with pytest.raises(BadRun, match=f"no line that ends at byte {wrong}"):
                directory.truncate(wrong)
        assert directory.records() == [*EXAMPLES, Warned(sentence="kept")]
        directory.truncate(0)
        assert directory.records() == []


def test_a_second_trainer_is_refused(tmp_path: Path, run: Path) -> None:
    with RunDirectory.open(run):
        with pytest.raises(BadRun, match="in use by another process"):
            RunDirectory.open(run)
        with pytest.raises(BadRun, match="in use by another process"):
            RunDirectory.create(run, "", overwrite=True)
        assert read(run) == EXAMPLES, "who only reads is not kept out"
    RunDirectory.open(run).close()
    directory = RunDirectory.open(run)
    directory.close()
    directory.close()
    with pytest.raises(ValueError, match="closed"):
        directory.append(EXAMPLES[0])


def in_child(work: Callable[[], None]) -> int:
    """Do some work in a process of its own; return how that ended."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    return os.waitpid(child, 0)[1]


def test_the_lock_ends_with_its_process(run: Path) -> None:
    def work() -> None:
        RunDirectory.open(run)
        os.kill(os.getpid(), signal.SIGKILL)

    assert os.WTERMSIG(in_child(work)) == signal.SIGKILL
    RunDirectory.open(run).close()


WHOLE = {"tensors", "state"}
CALLS = ("fsync", "replace", "rename", "unlink", "rmdir", "mkdir", "open")


@pytest.mark.parametrize("old", [False, True])
def test_killed_while_it_is_made_a_run_can_be_made_again(tmp_path: Path, old: bool) -> None:
    for fatal in range(1, 100):
        run, count = tmp_path / str(fatal) / "run", 0
        if old:
            with RunDirectory.create(run, "old", overwrite=False) as directory:
                directory.append(EXAMPLES[0])
                (directory.checkpoints / "x").mkdir()
                for name in WHOLE:
                    (directory.checkpoints / "x" / name).touch()

        def counted(call: Callable[..., Any], fatal: int = fatal) -> Callable[..., Any]:
            def wrapped(*arguments: Any, **named: Any) -> Any:
                nonlocal count
                count += 1
                if count == fatal:
                    os.kill(os.getpid(), signal.SIGKILL)
                return call(*arguments, **named)

            return wrapped

        def work(run: Path = run) -> None:
            for name in CALLS:
                setattr(os, name, counted(getattr(os, name)))
            RunDirectory.create(run, "new", overwrite=old)

        status = in_child(work)
        if old:
            with RunDirectory.open(run) as directory:
                assert directory.config_text in ("old", "new")
                found = [set(os.listdir(checkpoint)) for checkpoint in directory.checkpoints.iterdir()]
                assert found in ([], [WHOLE]), "a checkpoint is whole or gone"
                assert directory.config_text == "old" or not found
        ended = (run / "config.toml").exists()
        RunDirectory.create(run, "new", overwrite=ended).close()
        assert read_config(run) == "new"
        assert {path.name for path in run.iterdir()} == {".lock", "checkpoints", "config.toml", "records.jsonl"}
        if status == 0:
            break
    assert status == 0
    assert fatal > 8


def test_on_a_full_disk_the_records_stay_whole(run: Path) -> None:
    def work() -> None:
        with RunDirectory.open(run) as directory:
            size = directory.size()
            resource.setrlimit(resource.RLIMIT_FSIZE, (size + 20, resource.RLIM_INFINITY))
            with pytest.raises(TooLarge, match="free some disk space"):
                directory.append(Warned(sentence="too long for the disk"))
            resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
            assert directory.size() == size
            directory.append(Warned(sentence="after"))

    assert in_child(work) == 0
    assert read(run) == [*EXAMPLES, Warned(sentence="after")]


@pytest.mark.parametrize(("number", "kind"), [(errno.ENOSPC, TooLarge), (errno.EROFS, BadRun)])
def test_a_run_that_cannot_be_written_is_refused(
    tmp_path: Path, run: Path, monkeypatch: pytest.MonkeyPatch, number: int, kind: type[Exception]
) -> None:
    def fail(*arguments: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(kind, match=os.strerror(number)):
        RunDirectory.create(tmp_path / "new", "", overwrite=False)
    with pytest.raises(kind, match=os.strerror(number)):
        RunDirectory.create(run, "", overwrite=True)
    with pytest.raises(kind, match=os.strerror(number)):
        RunDirectory.open(run)


def test_a_run_on_a_disk_without_locks_is_refused(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr("fcntl.flock", fail)
    with pytest.raises(BadRun, match="cannot be locked"):
        RunDirectory.open(run)


def test_each_error_ends_the_command_with_its_code() -> None:
    assert issubclass(BadRun, BadStore)
    assert [error.exit_code for error in (BadRun, Diverged, Interrupted)] == [4, 7, 75]
