"""Environment and command of a container, as the kubelet computes them: pure functions of objects.

Covers env (value, fieldRef, resourceFieldRef, configMapKeyRef, secretKeyRef), envFrom, and $(NAME)
references in values, command and args.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

from servers.kube_api import Object

Kind = Literal["configmaps", "secrets"]
Lookup = Callable[[Kind, str], Object | None]
REFERENCE = re.compile(r"\$\$|\$\(([-._a-zA-Z][-._a-zA-Z0-9]*)\)")
UNITS = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}


class ReferenceMissing(Exception):
    """A container refers to something that does not exist (the kubelet's CreateContainerConfigError)."""


def expand(text: str, environment: Mapping[str, str]) -> str:
    """Replace $(NAME) where NAME is known and $$ by $; leave unknown names as they are."""

    def value(found: re.Match[str]) -> str:
        return "$" if found[0] == "$$" else environment.get(found[1], found[0])

    return REFERENCE.sub(value, text)


def environment(container: Object, pod: Object, lookup: Lookup, *, base: Mapping[str, str]) -> dict[str, str]:
    """Return the container's environment, in the kubelet's order of precedence, over `base` of its image."""
    result = dict(base)
    for source in container.get("envFrom", ()):
        prefix = source.get("prefix", "")
        result.update({prefix + key: value for key, value in _all_keys(source, lookup).items()})
    for variable in container.get("env", ()):
        if "valueFrom" in variable:
            value = _value_from(variable["valueFrom"], container, pod, lookup)
            if value is not None:
                result[variable["name"]] = value
        else:
            result[variable["name"]] = expand(variable.get("value", ""), result)
    return result


def arguments(container: Object, known: Mapping[str, str], *, entrypoint: Sequence[str]) -> list[str]:
    """Return the command line: command, or else the image's entry point, then args."""
    command = container.get("command") or list(entrypoint)
    line = [expand(word, known) for word in [*command, *container.get("args", ())]]
    if not line:
        raise ReferenceMissing("no command: the container has none, and its image has no entry point here")
    return line


def field_value(path: str, pod: Object) -> str:
    """Resolve a downward API field path such as metadata.labels['x'] or status.podIP."""
    keyed = re.fullmatch(r"metadata\.(labels|annotations)\['(.+)'\]", path)
    if keyed:
        return str(pod["metadata"].get(keyed[1], {}).get(keyed[2], ""))
    value: object = pod
    for part in path.split("."):
        value = value.get(part, "") if isinstance(value, dict) else ""
    if isinstance(value, dict):
        return "\n".join(f'{key}="{item}"' for key, item in sorted(value.items()))
    return str(value)


def resource_value(reference: Object, container: Object) -> str:
    """Resolve a downward API resource such as limits.memory, in units of its divisor, rounded up."""
    kind, _, resource = reference["resource"].partition(".")
    amount = container.get("resources", {}).get(kind, {}).get(resource, "0")
    divisor = quantity(reference.get("divisor") or "1") or 1.0
    return str(-int(-quantity(amount) // divisor))


def quantity(text: str) -> float:
    """Return a Kubernetes quantity such as 500m, 2Gi or 1e3 as a number."""
    if text.endswith("m"):
        return float(text[:-1]) / 1000
    for unit, factor in UNITS.items():
        if text.endswith(unit):
            return float(text[: -len(unit)]) * factor
    return float(text)


def decoded(found: Object) -> dict[str, bytes]:
    """Return the data of a ConfigMap or Secret as bytes."""
    result = {key: str(value).encode() for key, value in (found.get("data") or {}).items()}
    if found.get("kind") == "Secret":
        result = {key: base64.b64decode(value) for key, value in result.items()}
    result.update({key: base64.b64decode(value) for key, value in (found.get("binaryData") or {}).items()})
    return result


def referred(kind: Kind, name: str, lookup: Lookup, *, optional: bool) -> dict[str, bytes]:
    """Return the data of a referenced ConfigMap or Secret, nothing when it is optional and absent."""
    found = lookup(kind, name)
    if found is None:
        if optional:
            return {}
        raise ReferenceMissing(f'{kind[:-1]} "{name}" not found')
    kind_name = "Secret" if kind == "secrets" else "ConfigMap"
    return decoded({**found, "kind": kind_name})  # objects of a list carry no kind


def _all_keys(source: Object, lookup: Lookup) -> dict[str, str]:
    for field, kind in _ENV_FROM:
        if reference := source.get(field):
            data = referred(kind, reference["name"], lookup, optional=reference.get("optional", False))
            return {key: value.decode() for key, value in data.items()}
    return {}


def _value_from(source: Object, container: Object, pod: Object, lookup: Lookup) -> str | None:
    if reference := source.get("fieldRef"):
        return field_value(reference["fieldPath"], pod)
    if reference := source.get("resourceFieldRef"):
        return resource_value(reference, container)
    for field, kind in _VALUE_FROM:
        if reference := source.get(field):
            optional = reference.get("optional", False)
            data = referred(kind, reference["name"], lookup, optional=optional)
            if reference["key"] in data:
                return data[reference["key"]].decode()
            if not optional:
                raise ReferenceMissing(f"no key {reference['key']} in {kind[:-1]} {reference['name']}")
    return None


_ENV_FROM: tuple[tuple[str, Kind], ...] = (("configMapRef", "configmaps"), ("secretRef", "secrets"))
_VALUE_FROM: tuple[tuple[str, Kind], ...] = (("configMapKeyRef", "configmaps"), ("secretKeyRef", "secrets"))
