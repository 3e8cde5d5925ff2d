"""What the chart renders: snapshots over a matrix of values, and what holds for every combination."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from chart.rendering import CHART, GOLDEN, MATRIX, Object, key_of, render, rendered, snapshot
from rap_contract.crd import definition
from rap_operator.options import parser

pytestmark = pytest.mark.usefixtures("helm")
ALL_CASES = pytest.mark.parametrize("case", MATRIX)


def objects(case: str) -> list[Object]:
    return list(json.loads(rendered(case)))


def one(items: list[Object], kind: str, name: str | None = None) -> Object:
    found = [item for item in items if item["kind"] == kind and name in (None, item["metadata"]["name"])]
    assert len(found) == 1, [key_of(item) for item in found]
    return found[0]


def pods(items: list[Object]) -> Iterator[Object]:
    for item in items:
        if item["kind"] == "Deployment":
            yield item["spec"]["template"]["spec"]
        if item["kind"] == "Pod":
            yield item["spec"]


@ALL_CASES
def test_the_chart_renders_as_committed(case: str) -> None:
    assert snapshot(case) == (GOLDEN / f"{case}.yaml").read_text(), "run: python tests/chart/rendering.py"


def test_there_is_no_snapshot_too_many() -> None:
    assert {path.stem for path in GOLDEN.glob("*.yaml")} == set(MATRIX)


@ALL_CASES
def test_every_pod_satisfies_the_restricted_profile_and_reads_only(case: str) -> None:
    for pod in pods(objects(case)):
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["runAsUser"] > 0
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in pod["containers"]:
            security = container["securityContext"]
            assert security["allowPrivilegeEscalation"] is False
            assert security["readOnlyRootFilesystem"] is True
            assert security["capabilities"] == {"drop": ["ALL"]}
            assert container["resources"]["requests"]
            assert container["resources"]["limits"]["memory"]


@ALL_CASES
def test_no_role_knows_secrets_or_wildcards(case: str) -> None:
    for item in objects(case):
        for rule in item.get("rules") or () if item["kind"] in ("Role", "ClusterRole") else ():
            assert not {"secrets", "nodes", "*"} & set(rule["resources"])
            assert "*" not in rule["verbs"]
            assert "*" not in rule["apiGroups"]


def test_an_operator_of_some_namespaces_has_no_cluster_wide_permission() -> None:
    items = render({"watchNamespaces": ["ads", "ranking"]})
    assert not [item for item in items if item["kind"] == "ClusterRoleBinding"]
    roles = [item["metadata"] for item in items if item["kind"] == "Role"]
    mine = [role["namespace"] for role in roles if not role["name"].endswith(("-lease", "-test"))]
    assert sorted(mine) == ["ads", "ranking"]
    arguments = one(items, "Deployment")["spec"]["template"]["spec"]["containers"][0]["args"]
    assert "--namespaces=ads,ranking" in arguments


@ALL_CASES
def test_the_operator_knows_every_argument_it_is_given(case: str) -> None:
    container = one(objects(case), "Deployment")["spec"]["template"]["spec"]["containers"][0]
    parser().parse_args(container["args"])


@pytest.mark.parametrize("keep", [True, False])
def test_the_crd_is_the_contracts_with_the_charts_metadata(keep: bool) -> None:
    found = one(render({"crds": {"keep": keep, "annotations": {"team": "ads"}}}), "CustomResourceDefinition")
    assert found["spec"] == definition()["spec"]
    annotations = {"team": "ads"} | ({"helm.sh/resource-policy": "keep"} if keep else {})
    assert found["metadata"]["annotations"] == annotations
    assert found["metadata"]["labels"]["app.kubernetes.io/part-of"] == "rap"


def test_the_job_of_helm_test_is_valid() -> None:
    from rap_contract.validation import check_job

    smoke = next(item for item in render({}) if item["kind"] == "ConfigMap" and "job.json" in item["data"])
    check_job(json.loads(smoke["data"]["job.json"]))


def test_boards_become_config_maps_for_the_sidecar(tmp_path: Path) -> None:
    chart = tmp_path / "rap"
    shutil.copytree(CHART, chart)
    board = '{"title": "{{job}} and \\"quotes\\""}'
    (chart / "dashboards" / "some_board.json").write_text(board + "\n")
    values = {"dashboards": {"enabled": True, "namespace": "grafana", "annotations": {"a": "b"}}}
    found = one(render(values, chart=chart), "ConfigMap", "rap-some-board")
    assert found["metadata"]["namespace"] == "grafana"
    assert found["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert found["metadata"]["annotations"] == {"grafana_folder": "RAP", "a": "b"}
    assert found["data"] == {"some_board.json": board}


def test_alerts_become_a_rule_with_labels_of_the_users(tmp_path: Path) -> None:
    chart = tmp_path / "rap"
    shutil.copytree(CHART, chart)
    rule: Object = {
        "alert": "JobStale",
        "expr": "rap_freshness > 1",
        "labels": {"severity": "warning"},
        "annotations": {"summary": "{{ $labels.rapjob }} lags", "runbook_url": "runbooks/#jobstale"},
    }
    (chart / "files" / "alerts.yaml").write_text(yaml.safe_dump({"groups": [{"name": "rap", "rules": [rule]}]}))
    alerts = {"labels": {"release": "prometheus"}, "ruleLabels": {"team": "ads"}, "docsUrl": "https://docs.example/"}
    values = {"alerts": {"enabled": True, **alerts}}
    found = one(render(values, chart=chart), "PrometheusRule")
    assert found["metadata"]["labels"]["release"] == "prometheus"
    rule["annotations"]["runbook_url"] = "https://docs.example/runbooks/#jobstale"
    assert found["spec"]["groups"] == [
        {"name": "rap", "rules": [{**rule, "labels": {"severity": "warning", "team": "ads"}}]}
    ]


def test_the_notes_say_the_next_three_commands() -> None:
    notes = (CHART / "templates" / "NOTES.txt").read_text()
    commands = [line.split()[0] for line in notes.splitlines() if line.startswith("  ")]
    assert len(commands) == 5  # three are shown: one of two depends on test.enabled, the last on rbac.create
    assert set(commands) == {"kubectl", "helm"}
