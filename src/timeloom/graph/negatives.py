"""Which pairs that are not linked is a link predictor tested against?

Every draw is exact: it is uniform over the pairs that are allowed, without trial and error, so a negative is missing
only where its source has no pair left. Draws are independent, so a target may occur twice in a row.

Shape letters: P positives, K negatives of each, U different sources, B barred pairs, which may not be drawn.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from timeloom.graph.keys import Int64s
from timeloom.graph.pairs import SeenPairs, find, gathered, merged, ranges_of


@dataclass(frozen=True, slots=True)
class Negatives:
    """K pairs for each positive, from its source to other targets."""

    targets_PK: Int64s
    """A negative that is not valid names the source itself, so that its score can be computed all the same."""
    valid_PK: NDArray[np.bool_]
    filled: int = 0
    """How many of the valid negatives are random ones, because the source has no other of the kind asked for."""


@dataclass(frozen=True, slots=True)
class _Sources:
    """The different sources of the positives, and the pairs of these that may not be drawn."""

    nodes_U: Int64s
    row_P: Int64s
    barred_B: Int64s
    """Sorted keys of pairs that are taken, or that lead from a source to itself."""
    row_B: Int64s


def random_negatives(
    sources_P: Int64s, num: int, *, candidates: Int64s, taken: Int64s, num_nodes: int, rng: np.random.Generator
) -> Negatives:
    """Return ``num`` targets for each source, uniform over the candidates that are not taken and not the source.

    ``candidates`` are nodes and ``taken`` pair keys (of all positives of the snapshot), both sorted, each once.
    """
    assert (candidates[1:] > candidates[:-1]).all(), "candidates are sorted, each once"
    sources = _sources(sources_P, taken, num_nodes)
    places_B, listed_B = find(candidates, sources.barred_B % max(num_nodes, 1))
    sizes_U = np.full(len(sources.nodes_U), len(candidates))
    row_B, place_B = sources.row_B[listed_B], places_B[listed_B]
    places_PK, valid_P = _draw(sizes_U, row_B, place_B, row_P=sources.row_P, num=num, rng=rng)
    targets_PK = np.repeat(sources_P[:, None], num, axis=1)
    targets_PK[valid_P] = candidates[places_PK[valid_P]]
    return Negatives(targets_PK, np.repeat(valid_P[:, None], num, axis=1))


def historical_negatives(
    sources_P: Int64s, num: int, *, seen: SeenPairs, candidates: Int64s, taken: Int64s, num_nodes: int,
    rng: np.random.Generator,
) -> Negatives:  # fmt: skip
    """Return ``num`` targets for each source, uniform over those it was linked to so far that are not taken now.

    A source without any gets random negatives among the candidates; only these are limited to candidates.
    """
    assert seen.num_nodes == num_nodes, f"pairs of {seen.num_nodes} nodes for a graph of {num_nodes}"
    sources = _sources(sources_P, taken, num_nodes)
    drawn = _from_pool(sources_P, num, pool=seen.keys, sources=sources, num_nodes=num_nodes, rng=rng)
    return _filled(drawn, sources_P, candidates=candidates, taken=taken, num_nodes=num_nodes, rng=rng)


def inductive_negatives(
    sources_P: Int64s, num: int, *, seen_since: SeenPairs, seen_in_training: SeenPairs, candidates: Int64s,
    taken: Int64s, num_nodes: int, rng: np.random.Generator,
) -> Negatives:  # fmt: skip
    """Return negatives as :func:`historical_negatives` does, of pairs seen since the end of training and never in it.

    The cost is the pairs that these sources had since, and a search in those of training for each.
    """
    assert seen_since.num_nodes == seen_in_training.num_nodes == num_nodes, "pairs of another graph"
    sources = _sources(sources_P, taken, num_nodes)
    since = gathered(seen_since.keys, *seen_since.of_source(sources.nodes_U))
    pool = since[~seen_in_training.contains(since)]
    drawn = _from_pool(sources_P, num, pool=pool, sources=sources, num_nodes=num_nodes, rng=rng)
    return _filled(drawn, sources_P, candidates=candidates, taken=taken, num_nodes=num_nodes, rng=rng)


def _sources(sources_P: Int64s, taken: Int64s, num_nodes: int) -> _Sources:
    nodes_U, row_P = np.unique(sources_P, return_inverse=True)
    taken_of_them = gathered(taken, *ranges_of(taken, nodes_U, num_nodes))
    barred_B = merged(taken_of_them, nodes_U * (num_nodes + 1))
    row_B = np.searchsorted(nodes_U, barred_B // max(num_nodes, 1))
    return _Sources(nodes_U, row_P, barred_B, row_B)


def _from_pool(
    sources_P: Int64s, num: int, *, pool: Int64s, sources: _Sources, num_nodes: int, rng: np.random.Generator
) -> Negatives:
    """Return targets drawn from each source's own pairs in the sorted ``pool``; where it has none, none is valid."""
    starts_U, ends_U = ranges_of(pool, sources.nodes_U, num_nodes)
    places_B, listed_B = find(pool, sources.barred_B)
    row_B = sources.row_B[listed_B]
    place_B = places_B[listed_B] - starts_U[row_B]
    places_PK, valid_P = _draw(ends_U - starts_U, row_B, place_B, row_P=sources.row_P, num=num, rng=rng)
    places_PK += starts_U[sources.row_P][:, None]
    targets_PK = np.repeat(sources_P[:, None], num, axis=1)
    targets_PK[valid_P] = pool[places_PK[valid_P]] % max(num_nodes, 1)
    return Negatives(targets_PK, np.repeat(valid_P[:, None], num, axis=1))


def _filled(
    drawn: Negatives, sources_P: Int64s, *, candidates: Int64s, taken: Int64s, num_nodes: int, rng: np.random.Generator
) -> Negatives:
    """Return the negatives with random ones where there are none."""
    missing_P = ~drawn.valid_PK.all(axis=1)
    num = drawn.targets_PK.shape[1]
    extra = random_negatives(
        sources_P[missing_P], num, candidates=candidates, taken=taken, num_nodes=num_nodes, rng=rng
    )
    drawn.targets_PK[missing_P] = extra.targets_PK
    drawn.valid_PK[missing_P] = extra.valid_PK
    return Negatives(drawn.targets_PK, drawn.valid_PK, filled=int(extra.valid_PK.sum()))


def _draw(
    sizes_U: Int64s, row_B: Int64s, place_B: Int64s, *, row_P: Int64s, num: int, rng: np.random.Generator
) -> tuple[Int64s, NDArray[np.bool_]]:
    """Return [P, num] places in the lists of the sources, and [P] whether a source has a place that is not barred.

    Row u's list has ``sizes_U[u]`` places; ``place_B`` are barred ones, ascending within the ascending rows ``row_B``.
    """
    barred_U = np.bincount(row_B, minlength=len(sizes_U))
    free_P = (sizes_U - barred_U)[row_P]
    drawn_PK = rng.integers(0, np.maximum(free_P, 1)[:, None], size=(len(row_P), num))
    # The free place number r is place r + (barred places before it). Barred place b is before it when at most r free
    # places precede b; that count never falls along a row, so one search in all rows end to end finds how many are.
    firsts_U = np.cumsum(barred_U) - barred_U
    free_before_B = place_B - (np.arange(len(row_B)) - firsts_U[row_B])
    width = int(sizes_U.max(initial=0))
    passed_PK = np.searchsorted(row_B * width + free_before_B, row_P[:, None] * width + drawn_PK, side="right")
    return drawn_PK + passed_PK - firsts_U[row_P][:, None], free_P > 0
