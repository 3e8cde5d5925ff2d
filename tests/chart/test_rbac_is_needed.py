"""The chart's roles are enough, and no single permission of them is too many."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor

import pytest
from chart.account import Permission, chart_rules, single_permissions
from chart.rbac_story import Refused, Story
from chart.rendering import ROOT, render
from chart.strict_cluster import StrictCluster
from node_agent.fake_nodes import FakeNodes
from operator_world.on_server import install_crd

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("helm")]
FEW = [("rapjobs/status", "patch"), ("rapjobs/finalizers", "update"), ("leases", "patch"), ("events", "create")]
NUM_AT_ONCE = 8


def outcome(cluster: StrictCluster, nodes: FakeNodes, without: Permission | None) -> str:
    """What becomes of the story: `done`, or what was refused."""
    story = Story(cluster, nodes, without=without)
    try:
        story.run()
    except Refused as refused:
        return str(refused)
    finally:
        story.close()
    return "done"


def test_the_charts_roles_are_enough_and_some_permissions_are_each_needed(
    kubernetes_cluster: StrictCluster, fake_nodes: FakeNodes
) -> None:
    install_crd(kubernetes_cluster)
    with ThreadPoolExecutor(len(FEW) + 1) as pool:
        found = list(pool.map(lambda without: outcome(kubernetes_cluster, fake_nodes, without), [None, *FEW]))
    assert found == ["done", "patch of RAPJob", "post of Service", "patch of Lease", "post of Event"]


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_every_permission_of_the_chart_is_needed(kubernetes_cluster: StrictCluster, fake_nodes: FakeNodes) -> None:
    install_crd(kubernetes_cluster)
    granted = single_permissions()
    with ThreadPoolExecutor(NUM_AT_ONCE) as pool:
        found = dict(zip(granted, pool.map(lambda w: outcome(kubernetes_cluster, fake_nodes, w), granted), strict=True))
    assert len(found) == 35
    assert [permission for permission, said in found.items() if said == "done"] == []


def test_a_cluster_wide_operator_has_the_rules_of_one_of_a_namespace() -> None:
    items = render({})
    wide = next(i["rules"] for i in items if i["kind"] == "ClusterRole" and i["metadata"]["name"] == "rap-system-rap")
    assert wide == chart_rules()[0]


def test_the_docs_list_the_charts_permissions() -> None:
    text = (ROOT / "docs" / "operator.md").read_text().partition("## Permissions")[2].partition("\n## ")[0]
    listed = [
        (resource, verb.strip())
        for resource, verbs in re.findall(r"^\| `([a-z/]+)` \| ([a-z, ]+) \|$", text, re.MULTILINE)
        for verb in verbs.split(",")
    ]
    assert listed == single_permissions()
