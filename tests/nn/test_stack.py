"""Layers of different kinds stand on top of each other, and convolutions carry the shorter rows."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from tests.nn.reference import Choices
from tests.nn.scenes import made, over, scene, view_of
from timeloom.kernels.norms import Norm
from timeloom.nn.layers import Convolution
from timeloom.nn.model import PerNode
from timeloom.nn.sage import SageConvolution
from timeloom.nn.stack import Stack
from timeloom.train.localise import WholeView

PAIRS = [
    ("sage_linear", "gcn_gru"), ("evolvegcn_h", "wdgcn"), ("gcn_gru", "evolvegcn_h"), ("dcrnn", "sage_attention"),
    ("mpnn_lstm", "tgcn"),
]  # fmt: skip


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.mark.parametrize(("below", "above"), PAIRS)
def test_a_stack_is_one_layer_after_the_other(below: str, above: str) -> None:
    first = made(below, 3, Choices())
    second = made(above, first.out_size, Choices(), seed=1)
    stack, moments = Stack([first, second], dropout=0.0), scene("all of it")
    outs, state = over(first, moments)
    expected, above_state = over(second, [replace(moment, x=out) for moment, out in zip(moments, outs, strict=True)])
    found, found_state = over(stack, moments)
    for left, right in zip([*found, *found_state], [*expected, *state, *above_state], strict=True):
        torch.testing.assert_close(left, right, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(("below", "above"), PAIRS)
def test_a_stack_describes_all_of_its_layers(below: str, above: str) -> None:
    first = made(below, 3, Choices())
    second = made(above, first.out_size, Choices())
    stack = Stack([first, second], dropout=0.0)
    assert stack.sees_all == (first.sees_all or second.sees_all)
    assert stack.mixes_states == (first.mixes_states or second.mixes_states)
    assert (stack.hops, stack.out_size) == (first.hops + second.hops, second.out_size)
    for slot, part in zip(stack.memory(), [*first.memory(), *second.memory()], strict=True):
        assert type(slot) is type(part)
        if isinstance(slot, PerNode) and isinstance(part, PerNode):
            assert (slot.shape, slot.holds) == (part.shape, part.holds)


class Counting(WholeView):
    """A view that notes the width of what it carries along edges."""

    widths: tuple[int, ...] = ()

    def aggregate(self, x_NF: Tensor, norm: Norm) -> Tensor:
        self.widths = (*self.widths, x_NF.shape[1])
        return super().aggregate(x_NF, norm)


def counting() -> Counting:
    view = view_of(scene("weighted")[0], 0)
    view.__class__ = Counting
    assert isinstance(view, Counting)
    return view


@pytest.mark.parametrize(("num_in", "num_out"), [(3, 5), (5, 3), (4, 4)])
def test_a_convolution_carries_the_shorter_rows(num_in: int, num_out: int) -> None:
    for layer in (Convolution(num_in, num_out, Norm("sym")), SageConvolution(num_in, num_out)):
        view = counting()
        layer.double()(view, torch.ones(7, num_in, dtype=torch.float64))
        assert view.widths == (min(num_in, num_out),)


@pytest.mark.parametrize("name", ["evolvegcn_o", "evolvegcn_h"])
def test_evolvegcn_always_aggregates_first(name: str) -> None:
    """Rows after the weight cannot be shared between snapshots (D2.5)."""
    model, view = made(name, 9, Choices()), counting()
    x_NF = torch.ones(7, 9, dtype=torch.float64)
    rows = model.encode(view, x_NF)
    assert view.widths == (9,)
    torch.testing.assert_close(rows[0], view.aggregate(x_NF, Norm("sym")))
