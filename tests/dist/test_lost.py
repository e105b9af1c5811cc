"""Which rank is missing: the sentence, case by case."""

from __future__ import annotations

from timeloom.dist.fingerprint import Call
from timeloom.dist.lost import behind, describe
from timeloom.dist.transport import Sighting

CALL = Call(
    group="halo", name="halo/layer0", label="halo/layer0/step 3", what="", sequence=7
)  # fmt: skip
HERE = Sighting("halo/layer0/step 3", {"halo": 7})
BEFORE = Sighting("grad/step 2", {"halo": 6, "grad": 9})


def said(*others: Sighting, silent: set[int], late: bool) -> str:
    return describe(CALL, [HERE, *others], silent, limit_s=60.0 if late else None)


def test_everyone_who_is_behind_is_named_when_time_is_up() -> None:
    assert said(BEFORE, Sighting(), silent={2}, late=True) == (
        "rank 1 has not reached halo/layer0/step 3 (last seen at grad/step 2; its process is alive); "
        "rank 2 has not reached halo/layer0/step 3 (last seen at its start; its process does not answer) (waited 60 s)"
    )


def test_who_is_merely_on_its_way_is_not_blamed_for_a_broken_connection() -> None:
    assert said(BEFORE, BEFORE, silent={2}, late=False) == (
        "rank 2 has not reached halo/layer0/step 3 (last seen at grad/step 2; its process does not answer) "
        "(the connection was lost)"
    )


def test_without_a_silent_rank_all_who_are_behind_are_named() -> None:
    text = said(BEFORE, HERE, silent=set(), late=False)
    assert text.startswith("rank 1 has not reached halo/layer0/step 3 (last seen at grad/step 2; its process is alive)")


def test_a_rank_that_died_in_the_collective_was_lost_in_it() -> None:
    assert said(BEFORE, HERE, silent={2}, late=False) == (
        "rank 2 was lost in halo/layer0/step 3 (last seen at halo/layer0/step 3; its process does not answer) "
        "(the connection was lost)"
    )


def test_who_gave_up_because_of_another_is_not_blamed() -> None:
    gone = Sighting("grad/step 2", {"halo": 6}, gave_up=True)
    assert said(gone, BEFORE, silent={1, 2}, late=False).startswith("rank 2 has not reached")
    assert "rank 1" not in said(gone, BEFORE, silent={1, 2}, late=True)


def test_of_those_lost_in_a_collective_the_one_that_did_not_give_up_is_named() -> None:
    gave_up = Sighting("halo/layer0/step 3", {"halo": 7}, gave_up=True)
    assert said(gave_up, HERE, silent={1, 2}, late=False).startswith("rank 2 was lost in")
    assert "rank 1" not in said(gave_up, HERE, silent={1, 2}, late=False)


def test_a_failure_that_was_told_comes_first() -> None:
    failed = Sighting("grad/step 2", {"halo": 6}, failure="BadStore: no such file")
    assert said(BEFORE, failed, silent={1, 2}, late=True) == (
        "rank 2 failed at grad/step 2: BadStore: no such file (waited 60 s)"
    )


def test_where_all_have_come_the_network_is_suspected() -> None:
    assert said(HERE, HERE, silent=set(), late=True) == (
        "all ranks have reached halo/layer0/step 3, but it was not finished: the network may be slow or broken "
        "(waited 60 s)"
    )


def test_of_a_message_only_its_ends_are_missed() -> None:
    messages = {1: ("state>0", 4)}
    call = Call(group="state", name="state", label="state", what="messages", sequence=0, messages=messages)
    sent, not_sent = Sighting("state", {"state>0": 4}), Sighting("state", {"state>0": 3, "state": 9})
    assert behind(call, [HERE, not_sent, Sighting()]) == [1]
    assert behind(call, [HERE, sent, Sighting()]) == []


def test_a_sighting_survives_its_way_as_text() -> None:
    seen = Sighting("grad/step 2 é", {"halo": 6, "state>1": 2}, "BadStore: \n", gave_up=True)
    assert Sighting.from_text(seen.to_text()) == seen
