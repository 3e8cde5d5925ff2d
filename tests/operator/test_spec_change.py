"""Changes of a spec fall into four classes, and validation never breaks on a document."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from operator_world import refusals
from operator_world.world import rapjob
from rap_contract.job import RAPJobSpec
from rap_operator.observe import MAX_SPEC_BYTES, judge, subject_of
from rap_operator.spec_change import Change, classify, revision_of


def spec(**parts: Any) -> RAPJobSpec:
    found = judge(rapjob(**parts)).spec
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        ({}, Change.IGNORED),
        ({"stallSeconds": 900}, Change.IGNORED),
        ({"stallSeconds": 60}, Change.HOT),
        ({"suspend": True}, Change.HOT),
        ({"replanning": {"mode": "Off"}}, Change.HOT),
        ({"trainer": {"nodes": 4}}, Change.RESTART),
        ({"trainer": {"nodes": 2, "podTemplate": {"spec": {"priorityClassName": "high"}}}}, Change.RESTART),
        ({"checkpoint": {"intervalSeconds": 60}}, Change.RESTART),
        ({"checkpoint": {"path": "/other"}}, Change.REFUSED),
        ({"model": {"dlrm": {"bottom": [64, 16], "top": [1]}}}, Change.REFUSED),
        ({"source": {"files": None, "kafka": {"bootstrapServers": ["k:1"], "topic": "t"}}}, Change.REFUSED),
        ({"managedBy": "other.dev/x"}, Change.REFUSED),
    ],
    ids=str,
)
def test_a_change_has_its_class(parts: dict[str, Any], expected: Change) -> None:
    change, why = classify(spec(), spec(**parts), is_at_rest=False)
    assert change is expected
    assert bool(why) == (expected is Change.REFUSED)


def test_at_rest_only_the_source_and_the_manager_are_fixed() -> None:
    assert classify(spec(), spec(checkpoint={"path": "/other"}), is_at_rest=True)[0] is Change.RESTART
    kafka = {"files": None, "kafka": {"bootstrapServers": ["k:1"], "topic": "t"}}
    assert classify(spec(), spec(source=kafka), is_at_rest=True)[0] is Change.REFUSED


def test_a_revision_is_the_same_for_the_same_meaning() -> None:
    spelled_out = spec(trainer={"nodes": 2, "batchSizePerGpu": 4096})
    assert revision_of(spec()) == revision_of(spelled_out)
    assert revision_of(spec()) != revision_of(spec(trainer={"nodes": 3}))


def test_a_spec_too_large_to_be_kept_is_said_to_be() -> None:
    huge = {f"column_{i:06}" + "x" * 200: "int32" for i in range(5000)}
    judged = judge(rapjob(columns=huge))
    assert judged.spec is None
    assert f"at most {MAX_SPEC_BYTES}" in judged.problems[0]


@pytest.mark.parametrize(
    ("template", "said"),
    [
        ({"spec": None}, "podTemplate.spec: it cannot be removed"),
        ({"spec": []}, "podTemplate.spec: a mapping is due, got a list"),
        ({"metadata": {"labels": "a"}}, "podTemplate.metadata.labels: a mapping is due, got a text"),
        ({"spec": {"containers": {}}}, "podTemplate.spec.containers: a list is due, got a mapping"),
        ({"spec": {"containers": ["x"]}}, "podTemplate.spec.containers[0]: a mapping is due, got a text"),
        ({"spec": {"containers": [{}]}}, "podTemplate.spec.containers[0].name: required"),
        ({"spec": {"containers": [{"name": "trainer", "env": 1}]}}, "containers[0].env: a list is due, got 1"),
        (
            {"spec": {"containers": [{"name": "trainer", "$patch": "delete"}]}},
            "podTemplate.spec.containers: one is due",
        ),
        ({"spec": {"$patch": "replace"}}, "podTemplate.spec.containers: each has a name"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_pod_template_that_cannot_be_merged_is_said_with_its_place(template: dict[str, Any], said: str) -> None:
    judged = judge(rapjob(trainer={"podTemplate": template}))
    assert judged.spec is None
    assert f"spec.trainer.{said}" in judged.problems[0] or said in judged.problems[0]


@pytest.mark.parametrize(("place", "value"), refusals.REFUSED, ids=refusals.named)
def test_what_is_refused_is_refused_before_any_cluster_too(place: refusals.Place, value: Any) -> None:
    job = refusals.damaged(place, value)
    judged = judge(job)
    assert judged.spec is None
    assert judged.problems[0].startswith("spec."), judged.problems


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@st.composite
def damaged(draw: st.DrawFn) -> dict[str, Any]:
    """A valid job with something replaced, removed or added somewhere."""
    job = rapjob()
    for _ in range(draw(st.integers(1, 3))):
        node: Any = job
        while True:
            keys = list(node) if isinstance(node, dict) else list(range(len(node)))
            if not keys:
                break
            key = draw(st.sampled_from(keys))
            if not isinstance(node[key], dict | list) or draw(st.integers(0, 3)) == 0:
                if node is job and key == "metadata":
                    break
                node[key] = draw(JSON)
                break
            node = node[key]
    if not isinstance(job.get("metadata"), dict) or not isinstance(job["metadata"].get("name"), str):
        job["metadata"] = {"name": "clicks", "namespace": "jobs"}
    return job


@settings(max_examples=300, deadline=None)
@given(damaged())
def test_any_document_is_judged_without_a_traceback(job: dict[str, Any]) -> None:
    judged = judge(job)
    assert (judged.spec is None) == bool(judged.problems)


@settings(max_examples=200, deadline=None)
@given(JSON)
def test_any_status_is_read_or_counts_as_lost(status: Any) -> None:
    item = rapjob()
    item["metadata"]["uid"] = "u"
    item["status"] = status if isinstance(status, dict) else {"attempt": status, "conditions": status}
    subject_of(item)
