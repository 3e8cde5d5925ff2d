"""From a pod's container to the command of a sandbox: environment, arguments, mounts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from node_agent.environment import Lookup, arguments, environment, expand
from node_agent.hosts import hostname
from node_agent.images import Image, find_image
from node_agent.network import PodAddress
from node_agent.sandbox import ContainerCommand, Mount
from node_agent.volumes import PodVolumes
from servers.kube_api import KubeApi, Object

TERMINATION_LOG = "/dev/termination-log"


@dataclass(frozen=True, kw_only=True)
class PodContext:
    """What a pod needs from its node: where it lives and where to look things up."""

    api: KubeApi
    folder: Path
    memory_folder: Path
    images: Mapping[str, Image]
    lookup: Lookup
    hosts_file: Callable[[Object], str]
    claim_path: Callable[[str], Path]
    place: PodAddress
    node_ip: str
    start_delay_s: Callable[[], float]


class ImageMissing(Exception):
    """No image of that name (the kubelet's ErrImagePull)."""


def termination_log(folder: Path, container: Object) -> Path:
    """Return the file where a container may leave its last words."""
    return folder / f"{container['name']}.termination"


def log_path(folder: Path, container_name: str, restart_count: int) -> Path:
    """Return the file of one run's output."""
    return folder / "logs" / container_name / f"{restart_count}.log"


def container_command(pod: Object, container: Object, context: PodContext, volumes: PodVolumes) -> ContainerCommand:
    """Resolve everything a container refers to; raise ReferenceMissing or ImageMissing when that fails."""
    image = find_image(context.images, container["image"])
    if image is None:
        raise ImageMissing(f"no image {container['image']} on this node")
    base = {**image.environment, "HOSTNAME": hostname(pod), **_service_environment(context.api.server)}
    values = environment(container, pod, context.lookup, base=base)
    security = container.get("securityContext", {})
    last_words = termination_log(context.folder, container)
    last_words.write_bytes(b"")
    mounts = [
        Mount(source=context.folder / "hosts", target="/etc/hosts"),
        Mount(source=context.folder / "resolv.conf", target="/etc/resolv.conf"),
        Mount(source=last_words, target=container.get("terminationMessagePath", TERMINATION_LOG)),
        *volumes.mounts(container, lambda text: expand(text, values)),
    ]
    mounts += hidden_folders(image, mounts)
    return ContainerCommand(
        arguments=arguments(container, values, entrypoint=image.entrypoint),
        environment=values,
        hostname=hostname(pod),
        working_dir=container.get("workingDir") or image.working_dir,
        mounts=mounts,
        network=context.place.command_prefix,
        read_only_root=security.get("readOnlyRootFilesystem", False),
    )


def hidden_folders(image: Image, mounts: Sequence[Mount]) -> list[Mount]:
    """Mounts that bring an image's folders back where volumes lie over them: a checkout under /tmp, an emptyDir there."""
    covered = [Path(mount.target) for mount in mounts if mount.source.is_dir()]
    return [
        Mount(source=folder, target=str(folder), read_only=True)
        for folder in image.folders
        if any(folder.is_relative_to(target) for target in covered)
    ]


def _service_environment(server: str) -> dict[str, str]:
    """Return how a pod finds the API server; the real one, as nothing here forwards service addresses."""
    host, _, port = server.removeprefix("https://").partition(":")
    return {"KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": port, "KUBERNETES_SERVICE_PORT_HTTPS": port}
