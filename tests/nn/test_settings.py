"""Settings that cannot be meant are refused in one sentence, and a model of one's own is as good as ours."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import FrozenInstanceError, replace
from pathlib import Path

import pytest
import torch

from tests.nn.reference import Choices
from tests.nn.scenes import made, over, scene
from timeloom.errors import BadConfig
from timeloom.nn.models import MODELS, make_model
from timeloom.nn.settings import ModelSettings

OWN = '''
"""The mean of a node's neighbours, remembered with a fading of one's own choice."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from timeloom.kernels.norms import Norm
from timeloom.nn.model import Model, PerNode


class Fading(Model):
    def __init__(self, num_in, settings):
        super().__init__()
        self.out_size = settings.hidden
        self.share = float(settings.options.get("share", 0.5))
        self.linear = nn.Linear(num_in, settings.hidden)

    def memory(self):
        return (PerNode("h", (self.out_size,)),)

    def encode(self, view, x):
        source, target = view.edge_index
        heard = torch.zeros_like(x).index_add(0, target, view.edge_weight[:, None].to(x.dtype) * x[source])
        assert torch.allclose(heard, view.aggregate(x, Norm("sum", self_loops=False)))
        return (torch.tanh(self.linear(heard)),)

    def recur(self, view, rows, state):
        h = self.share * state[0] + (1 - self.share) * rows[0]
        return h, (h,)
'''


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> None:
    torch.set_num_threads(1)


def refusal(settings: ModelSettings, num_in: int = 3) -> str:
    with pytest.raises(BadConfig) as caught:
        make_model(num_in, settings)
    return one_sentence(str(caught.value))


def one_sentence(text: str) -> str:
    assert "\n" not in text
    assert len(text) < 400
    assert not text.endswith(".")
    return text


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("hidden", 0, "model.hidden=0"),
        ("layers", 0, "model.layers=0"),
        ("layers", -3, "model.layers=-3"),
        ("layers", 17, "16 or fewer"),
        ("heads", 0, "model.heads=0"),
        ("hops", -1, "give 0 or more"),
        ("span", 0, "model.span=0"),
        ("dropout", 1.0, "model.dropout=1"),
        ("dropout", -0.1, "model.dropout=-0.1"),
        ("dropout", float("nan"), "model.dropout=nan"),
    ],
)
def test_a_value_out_of_bounds_is_refused_by_name(name: str, value: float, words: str) -> None:
    with pytest.raises(BadConfig) as caught:
        replace(ModelSettings(), **{name: value})  # type: ignore[arg-type]
    assert words in one_sentence(str(caught.value))


@pytest.mark.parametrize("name", ["gat_lstm", "sage_attention"])
def test_heads_that_do_not_divide_are_refused_with_a_size_that_does(name: str) -> None:
    with pytest.raises(BadConfig) as caught:
        ModelSettings(name=name, hidden=29, heads=4)
    assert "model.hidden=32" in one_sentence(str(caught.value))
    assert ModelSettings(name=name, hidden=32, heads=4).heads == 4
    # Who has no heads does not care.
    assert ModelSettings(name="tgcn", hidden=30, heads=4).hidden == 30


def test_the_least_and_the_most_are_accepted() -> None:
    assert ModelSettings(hidden=1, layers=16, heads=1, hops=0, span=1, dropout=0.0).layers == 16


def test_settings_stay_as_they_are() -> None:
    with pytest.raises(FrozenInstanceError):
        ModelSettings().hidden = 3  # type: ignore[misc]


def test_settings_are_read_without_torch() -> None:
    program = "import sys, timeloom.nn.settings; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_an_unknown_model_is_refused_with_those_there_are() -> None:
    text = refusal(ModelSettings(name="gcn"))
    assert "'gcn'" in text
    assert all(name in text for name in MODELS)
    assert "FILE.py:Class" in text


@pytest.mark.parametrize("name", MODELS)
def test_every_model_is_made_by_its_name_alone(name: str) -> None:
    for layers in (1, 2):
        model = make_model(5, ModelSettings(name=name, layers=layers, hidden=8))
        assert all(torch.isfinite(parameter).all() for parameter in model.parameters())
        assert all(parameter.dtype == torch.float32 for parameter in model.parameters())


def test_the_same_seed_makes_the_same_model() -> None:
    def drawn(seed: int) -> list[torch.Tensor]:
        torch.manual_seed(seed)
        return list(make_model(3, ModelSettings(name="evolvegcn_h")).parameters())

    first, again, other = drawn(1), drawn(1), drawn(2)
    assert all(torch.equal(left, right) for left, right in zip(first, again, strict=True))
    assert any(not torch.equal(left, right) for left, right in zip(first, other, strict=True))


def test_a_model_of_ones_own_works(tmp_path: Path) -> None:
    file = tmp_path / "fading.py"
    file.write_text(OWN)
    settings = ModelSettings(name=f"{file}:Fading", hidden=4, options={"share": 0.25})
    model, moments = make_model(3, settings).double(), scene("coming and going")
    outs, state = over(model, moments)
    assert outs[-1].shape == (7, 4)
    absent = ~torch.tensor(moments[-1].alive)
    assert not outs[-1][absent].any()
    # The equation, with a dense matrix.
    h = torch.zeros(7, 4, dtype=torch.float64)
    weight, bias = (part.detach() for part in model.state_dict().values())
    for moment in moments:
        heard = torch.zeros(7, 3, dtype=torch.float64)
        for u, v, w in moment.edges:
            heard[v] += w * moment.x[u]
        new = 0.25 * h + 0.75 * torch.tanh(heard @ weight.T + bias)
        h = torch.where(torch.tensor(moment.alive)[:, None], new, h)
    torch.testing.assert_close(state[0].detach(), h, rtol=1e-10, atol=1e-10)
    other = make_model(3, replace(settings, options={})).double()
    other.load_state_dict(model.state_dict())
    assert not torch.equal(over(other, moments)[0][-1], outs[-1])


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    text = refusal(ModelSettings(name=f"{tmp_path}/none.py:Mine"))
    assert f"{tmp_path}/none.py" in text
    assert "no file" in text
    assert "no file" in refusal(ModelSettings(name=f"{tmp_path}:Mine"))
    assert "no file" in refusal(ModelSettings(name=":Mine"))


def test_a_file_that_is_not_python_is_named(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text(OWN)
    assert "no Python file" in refusal(ModelSettings(name=f"{tmp_path}/mine.txt:Fading"))


def test_a_missing_class_is_named_beside_those_there_are(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(OWN)
    text = refusal(ModelSettings(name=f"{file}:Fade"))
    assert "no class Fade" in text
    assert text.endswith("it has Fading")
    # What is there, but no model.
    assert "no class torch" in refusal(ModelSettings(name=f"{file}:torch"))
    assert "no class PerNode" in refusal(ModelSettings(name=f"{file}:PerNode"))
    empty = tmp_path / "empty.py"
    empty.write_text("")
    assert refusal(ModelSettings(name=f"{empty}:Mine")).endswith("it has none")


def test_an_abstract_class_is_refused_with_what_it_leaves_out(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(OWN.replace("def recur", "def recurr").replace("def memory", "def memories"))
    text = refusal(ModelSettings(name=f"{file}:Fading"))
    assert "leaves out memory, recur" in text


def test_a_file_of_ones_own_may_hold_dataclasses(tmp_path: Path) -> None:
    """A dataclass looks its module up by name."""
    file = tmp_path / "mine.py"
    file.write_text(OWN + "\n\n@dataclass\nclass Sizes:\n    hidden: int = 3\n")
    assert make_model(3, ModelSettings(name=f"{file}:Fading")).out_size == 32


def test_a_model_of_ones_own_is_saved_and_loaded_whole(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(OWN)
    settings = ModelSettings(name=f"{file}:Fading", hidden=4)
    first, second = make_model(3, settings), make_model(3, settings)
    torch.save(first.state_dict(), tmp_path / "weights")
    second.load_state_dict(torch.load(tmp_path / "weights"))
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))


def test_batch_norm_of_one_node_is_a_sentence_or_works() -> None:
    """While training, torch's own refuses a single row."""
    model, moments = made("mpnn_lstm", 3, Choices(batch_norm=True)), scene("one node")
    try:
        assert torch.isfinite(over(model.train(), moments)[0][-1]).all()
    except BadConfig as refused:
        one_sentence(str(refused))
