"""What every world must do, on threads: one, two and three ranks, with and without fingerprints."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from tests.dist.scenarios import SCENARIOS
from timeloom.dist.collectives import World
from timeloom.dist.threads import run
from timeloom.dist.world import alone


@pytest.mark.parametrize("check", [False, True], ids=["plain", "checked"])
@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_on_threads(scenario: Callable[[World], None], size: int, check: bool) -> None:
    run(size, scenario, check=check)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_alone(scenario: Callable[[World], None]) -> None:
    scenario(alone(torch.device("cpu")))
