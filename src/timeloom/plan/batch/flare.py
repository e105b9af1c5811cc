"""All that can be chosen of FlareDTDG, and how many chunks a window's older snapshots keep (SPEC section 7).

A window is `full` snapshots computed whole, the newest ones, and up to `decayed` older ones of which fewer and fewer
chunks are computed. Counts go by age: age 0 is the newest snapshot of a window.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import Literal

from timeloom.errors import BadConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class FlareSettings:
    """What a window of FlareDTDG looks like, and which of its parts are switched off for comparison."""

    full: int = 2  # K: the newest snapshots of a window, computed whole (FlareDTDG 3.5)
    decayed: int = 6  # m: older ones, of which some chunks are computed; K + m = 8 (FlareDTDG 4.1)
    decay: Literal["paper", "public", "list"] = "paper"
    """How many chunks of them. paper: the oldest keeps `alpha` of its chunks, the others evenly more in ratio (D7.1).
    public: as the public code does, the newest of them keeps `alpha`, the oldest 1 chunk. list: see `ratios`."""
    alpha: float = 0.1
    """The share of chunks that is kept, see `decay` (FlareDTDG 3.5)."""
    ratios: tuple[float, ...] = ()
    """decay=list: the share of chunks that each decayed snapshot keeps, the newest first."""
    chunks: int = 128
    """Chunks of every owner (the public code has 4 x 128, 8 x 64, 12 x 48, 16 x 32)."""
    chunks_by: Literal["metis", "hash", "random"] = "metis"
    """How an owner's nodes are cut into chunks: by METIS on the union of the training snapshots, by a hash, or dealt
    out at random."""
    loss: Literal["last", "blocks"] = "last"
    """What is learnt from: the newest snapshot (Algorithm 1), or the mean over all snapshots of a window (D7.4)."""
    state: Literal["inherit", "zero"] = "inherit"
    """What a window starts from: the states that the one before it kept, or zero."""
    temporal_halo: Literal["drop", "exchange"] = "drop"
    """Edges of decayed snapshots that come from another rank: dropped as in the public code, so that the result depends
    on the number of ranks, or kept (D7.5)."""
    degrees: Literal["block", "snapshot"] = "block"
    """What a decayed snapshot is normalised by: the degrees its nodes have left, or those of the whole snapshot."""
    split: bool = False
    """Cut the sequence at a random place in every epoch, and train on the later part first (D7.2)."""
    warmup: bool = False
    """Before the later part, go over the snapshots just before it without learning; else its state starts from zero."""
    history: Literal["decayed", "full", "recent"] = "decayed"
    """full: older snapshots stay whole (the ablation Full-History). recent: there are none (Recent-Only)."""
    shrink: bool = True
    """One order of nodes an epoch, so that a decayed snapshot is a prefix. false: nodes are numbered anew in every
    window (the ablation without shrinking); it computes the same."""
    overlap: bool = True
    """Exchange rows of one snapshot while another is computed. false: one after the other."""
    predictor: Literal["mlp", "linear"] = "mlp"
    """What predicts how long the parts of a window take, where they overlap."""

    def __post_init__(self) -> None:
        if self.full < 1 or self.decayed < 0 or self.chunks < 1:
            raise BadConfig(
                f"flare.full={self.full}, flare.decayed={self.decayed}, flare.chunks={self.chunks}: a window has 1 "
                "full snapshot or more, 0 decayed ones or more, and every owner 1 chunk or more"
            )
        if not 0.0 < self.alpha <= 1.0:
            raise BadConfig(f"flare.alpha={self.alpha:g} is no share of chunks: give more than 0, up to 1, such as 0.1")
        _check_ratios(self)
        if self.warmup and (not self.split or self.state == "zero"):
            raise BadConfig(
                "flare.warmup=true warms up the state of the later part of a split sequence: it needs "
                "--set flare.split=true and --set flare.state=inherit"
            )

    @property
    def length(self) -> int:
        """How many snapshots a window has that is not at the beginning (W)."""
        return self.full if self.history == "recent" else self.full + self.decayed

    @property
    def counts(self) -> tuple[int, ...]:
        """How many chunks of every owner are computed of a snapshot, by its age; never more than of the one after."""
        if self.history != "decayed":
            return (self.chunks,) * self.length
        return (self.chunks,) * self.full + decayed_counts(self)


def _check_ratios(settings: FlareSettings) -> None:
    ratios, decayed = settings.ratios, settings.decayed
    if settings.decay != "list":
        if ratios:
            raise BadConfig(
                f"flare.ratios has {len(ratios)} shares, but flare.decay={settings.decay} reads flare.alpha: leave the "
                "shares out, or use --set flare.decay=list"
            )
        return
    if len(ratios) != decayed:
        raise BadConfig(
            f"flare.decay=list needs a share of chunks in flare.ratios for each of the flare.decayed={decayed} decayed "
            f"snapshots, the newest first, but there are {len(ratios)}"
        )
    if not all(0.0 < ratio <= 1.0 for ratio in ratios) or sorted(ratios, reverse=True) != list(ratios):
        raise BadConfig(
            f"flare.ratios={list(ratios)}: give shares of more than 0, up to 1, that never rise: a node that is left "
            "out of a snapshot would have no state to go on with in an older one"
        )


def decayed_counts(settings: FlareSettings) -> tuple[int, ...]:
    """Return how many chunks the decayed snapshots keep, the newest first: at least 1, and never more than before."""
    chunks, decayed = settings.chunks, settings.decayed
    if settings.decay == "list":
        return tuple(max(1, round(chunks * ratio)) for ratio in settings.ratios)
    if settings.alpha == 1.0:
        return (chunks,) * decayed
    if settings.decay == "paper":
        # Rounded once each: the paper rounds the count before down again and again, and few chunks come to none.
        return tuple(max(1, round(chunks * settings.alpha ** (j / decayed))) for j in range(1, decayed + 1))
    # The public code, PEERS 3: from a share of the chunks down to 1 chunk in even ratios; of 128: 13, 8, 5, 3, 2, 1.
    first = ceil(chunks * settings.alpha)
    return tuple(max(1, round(first ** (1 - j / max(decayed - 1, 1)))) for j in range(decayed))
