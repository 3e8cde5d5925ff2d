"""The plan an attempt starts with: the file the environment names. The operator writes it, or `rap run --plan`."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path

from rap_contract.plan import Plan
from rap_contract.pod import ENV_PLAN_FILE
from rap_contract.problem import InvalidDocument

from rap_trainer.plan_inputs import read_plan

log = logging.getLogger(__name__)


def given_plan(environment: Mapping[str, str]) -> Plan | None:
    """The plan, or None: without a file there is none yet, and one that cannot be read is said and left out."""
    name = environment.get(ENV_PLAN_FILE)
    if name is None or not Path(name).is_file():
        return None
    try:
        return read_plan(Path(name))
    except InvalidDocument as invalid:
        log.warning("%s: not a plan, training begins without one: %s", name, invalid)
        return None
