"""The plan's ConfigMap: `plan.json` is in force, `plan-<hash>.json` are the plans that may come into force, or come back.

An annotation says what the operator wrote, so that a hand's edit shows. Pure but for nothing: values in, values out.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from rap_contract.problem import InvalidDocument

from rap_operator.naming import ANNOTATION_PLAN_HASH
from rap_operator.replanning.values import EDITED

PLAN_KEY = "plan.json"
ANNOTATION_DIGEST = "rap.dev/plan-digest"
MAX_BYTES = 900_000  # a ConfigMap holds 1 MiB with its metadata
Object = dict[str, Any]


def key_of(plan: str) -> str:
    """Where a plan is kept."""
    return f"plan-{plan}.json"


def in_force(item: Mapping[str, Any]) -> str:
    """Hash of the plan in force; empty: none; EDITED: another text than the operator wrote."""
    text = (item.get("data") or {}).get(PLAN_KEY, "")
    annotations = item["metadata"].get("annotations") or {}
    if not text:
        return ""
    written = annotations.get(ANNOTATION_PLAN_HASH, "")
    return written if written and annotations.get(ANNOTATION_DIGEST) == _digest(text) else EDITED


def stored(item: Mapping[str, Any]) -> frozenset[str]:
    """Hashes of the plans it keeps."""
    names = [name for name in item.get("data") or {} if name.startswith("plan-") and name.endswith(".json")]
    return frozenset(name.removeprefix("plan-").removesuffix(".json") for name in names)


def storing(item: Mapping[str, Any], plans: Mapping[str, str], *, keep: tuple[str, ...]) -> Object:
    """The merge patch that keeps plans (JSON by hash): those named first, as many as a ConfigMap holds."""
    data: dict[str, str] = item.get("data") or {}
    texts = {plan: plans.get(plan) or data.get(key_of(plan), "") for plan in keep}
    room = MAX_BYTES - len(data.get(PLAN_KEY, ""))
    change: dict[str, str | None] = {}
    for plan, text in texts.items():
        if text and len(text) <= room:
            change[key_of(plan)] = text
            room -= len(text)
    for name in data:
        if name != PLAN_KEY and name not in change:
            change[name] = None
    same = {name for name, text in change.items() if data.get(name) == text}
    return {"data": {name: text for name, text in change.items() if name not in same}}


def putting(item: Mapping[str, Any], plan: str) -> Object:
    """The merge patch that puts a stored plan in force. A stored text that is not that plan is dropped instead."""
    from rap_contract.plan import Plan  # with profiles: a tenth of the operator's start, needed by few passes

    text = (item.get("data") or {}).get(key_of(plan), "")
    try:
        is_sound = bool(text) and Plan.from_json(text).hash == plan
    except InvalidDocument:
        is_sound = False
    if not is_sound:
        return {"data": {key_of(plan): None}}
    annotations = {ANNOTATION_PLAN_HASH: plan, ANNOTATION_DIGEST: _digest(text)}
    return {"metadata": {"annotations": annotations}, "data": {PLAN_KEY: text}}


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
