"""What pods, ConfigMaps and files say is not believed beyond its form, and no secret is where it could be read."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
from operator_world.world import NAMESPACE, World, rapjob
from rap_contract.plan import Plan
from rap_contract.problem import InvalidDocument
from rap_contract.profile import Profile
from rap_operator.failures import exit_code
from rap_operator.resources import RAPJOBS
from rap_operator.views import Meta, PodView
from security.audit import EXTRAS, pins

ROOT = Path(__file__).resolve().parents[2]


def pod_that_said(text: str) -> PodView:
    meta = Meta(namespace="jobs", name="pod", uid="1", resource_version="1")
    return PodView(meta=meta, attempt=1, phase="Failed", exit_code=1, exit_message=text)


@pytest.mark.parametrize(
    "text",
    [
        '{"exitCode": ' + "[" * 4000,
        '{"exitCode": 1e400}',
        '{"exitCode": NaN}',
        '{"exitCode": -9}',
        '{"exitCode": 100000000000000000000000}',
        '{"exitCode": "three"}',
        '{"exitCode": null, "message": {}}',
        "{",
        "{}",
    ],
)
def test_a_pods_last_words_cannot_stop_the_operator(text: str) -> None:
    code, _ = exit_code(pod_that_said(text))
    assert code == 1


def test_a_pods_last_words_are_heard_and_cut() -> None:
    code, message = exit_code(pod_that_said(json.dumps({"exitCode": 3, "message": "m" * 4000})))
    assert (code, len(message)) == (3, 512)


@pytest.mark.parametrize("kind", [Plan, Profile])
@pytest.mark.parametrize(
    "text",
    ["[" * 100_000, '{"a":' * 40 + "1" + "}" * 40, " " * (16 * 2**20 + 1), '{"a": 1, "a": 2}', "NaN", '"plan"'],
    ids=["brackets", "deep", "huge", "twice", "nan", "text"],
)
def test_a_plan_or_profile_that_nobody_vouches_for_is_refused(kind: type[Plan] | type[Profile], text: str) -> None:
    with pytest.raises(InvalidDocument):
        kind.from_json(text)


def test_the_operator_names_a_secret_only_as_a_volume_of_the_trainers() -> None:
    world = World()
    kafka: dict[str, Any] = {
        "bootstrapServers": ["kafka:9093"],
        "topic": "clicks",
        "auth": {"secretName": "the-secret"},
    }
    job = rapjob(trainer={"nodes": 2, "metricsSecretName": "the-certificate"})
    job["spec"]["source"] = {"kafka": kafka}
    world.cluster.create(RAPJOBS, NAMESPACE, job)
    world.settle()
    batch = next(item for (kind, _, _), item in world.cluster.objects.items() if kind == "Job")
    pod = batch["spec"]["template"]["spec"]
    assert {v["secret"]["secretName"] for v in pod["volumes"] if "secret" in v} == {"the-secret", "the-certificate"}
    for container in pod["containers"]:
        assert "the-secret" not in json.dumps([container["command"], container.get("args"), container["env"]])
        assert not [variable for variable in container["env"] if "secretKeyRef" in variable.get("valueFrom", {})]
    status = json.dumps(world.status.model_dump(mode="json"))
    assert "the-secret" not in status


def locked() -> list[dict[str, Any]]:
    with (ROOT / "uv.lock").open("rb") as lock:
        found: list[dict[str, Any]] = tomllib.load(lock)["package"]
    return found


def test_every_locked_file_has_a_checksum_and_comes_from_the_index() -> None:
    for package in locked():
        if package["name"] == "rap":
            continue
        assert set(package["source"]) == {"registry"}, package["name"]
        files = [*package.get("wheels", []), *([package["sdist"]] if "sdist" in package else [])]
        assert files, package["name"]
        assert all(file["hash"].startswith("sha256:") for file in files), package["name"]


@pytest.mark.parametrize("extra", EXTRAS)
def test_the_audit_covers_what_the_images_install(extra: str) -> None:
    found = {pin.partition("==")[0] for pin in pins(extra)}
    assert {"pydantic", "pyyaml", "prometheus-client"} <= found
    assert ("torch" in found) == (extra != "operator")
