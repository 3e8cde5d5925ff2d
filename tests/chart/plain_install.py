"""The installation as plain YAML, made from the chart: for those without Helm.

PYTHONPATH=operator:trainer:tests python tests/chart/plain_install.py      writes manifests/install.yaml
"""

from __future__ import annotations

import re
from pathlib import Path

from chart.rendering import CHART, NAMESPACE, RELEASE, ROOT, helm

INSTALL = ROOT / "manifests" / "install.yaml"
HEAD = f"""\
# Generated from charts/rap by tests/chart/plain_install.py; change the chart, not this file.
#   kubectl apply --server-side -f manifests/crd/rapjobs.rap.dev.yaml -f manifests/install.yaml
# Set the image to where your release workflow has pushed it.
---
apiVersion: v1
kind: Namespace
metadata:
  name: {NAMESPACE}
  labels:
    pod-security.kubernetes.io/enforce: restricted
"""


def plain_install(chart: Path = CHART) -> str:
    """The chart's objects with its defaults, without the CRD and without what only Helm reads."""
    values = {"crds": {"install": False}, "test": {"enabled": False}}
    text = helm("template", RELEASE, str(chart), f"--namespace={NAMESPACE}", values=values)
    text = re.sub(r"^ *helm\.sh/chart: .*\n", "", text, flags=re.MULTILINE)
    text = text.replace("app.kubernetes.io/managed-by: Helm", "app.kubernetes.io/managed-by: kubectl")
    return HEAD + re.sub(r"^# Source: .*\n", "", text, flags=re.MULTILINE)


if __name__ == "__main__":
    INSTALL.write_text(plain_install())
