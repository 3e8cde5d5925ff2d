"""The chart's values: a strict schema, documented, that agrees with the defaults; checks that no schema can make."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml
from chart import values_table
from chart.rendering import CHART, MATRIX, HelmError, helm, render

pytestmark = pytest.mark.usefixtures("helm")


def nested(path: tuple[str, ...], value: Any) -> dict[str, Any]:
    """{"a": {"b": value}} for ("a", "b")."""
    for part in reversed(path):
        value = {part: value}
    return dict(value)


def test_the_readmes_table_is_generated_from_the_schema() -> None:
    made = values_table.readme_with(values_table.table())
    assert values_table.README.read_text() == made, "run: python tests/chart/values_table.py"


def test_every_value_has_a_default_and_every_default_is_declared() -> None:
    known = values_table.defaults()
    for path, group in values_table.groups(values_table.schema()):
        here: Any = known
        for part in path:
            here = here[part]
        declared = set(group["properties"]) - {"global", "successThreshold", "initialDelaySeconds"}
        assert declared <= set(here) <= set(group["properties"]), f"{path}: values.yaml and values.schema.json differ"


def test_every_value_says_what_it_is() -> None:
    for path, child in values_table.leaves(values_table.schema()):
        assert child["description"].endswith("."), path


def test_a_typo_in_any_group_is_refused() -> None:
    values: dict[str, Any] = {}
    paths = [path for path, _ in values_table.groups(values_table.schema())]
    for path in paths:
        here = values
        for part in path:
            here = here.setdefault(part, {})
        here["enabeld"] = True
    with pytest.raises(HelmError) as refused:
        render(values)
    for path in paths:
        assert f"at '{''.join(f'/{part}' for part in path)}': additional properties 'enabeld' not allowed" in str(
            refused.value
        )


def test_values_out_of_bounds_are_refused_by_their_places() -> None:
    values = {
        "replicaCount": "three",
        "image": {"digest": "latest"},
        "operator": {"logLevel": "loud"},
        "watchNamespaces": ["Not A Name"],
        "metrics": {"port": 0, "serviceMonitor": {"interval": "soon"}},
        "podDisruptionBudget": {"maxUnavailable": "half"},
        "imagePullSecrets": ["registry"],
        "commonLabels": {"team": 7},
    }
    with pytest.raises(HelmError) as refused:
        render(values)
    for place in (
        "/replicaCount",
        "/image/digest",
        "/operator/logLevel",
        "/watchNamespaces/0",
        "/metrics/port",
        "/metrics/serviceMonitor/interval",
        "/podDisruptionBudget/maxUnavailable",
        "/imagePullSecrets/0",
        "/commonLabels/team",
    ):
        assert f"at '{place}'" in str(refused.value)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"replicaCount": 2, "leaderElection": {"enabled": False}}, "leaderElection.enabled=true"),
        (
            {"metrics": {"serviceMonitor": {"enabled": True}, "service": {"enabled": False}}},
            "metrics.service.enabled=true",
        ),
        ({"metrics": {"bearerToken": {"secretName": "token"}}}, "set metrics.tls.secretName too"),
        ({"serviceAccount": {"create": False}}, "serviceAccount.create=true"),
    ],
)
def test_values_that_do_not_go_together_are_refused_with_a_hint(values: dict[str, Any], message: str) -> None:
    with pytest.raises(HelmError, match=message):
        render(values)


@pytest.mark.parametrize(
    "path",
    [("metrics", "serviceMonitor", "enabled"), ("trainers", "podMonitor", "enabled"), ("alerts", "enabled")],
    ids=".".join,
)
def test_monitoring_without_its_kinds_fails_and_says_what_to_do(path: tuple[str, ...]) -> None:
    with pytest.raises(HelmError, match=rf"{'.'.join(path)}: this cluster does not serve monitoring.coreos.com/v1"):
        render(nested(path, True), apis=())


@pytest.mark.parametrize("name", MATRIX)
def test_lint_finds_nothing(name: str) -> None:
    said = helm("lint", "--strict", str(CHART), values=MATRIX[name])
    assert "[WARNING]" not in said
    assert "[ERROR]" not in said


def test_the_schema_is_json_that_a_reader_of_draft_seven_knows() -> None:
    text = (CHART / "values.schema.json").read_text()
    assert json.loads(text)["$schema"] == "http://json-schema.org/draft-07/schema#"
    assert yaml.safe_load((CHART / "Chart.yaml").read_text())["name"] == "rap"
