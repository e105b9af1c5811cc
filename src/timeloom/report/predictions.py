"""How a sample of predictions is shown beside what came true: points, a table of classes, or shares by probability."""

from __future__ import annotations

from typing import Any

import numpy as np

from timeloom.records import Predicted
from timeloom.report.shrink import Places, short

MOST_POINTS = 1_500
MOST_CLASSES = 12
BINS = 20
OTHERS = "all others"


def shown(found: Predicted) -> dict[str, Any]:
    """Return what the page draws of a sample, as plain data."""
    about = {"split": found.split, "what": found.what, "form": found.form, "count": len(found.truth)}
    if found.form == "class":
        names, counts = confusion_of(found)
        return {**about, "names": names, "counts": counts.tolist()}
    if found.form == "probability":
        return {
            **about,
            "names": list(found.classes),
            "from": starts_of_bins(),
            "counts": by_probability(found).tolist(),
        }
    places = np.linspace(0, len(found.truth) - 1, min(MOST_POINTS, len(found.truth))).astype(int)
    truth, predicted = np.array(found.truth)[places], np.array(found.predicted)[places]
    return {**about, "truth": short(truth), "predicted": short(predicted)}


def confusion_of(found: Predicted) -> tuple[list[str], Places]:
    """Return the classes that occur and how often each (row) was predicted as each (column).

    Of more than fit into a table the commonest are told, and the others together.
    """
    truth, told = (np.array(side, np.int64) for side in (found.truth, found.predicted))
    often = np.bincount(np.concatenate([truth, told]), minlength=len(found.classes))
    occur = np.flatnonzero(often)
    kept = occur
    if len(occur) > MOST_CLASSES:
        commonest = occur[np.argsort(-often[occur], kind="stable")]
        kept = np.sort(commonest[: MOST_CLASSES - 1])
    place_C = np.full(len(often), len(kept))
    place_C[kept] = np.arange(len(kept))
    names = [found.classes[place] for place in kept] + [OTHERS] * (len(kept) < len(occur))
    cells = np.bincount(place_C[truth] * len(names) + place_C[told], minlength=len(names) ** 2)
    return names, cells.reshape(len(names), len(names))


def starts_of_bins() -> list[float]:
    """Return where each bin of probabilities begins."""
    return [round(place / BINS, 4) for place in range(BINS)]


def by_probability(found: Predicted) -> Places:
    """Return [2, BINS] how many targets of either truth were given a probability in each bin."""
    shares = np.nan_to_num(np.array(found.predicted))
    bins = np.clip((shares * BINS).astype(np.int64), 0, BINS - 1)
    return np.bincount(np.array(found.truth, np.int64) * BINS + bins, minlength=2 * BINS).reshape(2, BINS)
