"""The volumes of a pod as folders of this machine, to be bound into its containers.

Written and rewritten: configMap, secret, downwardAPI, projected (with service account tokens). Made
or found: emptyDir (medium Memory on /dev/shm; size limits are not enforced), hostPath, and
persistentVolumeClaim when the claim is bound to a hostPath volume.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from node_agent.atomic_folder import write_all
from node_agent.environment import Kind, Lookup, ReferenceMissing, field_value, referred, resource_value
from node_agent.sandbox import Mount
from servers.kube_api import Object

WRITTEN = ("configMap", "secret", "downwardAPI", "projected")


@dataclass(frozen=True, kw_only=True)
class VolumeSource:
    """Where volumes get their content: the objects of the pod's namespace and its own folder."""

    folder: Path
    memory_folder: Path  # of emptyDir volumes of medium Memory
    lookup: Lookup
    token: Callable[[Object], str]  # of a serviceAccountToken projection
    claim_path: Callable[[str], Path]  # folder behind a persistentVolumeClaim


class PodVolumes:
    """All volumes of one pod."""

    def __init__(self, pod: Object, source: VolumeSource) -> None:
        self._volumes: list[Object] = pod["spec"].get("volumes", [])
        self._uid: str = pod["metadata"]["uid"]
        self._source = source

    def prepare(self, pod: Object) -> None:
        """Make every volume; raise ReferenceMissing while something a volume needs is not there."""
        for volume in self._volumes:
            if "hostPath" in volume:
                _check_host_path(volume["hostPath"])
            elif "persistentVolumeClaim" in volume:
                self._source.claim_path(volume["persistentVolumeClaim"]["claimName"])
            else:
                self._path(volume).mkdir(parents=True, exist_ok=True)
        self.refresh(pod)

    def refresh(self, pod: Object) -> None:
        """Rewrite the volumes whose content has changed."""
        for volume in self._volumes:
            for kind in WRITTEN:
                if kind in volume:
                    mode = volume[kind].get("defaultMode", 0o644)
                    write_all(self._path(volume), self._content(kind, volume[kind], pod), mode=mode)

    def mounts(self, container: Object, expand: Callable[[str], str]) -> list[Mount]:
        """Return what is mounted in a container, in its order."""
        by_name = {volume["name"]: volume for volume in self._volumes}
        result = []
        for mount in container.get("volumeMounts", ()):
            volume = by_name[mount["name"]]
            source = self._path(volume)
            inside = mount.get("subPath") or expand(mount.get("subPathExpr", ""))
            if inside:
                source = (source / inside).resolve()
                if not source.exists():
                    source.mkdir(parents=True)
            read_only = mount.get("readOnly", False) or any(kind in volume for kind in WRITTEN)
            result.append(Mount(source=source, target=mount["mountPath"], read_only=read_only))
        return result

    def remove(self) -> None:
        """Delete what lives outside the pod's folder."""
        for volume in self._volumes:
            if _is_in_memory(volume):
                shutil.rmtree(self._path(volume), ignore_errors=True)

    def _path(self, volume: Object) -> Path:
        if "hostPath" in volume:
            return Path(volume["hostPath"]["path"])
        if "persistentVolumeClaim" in volume:
            return self._source.claim_path(volume["persistentVolumeClaim"]["claimName"])
        if _is_in_memory(volume):
            return self._source.memory_folder / f"{self._uid}-{volume['name']}"
        return self._source.folder / "volumes" / str(volume["name"])

    def _content(self, kind: str, source: Object, pod: Object) -> dict[str, bytes]:
        if kind == "downwardAPI":
            return {item["path"]: _downward(item, pod) for item in source.get("items", ())}
        if kind == "configMap":
            return self._keys("configmaps", source["name"], source)
        if kind == "secret":
            name = source.get("secretName") or source["name"]  # projected secrets say `name`
            return self._keys("secrets", name, source)
        if kind == "serviceAccountToken":
            return {source["path"]: self._source.token(source).encode()}
        if kind != "projected":
            raise ReferenceMissing(f"volumes of kind {kind} are not supported by the node agent")
        files: dict[str, bytes] = {}
        for part in source.get("sources", ()):
            for part_kind, part_source in part.items():
                files.update(self._content(part_kind, part_source, pod))
        return files

    def _keys(self, kind: Kind, name: str, source: Object) -> dict[str, bytes]:
        optional = source.get("optional", False)
        data = referred(kind, name, self._source.lookup, optional=optional)
        if "items" not in source:
            return data
        missing = [item["key"] for item in source["items"] if item["key"] not in data]
        if missing and not optional:
            raise ReferenceMissing(f"{kind} {name} has no key {missing[0]}")
        return {item["path"]: data[item["key"]] for item in source["items"] if item["key"] in data}


def _is_in_memory(volume: Object) -> bool:
    return (volume.get("emptyDir") or {}).get("medium") == "Memory"


def _check_host_path(source: Object) -> None:
    path, kind = Path(source["path"]), source.get("type", "")
    if kind == "DirectoryOrCreate":
        path.mkdir(parents=True, exist_ok=True)
    elif kind == "FileOrCreate":
        path.touch()
    elif not path.exists():
        raise ReferenceMissing(f"hostPath {path} does not exist")


def _downward(item: Object, pod: Object) -> bytes:
    if reference := item.get("fieldRef"):
        return field_value(reference["fieldPath"], pod).encode()
    reference = item["resourceFieldRef"]
    container = next(c for c in pod["spec"]["containers"] if c["name"] == reference["containerName"])
    return resource_value(reference, container).encode()
