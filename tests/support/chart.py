"""Renders the chart with the real `helm`, as `helm install` would; the same question is asked once."""

import functools
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

Manifest = dict[str, Any]

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "helm" / "roll-operator"
HELM = Path(sys.executable).parent / "helm"


@functools.cache
def helm(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(HELM), *arguments], capture_output=True, text=True, check=False, timeout=120
    )


def template(chart: Path = CHART, **values: Any) -> subprocess.CompletedProcess[str]:
    """Values by dotted path: `template(**{"crd.install": False})`."""
    chosen = [f"--set-json={path}={json.dumps(value)}" for path, value in values.items()]
    return helm("template", "roll-operator", str(chart), "--namespace=roll-system", *chosen)


def render(chart: Path = CHART, **values: Any) -> list[Manifest]:
    answer = template(chart, **values)
    assert answer.returncode == 0, answer.stderr
    return [m for m in YAML(typ="safe", pure=True).load_all(answer.stdout) if m]
