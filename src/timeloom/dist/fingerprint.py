"""Whether all ranks are about to do the same thing: what a collective may be given, and what it looks like from afar.

Size mismatches end a process inside gloo, mismatched types give garbage, and two reductions of one shape in different
order swap their sums without a word (STACK 2, points 1 and 2). So tensors are asserted on always, and under
``--check-world`` every collective is preceded by an exchange of fingerprints.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from timeloom.errors import RanksDiffer

DTYPES = frozenset(
    {
        torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.int32, torch.uint8, torch.bool,
    }
)  # fmt: skip
_ROOM = 512


def admit(x: Tensor, name: str, device: torch.device) -> None:
    """Assert that a tensor can be sent as it lies in memory, and that no gradient ends here unseen."""
    assert x.layout == torch.strided, f"{name}: a {x.layout} tensor cannot be sent; send its parts"
    assert x.is_contiguous(), f"{name}: a tensor {tuple(x.shape)} with strides {x.stride()} is not contiguous"
    assert x.dtype in DTYPES, f"{name}: {x.dtype} cannot be sent"
    assert x.device == device, f"{name}: a tensor on {x.device}, where {device} was meant"
    assert not (x.requires_grad and torch.is_grad_enabled()), f"{name}: the gradient would end here; use flight.py"


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A collective as one rank is about to do it."""

    group: str
    name: str
    label: str
    """The name and the step."""
    what: str
    """Kind, dtype and the part of the shape that must be the same on all ranks."""
    sequence: int
    """How many collectives this rank has begun on this group."""
    sent: tuple[int, ...] = ()
    """Rows for each rank, where they may differ."""
    received: tuple[int, ...] = ()
    messages: Mapping[int, tuple[str, int]] = field(default_factory=dict)
    """For messages: which count of which rank they wait for (`Sighting.counts`)."""

    def print_to(self, size: int) -> Tensor:
        """Return this call's fingerprint: JSON in as many bytes as on every other rank of ``size``."""
        told = {key: getattr(self, key) for key in ("name", "label", "what", "sequence", "sent", "received")}
        text = json.dumps(told).encode()
        room = _ROOM + 48 * size
        assert len(text) <= room, f"{self.name}: a fingerprint of {len(text)} bytes, of {room}"
        return torch.frombuffer(bytearray(text.ljust(room)), dtype=torch.uint8)


def compare(mine: Call, rank: int, prints: Sequence[Tensor]) -> None:
    """Raise `RanksDiffer` where the fingerprint of another rank does not fit this rank's call."""
    for other, found in enumerate(prints):
        if other != rank:
            compare_pair(mine, rank, other, found)


def compare_pair(mine: Call, rank: int, other: int, found: Tensor) -> None:
    """Raise `RanksDiffer` where one rank's fingerprint does not fit this rank's call."""
    theirs = json.loads(found.numpy().tobytes())
    if any(theirs[key] != getattr(mine, key) for key in ("name", "what", "sequence")):
        # Both ranks say the same sentence, so that logs of several ranks read alike.
        said = {rank: _said(mine.label, mine.what, mine.sequence)}
        said[other] = _said(theirs["label"], theirs["what"], theirs["sequence"])
        first, second = sorted(said)
        raise RanksDiffer(
            f"ranks do different things: rank {first} {said[first]}, but rank {second} {said[second]}; "
            "every rank must run the same command, and no collective may depend on what only one rank knows"
        )
    if mine.sent and (mine.sent[other] != theirs["received"][rank] or mine.received[other] != theirs["sent"][rank]):
        raise RanksDiffer(
            f"{mine.label}: rank {rank} sends {mine.sent[other]} rows to rank {other}, which expects "
            f"{theirs['received'][rank]}, and expects {mine.received[other]} of the {theirs['sent'][rank]} it sends"
        )


def _said(label: str, what: str, sequence: int) -> str:
    return f"is at {label} ({what}, its call {sequence} of the group)"
