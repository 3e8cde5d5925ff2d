"""The pure parts of the node agent: what a container is given follows from objects alone."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest
from node_agent.atomic_folder import write_all
from node_agent.environment import ReferenceMissing, arguments, environment, expand, quantity
from node_agent.hosts import hosts_file
from node_agent.status import agrees
from servers.kube_api import Object

OBJECTS: dict[tuple[str, str], Object] = {
    ("configmaps", "settings"): {"data": {"COLOUR": "red"}},
    ("secrets", "login"): {"data": {"password": base64.b64encode(b"hush").decode()}},
}
POD: Object = {
    "metadata": {"name": "p-0", "namespace": "n", "labels": {"app": "w"}},
    "spec": {"hostname": "p-0", "subdomain": "w", "containers": []},
    "status": {"podIP": "127.9.0.2"},
}


def lookup(kind: str, name: str) -> Object | None:
    return OBJECTS.get((kind, name))


@pytest.mark.parametrize(
    ("text", "expanded"),
    [
        pytest.param("$(A)-$(B)", "1-$(B)", id="unknown names stay"),
        pytest.param("$$(A)", "$(A)", id="a doubled dollar escapes"),
        pytest.param("$A ${A}", "$A ${A}", id="shell syntax is left to the shell"),
    ],
)
def test_references_are_expanded_as_the_kubelet_does(text: str, expanded: str) -> None:
    assert expand(text, {"A": "1"}) == expanded


def test_environment_comes_from_literals_fields_configmaps_and_secrets() -> None:
    container: Object = {
        "envFrom": [{"prefix": "X_", "configMapRef": {"name": "settings"}}],
        "env": [
            {"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
            {"name": "APP", "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['app']"}}},
            {"name": "PASSWORD", "valueFrom": {"secretKeyRef": {"name": "login", "key": "password"}}},
            {"name": "WHERE", "value": "$(IP):80"},
            {"name": "NONE", "valueFrom": {"configMapKeyRef": {"name": "absent", "key": "k", "optional": True}}},
        ],
    }
    assert environment(container, POD, lookup, base={"PATH": "/bin"}) == {
        "PATH": "/bin",
        "X_COLOUR": "red",
        "IP": "127.9.0.2",
        "APP": "w",
        "PASSWORD": "hush",
        "WHERE": "127.9.0.2:80",
    }


def test_a_missing_configmap_is_named() -> None:
    container: Object = {"envFrom": [{"configMapRef": {"name": "absent"}}]}
    with pytest.raises(ReferenceMissing, match='configmap "absent" not found'):
        environment(container, POD, lookup, base={})


def test_command_replaces_the_entry_point_and_args_do_not() -> None:
    assert arguments({"args": ["$(A)"]}, {"A": "1"}, entrypoint=["rap"]) == ["rap", "1"]
    assert arguments({"command": ["sh"], "args": ["-c"]}, {}, entrypoint=["rap"]) == ["sh", "-c"]


@pytest.mark.parametrize(("text", "number"), [("500m", 0.5), ("2Gi", 2 * 2**30), ("1e3", 1000.0), ("3", 3.0)])
def test_quantities_are_read(text: str, number: float) -> None:
    assert quantity(text) == number


@pytest.mark.parametrize(
    ("service", "ready", "resolves"),
    [
        pytest.param({"publishNotReadyAddresses": True}, "False", True, id="published before ready"),
        pytest.param({}, "False", False, id="not ready"),
        pytest.param({}, "True", True, id="ready"),
        pytest.param({"selector": {"app": "other"}}, "True", False, id="not selected"),
        pytest.param({"clusterIP": "10.0.0.7"}, "True", False, id="not headless"),
    ],
)
def test_a_pod_name_resolves_only_as_its_service_says(service: Object, ready: str, resolves: bool) -> None:
    spec = {"clusterIP": "None", "selector": {"app": "w"}, **service}
    services: list[Object] = [{"metadata": {"name": "w", "namespace": "n"}, "spec": spec}]
    status = {"podIP": "127.9.0.3", "conditions": [{"type": "Ready", "status": ready}]}
    other = {**POD, "spec": {**POD["spec"], "hostname": "p-1"}, "status": status}
    content = hosts_file(POD, "127.9.0.2", services=services, pods=[other])
    assert ("127.9.0.3 p-1.w.n.svc.cluster.local" in content) is resolves


def test_files_of_a_volume_change_together_and_only_when_they_differ(tmp_path: Path) -> None:
    assert write_all(tmp_path, {"a": b"1", "b": b"1"})
    first = (tmp_path / "..data").resolve()
    assert not write_all(tmp_path, {"a": b"1", "b": b"1"})
    assert write_all(tmp_path, {"a": b"2", "c": b"2"})
    assert (tmp_path / "a").read_bytes() == b"2"
    assert sorted(path.name for path in tmp_path.iterdir() if not path.name.startswith("..")) == ["a", "c"]
    assert not first.exists()


@pytest.mark.parametrize(
    ("ready", "holds"), [pytest.param("True", True, id="as sent"), pytest.param("False", False, id="overwritten")]
)
def test_a_node_that_was_silent_notices_that_its_pods_were_marked_not_ready(ready: str, holds: bool) -> None:
    sent: Object = {"conditions": [{"type": "Ready", "status": "True"}]}
    found: Object = {"conditions": [{"type": "PodScheduled", "status": "True"}, {"type": "Ready", "status": ready}]}
    assert agrees(found, sent) is holds
