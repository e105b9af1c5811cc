"""What is configured is what is meant: a key or a value that cannot be is refused in one sentence."""

from __future__ import annotations

import math
import re
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timeloom.config import MAX_FILE_BYTES, build, dump, flat, merge, parse_sets, read_toml
from timeloom.errors import BadConfig

Options = dict[str, int | float | str | bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    size: int = 8
    kind: Literal["gcn", "none"] = "gcn"


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    unit: ClassVar[str] = "model"
    name: str = "tgcn"
    hidden: int = 16
    dropout: float = 0.0
    layers: tuple[Layer, ...] = ()
    options: Options = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.hidden < 1:
            raise BadConfig(f"hidden={self.hidden}: a model needs a hidden row, give 1 or more")


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    graph: Path
    model: Model = field(default_factory=lambda: Model(hidden=64))
    other: Model | None = None
    epochs: int = 10
    patience: int | None = None
    note: str | None = None
    fast: bool = False
    way: Literal["sum", "mean", 3] = "sum"
    sizes: tuple[int, ...] = (1, 2)
    rates: tuple[tuple[float, ...], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    layer: Layer


def refused(sentence: str, data: dict[str, Any], cls: type[object] = Run) -> None:
    with pytest.raises(BadConfig, match=sentence):
        build(cls, {"graph": "g", **data} if cls is Run else data)


def test_a_file_and_sets_become_a_configuration(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    path.write_text('graph = "g"\nepochs = 3\n[model]\nname = "gcn"\noptions = {alpha = 1}\n')
    sets = ["model.name=tgcn", "model.options.beta=0.5", "fast=true", "sizes=[4, 5]", "patience=none"]
    run = build(Run, merge(read_toml(path), parse_sets(sets)))
    model = Model(name="tgcn", hidden=64, options={"alpha": 1, "beta": 0.5})
    assert run == Run(graph=Path("g"), model=model, epochs=3, fast=True, sizes=(4, 5))


def test_a_file_that_cannot_be_read_is_refused_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    for data, sentence in (
        (b"a = 1\nb = = 2\n", r"is not TOML: .*line 2"),
        (b"a = 1\nb = 2\nc = '\xff'\n", "is not UTF-8 text .at line 3"),
        (b"a = 1\na = 2\n", "is not TOML"),
        (b"a = " + b"9" * 5000, "is not TOML"),
        (b"a = " + b"[" * 100_000, "nested too deep"),
        (b"#" * (MAX_FILE_BYTES + 1), f"more than {MAX_FILE_BYTES} bytes"),
    ):
        path.write_bytes(data)
        with pytest.raises(BadConfig, match=sentence):
            read_toml(path)
    path.write_bytes(b"#" * MAX_FILE_BYTES)
    assert read_toml(path) == {}
    for wrong, sentence in ((tmp_path / "none.toml", "No such file"), (tmp_path, "directory")):
        with pytest.raises(BadConfig, match=sentence):
            read_toml(wrong)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1", 1), ("-0.5", -0.5), ("1e-3", 1e-3), ("true", True), ("'1'", "1"), ('"a # b"', "a # b"), ("[1]", [1]),
        ("tgcn", "tgcn"), ("", ""), ("True", "True"), ("a=b", "a=b"), ("1, 2", "1, 2"), ("1 # one", "1 # one"),
        ("1\nb = 2", "1\nb = 2"),
        ("[1]\n[b]", "[1]\n[b]"), ("1]\nb = [2", "1]\nb = [2"), ("2024-01-01", "2024-01-01"), (" 3 ", 3), ("[1", "[1"),
        ("[" * 100_000, "[" * 100_000), ("{x = 1}", {"x": 1}), ("data/g", "data/g"),
    ],
)  # fmt: skip
def test_a_set_value_is_toml_where_it_can_be(text: str, value: object) -> None:
    found = parse_sets([f"a.b={text}"])["a"]["b"]
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("sets", "sentence"),
    [
        (["epochs"], "--set epochs has no '='"),
        (["=3"], "--set =3 has an empty key"),
        (["a..b=3"], "has an empty key"),
        (["a. =3"], "has an empty key"),
        (["a=1", "a.b=2"], "gives a a value, and a.b too"),
        (["a.b.c=1", "a.b=2"], "gives a.b a value, and a.b.c too"),
        (["a={b = 1}", "a.b=2"], "gives a a value, and a.b too"),
    ],
)
def test_a_set_that_cannot_be_meant_is_refused(sets: list[str], sentence: str) -> None:
    with pytest.raises(BadConfig, match=re.escape(sentence)):
        parse_sets(sets)


def test_of_two_sets_the_later_wins_and_tables_are_shared() -> None:
    assert parse_sets(["a.b=1", "a.c=2", "ab=3", "a.b=4"]) == {"a": {"b": 4, "c": 2}, "ab": 3}


def test_merging_is_deep_and_changes_no_layer() -> None:
    low, high = {"a": {"b": 1, "c": {"d": 1}}, "e": 1, "f": {"g": 1}}, {"a": {"c": {"x": 2}}, "e": {"y": 2}, "f": 3}
    assert merge(low, {}, high) == {"a": {"b": 1, "c": {"d": 1, "x": 2}}, "e": {"y": 2}, "f": 3}
    assert low == {"a": {"b": 1, "c": {"d": 1}}, "e": 1, "f": {"g": 1}}
    merged = merge(low)
    merged["a"]["c"]["d"] = 9
    assert low["a"] == {"b": 1, "c": {"d": 1}}
    assert merge() == {}


def test_an_unknown_key_is_refused_with_a_guess() -> None:
    refused("^epoch is no key of the configuration: did you mean epochs[?] The keys are: epochs, fast,", {"epoch": 1})
    refused(
        "model.hiden is no key.*did you mean model.hidden[?] The keys of model are: dropout,", {"model": {"hiden": 1}}
    )
    refused(r"model.layers\[1\].sise is no key.*did you mean", {"model": {"layers": [{}, {"sise": 1}]}})
    refused("zzz is no key of the configuration: The keys", {"zzz": 1})
    refused("model.unit is no key", {"model": {"unit": "x"}})


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        ({"epochs": True}, "epochs is true: give a whole number such as 16"),
        ({"epochs": 1.0}, "epochs is 1.0: give a whole number"),
        ({"epochs": "10"}, 'epochs is "10": give a whole number'),
        ({"epochs": "none"}, 'epochs is "none": give a whole number'),
        ({"patience": "ten"}, 'patience is "ten": give a whole number such as 16 or "none"'),
        ({"fast": 1}, "fast is 1: give true or false"),
        ({"graph": 1}, "graph is 1: give a path, in quotes"),
        ({"graph": ""}, 'graph is "": give a path'),
        ({"note": 7}, "note is 7: give text, in quotes"),
        ({"way": "men"}, 'way is "men": give "sum" or "mean" or 3; did you mean mean?'),
        ({"way": 3.0}, "way is 3.0: give"),
        ({"sizes": 3}, "sizes is 3: give a list"),
        ({"sizes": [1, "x"]}, 'sizes[1] is "x": give a whole number'),
        ({"rates": [[1], [True]]}, "rates[1][0] is true: give a number"),
        ({"model": 3}, "model is 3: give a table"),
        ({"model": {"dropout": math.nan}}, "model.dropout is NaN: give a number"),
        ({"model": {"dropout": -math.inf}}, "model.dropout is -Infinity: give a number"),
        ({"model": {"dropout": 10**400}}, "model.dropout is 1000"),
        ({"model": {"dropout": False}}, "model.dropout is false: give a number"),
        ({"model": {"options": {"a": [1]}}}, "model.options.a is [1]: give a whole number such as 16 or a number"),
        ({"model": {"options": {"a": math.inf}}}, "model.options.a is Infinity: give"),
        ({"model": {"options": 3}}, "model.options is 3: give a table"),
        ({"epochs": {"a": 1}}, "epochs is a table: give a whole number"),
        ({"model": {"hidden": 0}}, "hidden=0: a model needs a hidden row"),
    ],
)
def test_a_value_of_another_type_is_refused(data: dict[str, Any], sentence: str) -> None:
    refused(f"^{re.escape(sentence)}", data)


def test_a_value_has_the_type_of_its_field() -> None:
    run = build(Run, {"graph": "g", "model": {"dropout": 1}, "rates": [[1, 2]], "way": 3, "other": {"hidden": 5}})
    assert type(run.model.dropout) is float
    assert [type(rate) for rate in run.rates[0]] == [float, float]
    assert run.way == 3
    assert run.other == Model(hidden=5)
    options = build(Model, {"options": {"a": 1, "b": 1.0, "c": True, "d": "none"}}).options
    assert [type(value) for value in options.values()] == [int, float, bool, str]


def test_what_is_not_given_has_its_default() -> None:
    assert build(Run, {"graph": "g"}) == Run(graph=Path("g"))
    assert build(Run, {"graph": "g", "model": {"name": "x"}}).model == Model(name="x", hidden=64)
    assert build(Run, {"graph": "g", "other": "none", "note": "none"}) == Run(graph=Path("g"))
    assert build(Layer, {"kind": "none"}).kind == "none"
    assert build(Holder, {}) == Holder(layer=Layer())
    with pytest.raises(BadConfig, match=r"^run.graph is not given and has no default: give a path"):
        build(Run, {}, where="run")


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
names = texts.filter(lambda text: text != "none")
floats = st.floats(allow_nan=False, allow_infinity=False)
integers = st.integers(-(2**70), 2**70)
layers = st.builds(Layer, size=integers, kind=st.sampled_from(["gcn", "none"]))
models = st.builds(
    Model,
    name=texts, hidden=st.integers(1), dropout=floats, layers=st.lists(layers, max_size=3).map(tuple),
    options=st.dictionaries(texts, st.one_of(integers, floats, texts, st.booleans()), max_size=4),
)  # fmt: skip
runs = st.builds(
    Run,
    graph=names.filter(lambda text: "\0" not in text).map(Path), model=models, other=st.none() | models,
    epochs=integers, patience=st.none() | integers, note=st.none() | names, fast=st.booleans(),
    way=st.sampled_from(["sum", "mean", 3]), sizes=st.lists(integers, max_size=3).map(tuple),
    rates=st.lists(st.lists(floats).map(tuple), max_size=2).map(tuple),
)  # fmt: skip


@given(runs)
def test_a_configuration_that_is_written_reads_back_equal(run: Run) -> None:
    text = dump(run)
    again = build(Run, tomllib.loads(text))
    assert again == run
    assert repr(again) == repr(run), "equal numbers must be of equal types, too"
    assert dump(again) == text


@given(texts.filter(bool))
def test_any_text_survives_a_file(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    path = tmp_path_factory.getbasetemp() / "c.toml"
    path.write_bytes(dump(Model(name=text, options={text: text})).encode())
    assert build(Model, read_toml(path)) == Model(name=text, options={text: text})


def test_a_written_configuration_can_be_read_by_a_person() -> None:
    run = Run(graph=Path("g"), model=Model(layers=(Layer(),), options={"a b": 1}), rates=((1.0, 1e-5),))
    assert dump(run) == (
        'graph = "g"\nother = "none"\nepochs = 10\npatience = "none"\nnote = "none"\nfast = false\nway = "sum"\n'
        "sizes = [1, 2]\nrates = [[1.0, 1e-05]]\n\n[model]\n"
        'name = "tgcn"\nhidden = 16\ndropout = 0.0\nlayers = [{size = 8, kind = "gcn"}]\n\n[model.options]\n"a b" = 1\n'
    )


@pytest.mark.parametrize(
    ("run", "sentence"),
    [
        (Run(graph=Path("g"), note="none"), "^note is 'none', which reads back as None"),
        (Run(graph=Path("g"), model=Model(dropout=math.inf)), "^model.dropout is Infinity"),
        (Run(graph=Path("\udcff")), "is not UTF-8"),
    ],
)
def test_what_cannot_be_written_is_refused(run: Run, sentence: str) -> None:
    with pytest.raises(BadConfig, match=sentence):
        dump(run)


def test_every_value_is_told_with_its_dotted_key() -> None:
    told = flat(Run(graph=Path("g"), model=Model(options={"a": 1})))
    assert told["graph"] == Path("g")
    assert told["model.hidden"] == 16
    assert told["model.options.a"] == 1
    assert told["patience"] is None
    assert list(told)[:3] == ["graph", "model.name", "model.hidden"]
