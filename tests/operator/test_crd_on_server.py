"""The API server serves the CRD, and refuses what a job may not say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from operator_world import refusals
from operator_world.on_server import OnServer
from operator_world.world import rapjob
from rap_contract.status import Attempt, Condition, Measured, ReplanRecord, Status, time_text
from rap_operator.apply import difference
from rap_operator.observe import judge
from servers.kube_api import KubeError

pytestmark = pytest.mark.cluster


def refused_by(on_server: OnServer, job: dict[str, Any]) -> str:
    """Who refuses a job: the server, the operator in the condition Accepted, or nobody."""
    job["metadata"]["namespace"] = on_server.namespace
    query = {"dryRun": "All", "fieldValidation": "Strict"}
    try:
        taken = on_server.api.request("POST", on_server.path, body=job, query=query)
    except KubeError:
        return "API server"
    return "operator" if judge(taken).spec is None else "nobody"


def test_everything_wrong_with_a_job_is_refused_by_the_server_or_said_by_the_operator(
    on_server: OnServer, tmp_path: Path
) -> None:
    verdicts = [refused_by(on_server, refusals.damaged(place, value)) for place, value in refusals.REFUSED]
    assert [row for row, who in zip(refusals.REFUSED, verdicts, strict=True) if who == "nobody"] == []
    found = tmp_path / "table.md"
    found.write_text(refusals.table(verdicts))
    assert refusals.page_table() == found.read_text(), f"docs/operator.md is to have what {found} has"


def test_whole_numbers_are_taken_where_numbers_are_due(on_server: OnServer) -> None:
    job = rapjob()
    job["spec"]["features"][0]["ops"] = [
        {"fillNull": {"value": 0}},
        {"log1p": {"min": 0}},
        {"clamp": {"lo": -5, "hi": 5}},
        {"standardize": {"mean": 1, "std": 2}},
    ]
    stored = on_server.create(job)
    assert judge(stored).problems == ()


def test_what_the_server_completes_means_the_same_to_the_operator(on_server: OnServer) -> None:
    job = rapjob()
    stored = on_server.create(rapjob())
    job["metadata"]["namespace"] = on_server.namespace
    assert judge(stored).revision == judge(job).revision
    assert stored["spec"]["trainer"]["batchSizePerGpu"] == 4096


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"source": {"files": None, "kafka": {"bootstrapServers": ["k:9092"], "topic": "t"}}}, "kind of source"),
        ({"model": {"dlrm": {"bottom": [64, 16], "top": [1]}}}, "the model changes only while"),
        ({"checkpoint": {"path": "/elsewhere"}}, "checkpoint.path changes only while"),
        ({"label": "int_0"}, "the label changes only while"),
        ({"managedBy": "someone.else/x"}, "managedBy never changes"),
    ],
    ids=["source", "model", "checkpoint", "label", "managedBy"],
)
def test_immutable_parts_are_refused_while_running(on_server: OnServer, change: dict[str, Any], message: str) -> None:
    on_server.create(rapjob())
    with pytest.raises(KubeError, match=message):
        on_server.edit(**change)


def test_suspend_resize_resume_is_allowed_by_the_rules(on_server: OnServer) -> None:
    on_server.create(rapjob())
    on_server.edit(suspend=True)
    on_server.edit(trainer={"nodes": 8}, model={"dlrm": {"bottom": [64, 16], "top": [1]}})
    on_server.edit(suspend=False, checkpoint={"path": "/elsewhere"})
    assert on_server.api.get(f"{on_server.path}/clicks")["spec"]["trainer"]["nodes"] == 8


def test_a_whole_status_survives_the_schema(on_server: OnServer) -> None:
    on_server.create(rapjob())
    now = time_text(1_800_000_000.123456)
    attempt = Attempt(number=2, state="Ended", revision="ab", nodes=2, cause="x", recorded_at=now, ended_at=now)
    condition = Condition(type="Accepted", status="True", reason="Valid", last_transition_time=now)
    status = Status(
        observed_generation=3,
        conditions=[condition],
        attempt=attempt,
        history=[attempt],
        metrics=Measured(samples_per_second=1.5, step=7.0, observed_at=now),
        replans=[ReplanRecord(time=now, first=now, outcome="None", reason="Calm", numbers={"gain": 0.01})],
        selector="a=b",
    )
    document = status.model_dump(mode="json", by_alias=True, exclude_none=True)
    on_server.api.patch(f"{on_server.path}/clicks/status", {"status": document})
    stored = on_server.status()
    assert difference(document, stored) == {}
    assert Status.model_validate(stored) == status


def test_kubectl_sees_a_job_as_people_do(on_server: OnServer) -> None:
    kubectl = on_server.cluster.kubectl
    on_server.create(rapjob())
    metrics = {"samplesPerSecond": 80_000.5, "exposedPercent": 2.5, "freshnessSeconds": 1.5, "lagRecords": 1200}
    status = {
        "phase": "Running",
        "ready": "2/2",
        "plan": {"hash": "feedbeef"},
        "restarts": {"total": 3},
        "metrics": metrics,
    }
    on_server.api.patch(f"{on_server.path}/clicks/status", {"status": status})
    header, line = kubectl("get", "rj", "-n", on_server.namespace).splitlines()
    assert header.split() == [
        *("NAME", "PHASE", "READY", "SAMPLES/S", "EXPOSED%", "FRESHNESS", "LAG", "PLAN", "RESTARTS", "AGE")
    ]
    assert line.split()[:-1] == ["clicks", "Running", "2/2", "80000.5", "2.5", "1.5", "1200", "feedbeef", "3"]
    assert "clicks" in kubectl("get", "rap", "-n", on_server.namespace)
    kubectl("scale", "rj/clicks", "--replicas=5", "-n", on_server.namespace)
    assert on_server.api.get(f"{on_server.path}/clicks")["spec"]["trainer"]["nodes"] == 5
    text = kubectl("explain", "rapjob.spec.restartPolicy.rules")
    assert "first match" in text.lower()


def test_the_committed_samples_are_taken_by_the_server(on_server: OnServer) -> None:
    on_server.cluster.kubectl("apply", "--dry-run=server", "-n", on_server.namespace, "-f", "manifests/samples")
