"""Every model once more, dense and slow, from SPEC section 2 and the papers' equations.

Nothing of timeloom is imported: an independent reading. Weights are read by their names in the state dict, everything
is a matrix with a row for each node, and gates, heads and hops are loops.

Shape letters: N nodes, F features, H hidden size.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

Weights = dict[str, Tensor]
State = list[Tensor]


@dataclass(frozen=True, kw_only=True)
class Moment:
    """One snapshot: its edges (source, target, weight) in any order, who is there, and the features."""

    edges: tuple[tuple[int, int, float], ...]
    alive: tuple[bool, ...]
    x: Tensor


@dataclass(frozen=True, kw_only=True)
class Choices:
    """What can be chosen of a model."""

    hidden: int = 4
    layers: int = 1
    norm: str = "sym"
    self_loops: bool = True
    heads: int = 2
    hops: int = 2
    walk: str = "pull"
    span: int = 3
    jump: bool = True
    skip: bool = True
    batch_norm: bool = False


def operator(moment: Moment, kind: str, *, self_loops: bool, reverse: bool = False) -> Tensor:
    """Return the matrix P whose row v says how much of each row u node v takes in."""
    edges = [(v, u, w) for u, v, w in moment.edges] if reverse else list(moment.edges)
    if self_loops:
        edges += [(v, v, 1.0) for v, here in enumerate(moment.alive) if here]
    d_in, d_out = [0.0] * len(moment.alive), [0.0] * len(moment.alive)
    for u, v, w in edges:
        d_in[v] += abs(w)
        d_out[u] += abs(w)
    p = torch.zeros(len(moment.alive), len(moment.alive), dtype=moment.x.dtype)
    for u, v, w in edges:
        divisor = {
            "sum": 1.0,
            "mean": d_in[v],
            "push": d_out[u],
            "sym": math.sqrt(d_in[u] * d_in[v]),
            "both": math.sqrt(d_out[u] * d_in[v]),
        }[kind]
        p[v, u] += w / divisor if divisor else 0.0
    return p


def sigma(z: Tensor) -> Tensor:
    """Return the logistic function."""
    return 1.0 / (1.0 + torch.exp(-z))


def relu(z: Tensor) -> Tensor:
    """Return what is positive."""
    return z * (z > 0)


def gate(parts: Tensor, place: int, size: int) -> Tensor:
    """Return the columns of one gate."""
    return parts[..., place * size : (place + 1) * size]


def gcn(weights: Weights, name: str, moment: Moment, x: Tensor, choices: Choices) -> Tensor:
    """Kipf and Welling: ``P X W + b``."""
    p = operator(moment, choices.norm, self_loops=choices.self_loops)
    return p @ (x @ weights[f"{name}.weight"]) + weights[f"{name}.bias"]


def gru(weights: Weights, name: str, x: Tensor, h: Tensor) -> Tensor:
    """Cho et al., in the form of torch.nn.GRUCell: r, z, n."""
    size = h.shape[1]
    seen = x @ weights[f"{name}.weight_in"] + weights[f"{name}.bias_in"]
    was = h @ weights[f"{name}.weight_h"].T + weights[f"{name}.bias_h"]
    r, z = sigma(gate(seen, 0, size) + gate(was, 0, size)), sigma(gate(seen, 1, size) + gate(was, 1, size))
    n = torch.tanh(gate(seen, 2, size) + r * gate(was, 2, size))
    return (1 - z) * n + z * h


def lstm(weights: Weights, name: str, x: Tensor, state: Sequence[Tensor]) -> list[Tensor]:
    """Hochreiter and Schmidhuber, in the form of torch.nn.LSTMCell: i, f, g, o."""
    h, c = state
    z = x @ weights[f"{name}.weight_in"] + weights[f"{name}.bias"] + h @ weights[f"{name}.weight_h"].T
    i, f, g, o = (gate(z, place, h.shape[1]) for place in range(4))
    c = sigma(f) * c + sigma(i) * torch.tanh(g)
    return [sigma(o) * torch.tanh(c), c]


def tgcn(weights: Weights, moment: Moment, x: Tensor, state: State, choices: Choices) -> tuple[Tensor, State]:
    """SPEC (c), PyGT's TGCN: a convolution for each gate, then Linear([conv, h]): update, reset, candidate."""
    (h,) = state
    size = choices.hidden
    p = operator(moment, choices.norm, self_loops=choices.self_loops)

    def linear(place: int, h: Tensor) -> Tensor:
        seen = p @ x @ gate(weights["weight_in"], place, size) + gate(weights["bias_in"], place, size)
        both = torch.cat([weights["weight_seen"][place], weights["weight_h"][place]], 0)
        return torch.cat([seen, h], 1) @ both + weights["bias"][place]

    z, r = sigma(linear(0, h)), sigma(linear(1, h))
    h = z * h + (1 - z) * torch.tanh(linear(2, r * h))
    return h, [h]


def tgcn_integrated(
    weights: Weights, moment: Moment, x: Tensor, state: State, choices: Choices
) -> tuple[Tensor, State]:  # fmt: skip
    """SPEC (b), the official T-GCN: gates ``P [X, h] W + b``; update, reset, candidate."""
    (h,) = state
    size = choices.hidden
    p = operator(moment, choices.norm, self_loops=choices.self_loops)

    def convolve(place: int, h: Tensor) -> Tensor:
        of_h = weights["weight_candidate"] if place == 2 else gate(weights["weight_gates"], place, size)
        both = torch.cat([gate(weights["seen.weight"], place, size), of_h], 0)
        return p @ torch.cat([x, h], 1) @ both + gate(weights["seen.bias"], place, size)

    u, r = sigma(convolve(0, h)), sigma(convolve(1, h))
    h = u * h + (1 - u) * torch.tanh(convolve(2, r * h))
    return h, [h]


def gcn_gru(weights: Weights, moment: Moment, x: Tensor, state: State, choices: Choices) -> tuple[Tensor, State]:
    """SPEC (d): GCN then GRU."""
    h = gru(weights, "gru", relu(gcn(weights, "convolution", moment, x, choices)), state[0])
    return h, [h]


def wdgcn(weights: Weights, moment: Moment, x: Tensor, state: State, choices: Choices) -> tuple[Tensor, State]:
    """``LSTM(relu(P X W))`` for every node."""
    state = lstm(weights, "lstm", relu(gcn(weights, "near", moment, x, choices)), state)
    return state[0], state


def gat_lstm(weights: Weights, moment: Moment, x: Tensor, state: State, choices: Choices) -> tuple[Tensor, State]:
    """Velickovic et al.'s attention with self loops, heads side by side; then an LSTM for every node."""
    incoming: list[list[int]] = [[v] if here else [] for v, here in enumerate(moment.alive)]
    for u, v, _ in moment.edges:
        incoming[v].append(u)
    size = choices.hidden // choices.heads
    heads = []
    for head in range(choices.heads):
        value = x @ gate(weights["near.weight"], head, size)
        sent, received = value @ weights["near.sent"][head], value @ weights["near.received"][head]
        rows = []
        for v, neighbours in enumerate(incoming):
            logits = [sent[u] + received[v] for u in neighbours]
            shares = [torch.exp(logit if logit > 0 else 0.2 * logit) for logit in logits]
            row = torch.zeros(size, dtype=x.dtype)
            for u, share in zip(neighbours, shares, strict=True):
                row = row + share / torch.stack(shares).sum() * value[u]
            rows.append(row)
        heads.append(torch.stack(rows))
    state = lstm(weights, "lstm", relu(torch.cat(heads, 1) + weights["near.bias"]), state)
    return state[0], state


def matrix_gru(weights: Weights, q: Tensor, z: Tensor) -> Tensor:
    """Pareja et al., the authors' mat_GRU_cell: update, reset, candidate."""

    def combine(place: int, q: Tensor) -> Tensor:
        return weights["gru.see"][place] @ z + weights["gru.was"][place] @ q + weights["gru.bias"][place]

    u, r = sigma(combine(0, q)), sigma(combine(1, q))
    return (1 - u) * q + u * torch.tanh(combine(2, r * q))


def evolvegcn_o(weights: Weights, moment: Moment, x: Tensor, state: State, choices: Choices) -> tuple[Tensor, State]:
    """The weight evolves by itself, then ``relu(P X Q)``."""
    q = matrix_gru(weights, state[0], state[0])
    return relu(operator(moment, choices.norm, self_loops=choices.self_loops) @ x @ q), [q]


def evolvegcn_h(weights: Weights, moment: Moment, x: Tensor, state: State, choices: Choices) -> tuple[Tensor, State]:
    """The weight evolves with the k rows of highest score, k its columns; the last one is repeated if too few."""
    direction = weights["direction"]
    scores = x @ direction / torch.sqrt((direction**2).sum())
    here = sorted((-scores[v].item(), v) for v, alive in enumerate(moment.alive) if alive)
    best = [v for _, v in here][: choices.hidden]
    best += best[-1:] * (choices.hidden - len(best))
    z = torch.zeros_like(state[0])
    if best:
        z = torch.stack([x[v] * torch.tanh(scores[v]) for v in best], 1)
    q = matrix_gru(weights, state[0], z)
    return relu(operator(moment, choices.norm, self_loops=choices.self_loops) @ x @ q), [q]


def dcrnn(weights: Weights, moment: Moment, x: Tensor, state: State, choices: Choices) -> tuple[Tensor, State]:
    """Li et al.: ``sum_k (D_O^-1 W)^k X theta_k1 + (D_I^-1 W^T)^k X theta_k2``; push: the transposed walks."""
    (h,) = state
    size = choices.hidden
    # W[u, v] is the weight of u -> v. Row u of D_O^-1 W reads v, along u's own edges.
    along = operator(moment, "mean", self_loops=False, reverse=True)
    against = operator(moment, "mean", self_loops=False)
    if choices.walk == "push":
        along, against = along.T, against.T

    def diffuse(signal: Tensor, theta: Tensor) -> Tensor:
        width = signal.shape[1]
        powers = [torch.matrix_power(along, hop) for hop in range(choices.hops + 1)]
        powers += [torch.matrix_power(against, hop) for hop in range(1, choices.hops + 1)]
        total = torch.zeros(len(signal), theta.shape[1], dtype=signal.dtype)
        for place, power in enumerate(powers):
            total = total + power @ signal @ theta[place * width : (place + 1) * width]
        return total

    def convolve(place: int, h: Tensor) -> Tensor:
        of_h = weights["weight_candidate"] if place == 2 else gate(weights["weight_gates"], place, size)
        seen = diffuse(x, gate(weights["weight_seen"], place, size))
        return seen + diffuse(h, of_h) + gate(weights["bias"], place, size)

    r, u = sigma(convolve(0, h)), sigma(convolve(1, h))
    h = u * h + (1 - u) * torch.tanh(convolve(2, r * h))
    return h, [h]


Layer = Callable[[Weights, Moment, Tensor, State, Choices], tuple[Tensor, State]]
STACKED: dict[str, tuple[Layer, int]] = {
    "tgcn": (tgcn, 1),
    "tgcn_integrated": (tgcn_integrated, 1),
    "gcn_gru": (gcn_gru, 1),
    "wdgcn": (wdgcn, 2),
    "gat_lstm": (gat_lstm, 2),
    "evolvegcn_o": (evolvegcn_o, 0),
    "evolvegcn_h": (evolvegcn_h, 0),
    "dcrnn": (dcrnn, 1),
}
"""Layers that stand on top of each other, and how many [N, H] states each has; 0: its state is a weight."""


def batch_norm(weights: Weights, name: str, x: Tensor) -> Tensor:
    """Ioffe and Szegedy, over all nodes, while training."""
    mean = x.sum(0) / len(x)
    variance = ((x - mean) ** 2).sum(0) / len(x)
    return (x - mean) / torch.sqrt(variance + 1e-5) * weights[f"{name}.weight"] + weights[f"{name}.bias"]


def mpnn_lstm(weights: Weights, moment: Moment, x: Tensor, state: State, choices: Choices) -> tuple[Tensor, State]:
    """Panagopoulos et al.: ``[x1, x2, ..] -> LSTM -> LSTM``, output ``[h1, h2, X]``."""
    seen, below = [], x
    for place in range(choices.layers):
        below = relu(gcn(weights, f"convolutions.{place}", moment, below, choices))
        if choices.batch_norm:
            below = batch_norm(weights, f"norms.{place}.norm", below)
        seen.append(below)
    first = lstm(weights, "first", torch.cat(seen, 1) if choices.jump else below, state[:2])
    second = lstm(weights, "second", first[0], state[2:])
    return torch.cat([first[0], second[0], x][: 3 if choices.skip else 2], 1), first + second


def sage(weights: Weights, moment: Moment, x: Tensor, choices: Choices) -> Tensor:
    """Hamilton et al. with the mean; an absent node has no embedding: 0."""
    p = operator(moment, "mean", self_loops=False)
    for place in range(choices.layers):
        name = f"sage.layers.{place}"
        x = relu(x @ weights[f"{name}.own"] + p @ x @ weights[f"{name}.near"] + weights[f"{name}.bias"])
    return x * torch.tensor(moment.alive)[:, None]


def sage_linear(past: list[Tensor], weights: Weights) -> Tensor:
    """``Linear([e_oldest, .., e_newest])``."""
    return torch.cat(past, 1) @ weights["weight"] + weights["bias"]


def sage_attention(past: list[Tensor], there: list[Tensor], weights: Weights, heads: int) -> Tensor:
    """DySAT's attention from the newest embedding over those that there are; nobody there gives 0."""
    placed = [embedding + weights["position"][place] for place, embedding in enumerate(past)]
    size = past[0].shape[1] // heads
    rows = []
    for v in range(len(past[0])):
        seen = [place for place in range(len(past)) if there[place][v]]
        row = []
        for head in range(heads):
            query = placed[-1][v] @ gate(weights["query"], head, size)
            logits = [query @ (placed[place][v] @ gate(weights["key"], head, size)) / math.sqrt(size) for place in seen]
            values = [placed[place][v] @ gate(weights["value"], head, size) for place in seen]
            shares = torch.softmax(torch.stack(logits), 0) if seen else torch.zeros(0, dtype=past[0].dtype)
            parts = [share * value for share, value in zip(shares, values, strict=True)]
            row.append(torch.stack(parts).sum(0) if seen else torch.zeros(size, dtype=past[0].dtype))
        rows.append(torch.cat(row))
    return torch.stack(rows) + past[-1]


def run(
    name: str, weights: Weights, moments: Sequence[Moment], choices: Choices, *, hold: bool
) -> tuple[list[Tensor], list[Tensor]]:
    """Return the output after each snapshot, and the state after the last; a window that starts fresh."""
    if name.startswith("sage"):
        return _run_sage(name, weights, moments, choices, hold=hold)
    step, state = _stepper(name, weights, choices, len(moments[0].alive))
    outs = []
    for moment in moments:
        here = torch.tensor(moment.alive)[:, None]
        out, after = step(moment, state)
        per_node = not name.startswith("evolvegcn")
        state = [
            torch.where(here, new, old) if hold and per_node else new for new, old in zip(after, state, strict=True)
        ]
        outs.append(torch.where(here, out, 0.0) if hold else out)
    return outs, state


def _stepper(
    name: str, weights: Weights, choices: Choices, num_nodes: int
) -> tuple[Callable[[Moment, State], tuple[Tensor, State]], State]:
    """Return what takes a state over a snapshot, and the first state."""
    zero = torch.zeros(num_nodes, choices.hidden, dtype=next(iter(weights.values())).dtype)
    if name == "mpnn_lstm":
        return (lambda moment, state: mpnn_lstm(weights, moment, moment.x, state, choices)), [zero] * 4
    layer, num_states = STACKED[name]
    prefixes = [f"layers.{depth}." for depth in range(choices.layers)] if choices.layers > 1 else [""]
    parts = [{key.removeprefix(p): part for key, part in weights.items() if key.startswith(p)} for p in prefixes]

    def step(moment: Moment, state: State) -> tuple[Tensor, State]:
        x, after = moment.x, State()
        size = len(state) // len(parts)
        for depth, part in enumerate(parts):
            x, new = layer(part, moment, x, state[depth * size : (depth + 1) * size], choices)
            after += new
        return x, after

    first = [[zero] * num_states if num_states else [part["first_weight"]] for part in parts]
    return step, [slot for slots in first for slot in slots]


def _run_sage(
    name: str, weights: Weights, moments: Sequence[Moment], choices: Choices, *, hold: bool
) -> tuple[list[Tensor], list[Tensor]]:
    """Return outputs, and the embeddings of the last ``span - 1`` snapshots (and who was there), oldest first."""
    num_nodes = len(moments[0].alive)
    dtype = moments[0].x.dtype
    past = [torch.zeros(num_nodes, choices.hidden, dtype=dtype)] * choices.span
    there = [torch.zeros(num_nodes, dtype=dtype)] * choices.span
    outs = []
    for moment in moments:
        here = torch.tensor(moment.alive)
        past, there = [*past[1:], sage(weights, moment, moment.x, choices)], [*there[1:], here.to(dtype)]
        linear = name == "sage_linear"
        out = sage_linear(past, weights) if linear else sage_attention(past, there, weights, choices.heads)
        outs.append(torch.where(here[:, None], out, 0.0) if hold else out)
    kept = torch.stack(past, 1)[:, 1:]
    return outs, [kept] if name == "sage_linear" else [kept, torch.stack(there, 1)[:, 1:]]
