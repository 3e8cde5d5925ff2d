"""Plans and profiles as JSON: round trips, and every kind of bad text refused with its place."""

from __future__ import annotations

import json
from typing import Any

import pytest
from planner.random_tasks import random_profile, random_task
from rap_contract.plan import Plan
from rap_contract.problem import InvalidDocument
from rap_contract.profile import Profile, WindowProfile
from rap_contract.windows import OPTIMIZER
from rap_planner.explain import plan_of
from rap_planner.search import Planner


def plan() -> Plan:
    return plan_of(Planner().search(random_task(4), random_profile(4)), random_profile(4))


def edited(text: str, *path_and_value: Any) -> str:
    """A JSON text with one value replaced."""
    document = json.loads(text)
    *path, last, value = path_and_value
    node = document
    for part in path:
        node = node[part]
    node[last] = value
    return json.dumps(document)


@pytest.mark.parametrize(
    "change",
    [
        ("mapping", "f0", 3),
        ("prediction", "boundSeconds", 0.0),
        ("kernels", 0, "features", ["other"]),
        ("job", "another"),
        ("hash", "0" * 16),
        ("hash", ""),
    ],
    ids=["mapping", "prediction", "kernels", "job", "hash", "no hash"],
)
def test_a_plan_edited_by_hand_is_detected_through_its_hash(change: tuple[Any, ...]) -> None:
    with pytest.raises(InvalidDocument, match="does not match its hash"):
        Plan.from_json(edited(plan().to_json(), *change))


def test_a_plan_without_a_hash_is_refused() -> None:
    document = json.loads(plan().to_json())
    del document["hash"]
    with pytest.raises(InvalidDocument, match="hash"):
        Plan.from_json(json.dumps(document))


def test_layout_of_the_text_does_not_matter() -> None:
    made = plan()
    assert Plan.from_json(json.dumps(json.loads(made.to_json()), indent=3)) == made


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("schedule", [{"window": "emb_bwd"}] + [{"window": "emb_fwd"}] * 3), "earlier window than the kernel before"),
        (("schedule", [{"window": "lunch"}] * 4), "unknown window"),
        (("schedule", []), "equally many"),
        (("schedule", [{"window": "emb_fwd", "programs": 0}] * 4), "greater than or equal to 1"),
        (("mapping", "f0", 99), "beyond the plan's 4"),
        (("version", 2), "version"),
        (("surprise", 1), "unknown key"),
    ],
    ids=["order", "window", "missing", "grid", "rank", "version", "key"],
)
def test_a_plan_that_cannot_run_is_refused(change: tuple[Any, ...], message: str) -> None:
    with pytest.raises(InvalidDocument, match=message):
        Plan.from_json(edited(plan().to_json(), *change))


@pytest.mark.parametrize("kind", [Plan, Profile])
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[" * 100_000, "nested deeper"),
        ('{"a":' * 40 + "1" + "}" * 40, "nested deeper"),
        ("{", "not JSON"),
        ("", "not JSON"),
        (" " * (16 * 2**20 + 1), "larger than"),
        ('{"job": "a", "job": "b"}', "given twice"),
        ("[]", "should be a valid dictionary"),
        ("null", "should be a valid dictionary"),
        ('"text"', "should be a valid dictionary"),
        ("1" * 5000, "not JSON"),
    ],
    ids=["brackets", "deep", "cut", "empty", "huge", "twice", "list", "null", "text", "digits"],
)
def test_texts_that_are_no_document_are_refused(kind: type[Plan] | type[Profile], text: str, message: str) -> None:
    with pytest.raises(InvalidDocument, match=message):
        kind.from_json(text)


def test_brackets_within_names_are_not_counted_as_depth() -> None:
    with pytest.raises(InvalidDocument) as refused:
        Plan.from_json(json.dumps({"job": "[" * 100, "escaped": '"[' * 50}))
    assert "nested" not in str(refused.value)


def test_a_profile_comes_back_from_its_json() -> None:
    profile = random_profile(1)
    assert Profile.from_json(profile.to_json()) == profile
    assert Profile.from_json(profile.to_json()).hash == profile.hash


def test_a_profile_may_name_what_nothing_is_placed_in() -> None:
    profile = random_profile(1)
    named = profile.model_copy(update={"windows": (*profile.windows, WindowProfile(name=OPTIMIZER, seconds=1e-6))})
    assert Profile.from_json(named.to_json()).window(OPTIMIZER).seconds == 1e-6


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("stepSeconds", float("nan")), r"stepSeconds: not a finite number"),
        (("links", "bytesPerSecond", float("inf")), r"links.bytesPerSecond: not a finite number"),
        (("windows", 1, "responses", 0, "addedSeconds", float("nan")), r"windows\[1\].responses\[0\].addedSeconds"),
        (("windows", []), "missing .*emb_fwd"),
        (("windows", 1, "name", "lunch"), "unknown .*lunch"),
        (("windows", 1, "name", "emb_bwd"), "missing .*emb_fwd"),
        (("schemaVersion", 1), "schema version 2 are read here, got 1"),
        (("schemaVersion", "2"), "schema version 2"),
        (("coefficients", "stages", "lanes", "secondsPerByte", -1e-12), r"stages.lanes.secondsPerByte"),
        (("windows", 0, "seconds", 1.0), "longer than the step"),
        (("modelHash", "mine"), "modelHash"),
    ],
    ids=str,
)
def test_a_bad_profile_is_refused_with_the_place(change: tuple[Any, ...], message: str) -> None:
    with pytest.raises(InvalidDocument, match=message):
        Profile.from_json(edited(random_profile(1).to_json(), *change))


def test_a_profile_says_which_device_or_model_it_is_not_of() -> None:
    profile = random_profile(1).model_copy(update={"model_hash": "0" * 16})
    assert not profile.mismatches(device="random", model_hash="0" * 16)
    device, model = profile.mismatches(device="NVIDIA H100", model_hash="1" * 16)
    assert "NVIDIA H100" in str(device)
    assert "1111" in str(model)
