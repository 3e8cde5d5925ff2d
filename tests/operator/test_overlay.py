"""podTemplate is laid over ours as Kubernetes' strategic merge does it."""

from __future__ import annotations

from typing import Any

import pytest
from operator_world.world import rapjob
from rap_contract.status import Attempt
from rap_operator.children import attempt_job
from rap_operator.observe import judge, subject_of
from rap_operator.overlay import merged

OURS: dict[str, Any] = {
    "containers": [
        {"name": "trainer", "image": "a", "env": [{"name": "X", "value": "1"}, {"name": "Y", "value": "2"}]}
    ],
    "tolerations": [{"key": "ours"}],
    "volumes": [{"name": "shm", "emptyDir": {}}],
    "subdomain": "s",
}


@pytest.mark.parametrize(
    ("theirs", "path", "expected"),
    [
        ({"containers": [{"name": "trainer", "image": "b"}]}, ("containers", 0, "image"), "b"),
        ({"containers": [{"name": "trainer", "image": "b"}]}, ("containers", 0, "env", 1, "name"), "Y"),
        ({"containers": [{"name": "side"}]}, ("containers", 1, "name"), "side"),
        (
            {"containers": [{"name": "trainer", "env": [{"name": "X", "value": "9"}]}]},
            ("containers", 0, "env", 0, "value"),
            "9",
        ),
        ({"containers": [{"name": "trainer", "env": [{"name": "Z"}]}]}, ("containers", 0, "env", 2, "name"), "Z"),
        (
            {"containers": [{"name": "trainer", "env": [{"name": "X", "$patch": "delete"}]}]},
            ("containers", 0, "env", 0, "name"),
            "Y",
        ),
        ({"tolerations": [{"key": "theirs"}]}, ("tolerations",), [{"key": "theirs"}]),
        ({"tolerations": []}, ("tolerations",), []),
        (
            {"volumes": [{"name": "shm", "emptyDir": {"sizeLimit": "1Gi"}}]},
            ("volumes", 0, "emptyDir", "sizeLimit"),
            "1Gi",
        ),
        ({"volumes": [{"name": "data"}]}, ("volumes", 1, "name"), "data"),
        ({"volumes": [{"$patch": "replace"}, {"name": "data"}]}, ("volumes",), [{"name": "data"}]),
        ({"securityContext": {"fsGroup": 1}}, ("securityContext", "fsGroup"), 1),
    ],
    ids=lambda value: None,
)
def test_parts_merge_by_their_names(theirs: dict[str, Any], path: tuple[str | int, ...], expected: object) -> None:
    node: Any = merged(OURS, theirs)
    for part in path:
        node = node[part]
    assert node == expected


def test_null_removes_and_nothing_is_changed_in_place() -> None:
    before = repr(OURS)
    assert "subdomain" not in merged(OURS, {"subdomain": None})
    merged(OURS, {"containers": [{"name": "trainer", "image": "b"}]})
    assert repr(OURS) == before


def job(**spec: Any) -> dict[str, Any]:
    item = rapjob(**spec)
    item["metadata"] |= {"uid": "0a1b2c3d-0000", "generation": 4}
    spec_ = judge(item).spec
    assert spec_ is not None
    attempt = Attempt(
        number=3, revision="feedbeef00000000", nodes=spec_.trainer.nodes, recorded_at="2026-01-01T00:00:00Z"
    )
    return attempt_job(subject_of(item), attempt, spec_)


def test_the_job_runs_all_or_nothing_and_tells_its_attempt() -> None:
    made = job()
    spec, template = made["spec"], made["spec"]["template"]
    assert made["metadata"]["name"] == "clicks-0a1b2c3d-3"
    assert (spec["completions"], spec["parallelism"], spec["backoffLimit"]) == (2, 2, 0)
    container = template["spec"]["containers"][0]
    env = {item["name"]: item.get("value") for item in container["env"]}
    assert env["RAP_ATTEMPT"] == "3"
    assert env["RAP_FENCE"] == "1767225600000"
    assert env["RAP_RENDEZVOUS"] == "clicks-0a1b2c3d-3-0.clicks-0a1b2c3d:29400"
    assert env["RAP_NODES"] == "2"
    assert container["command"] == ["rap", "run", "/etc/rap/job/job.yaml"]
    assert template["spec"]["subdomain"] == "clicks-0a1b2c3d"


def test_pods_are_restricted_by_default() -> None:
    pod = job()["spec"]["template"]["spec"]
    assert pod["securityContext"] == {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    assert pod["containers"][0]["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
    }
    assert pod["automountServiceAccountToken"] is False


def test_gpus_are_asked_for() -> None:
    container = job(trainer={"nodes": 2, "gpusPerNode": 8})["spec"]["template"]["spec"]["containers"][0]
    assert container["resources"] == {"limits": {"nvidia.com/gpu": 8}}


def test_ranks_of_a_node_share_memory_and_pods_are_spread_over_nodes() -> None:
    pod = job()["spec"]["template"]["spec"]
    (mount,) = (mount for mount in pod["containers"][0]["volumeMounts"] if mount["mountPath"] == "/dev/shm")
    assert {"name": mount["name"], "emptyDir": {"medium": "Memory"}} in pod["volumes"]
    (spread,) = pod["topologySpreadConstraints"]
    assert (spread["topologyKey"], spread["whenUnsatisfiable"]) == ("kubernetes.io/hostname", "ScheduleAnyway")
    assert spread["labelSelector"] == {"matchLabels": {"rap.dev/job-uid": "0a1b2c3d-0000"}}


def test_labels_of_ours_win_over_the_users() -> None:
    overlay = {"metadata": {"labels": {"rap.dev/attempt": "77", "team": "ads"}}}
    labels = job(trainer={"nodes": 2, "podTemplate": overlay})["spec"]["template"]["metadata"]["labels"]
    assert (labels["rap.dev/attempt"], labels["team"]) == ("3", "ads")


def test_secrets_are_mounted_by_reference() -> None:
    kafka = {"bootstrapServers": ["k:9092"], "topic": "t", "auth": {"secretName": "kafka-auth"}}
    pod = job(source={"files": None, "kafka": kafka})["spec"]["template"]["spec"]
    assert {"name": "rap-secrets", "secret": {"secretName": "kafka-auth"}} in pod["volumes"]
