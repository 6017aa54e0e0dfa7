"""Whether the real things that tests start can be started here; if not, the line that says so."""

import os
import shutil

from roll_cluster import ClusterError, State, binaries


def no_object_store() -> str:
    """Empty where an S3 server can be started."""
    try:
        binaries.require("versitygw")
    except ClusterError as error:
        return f"tests on an S3 server left out: {error}"
    return ""


def no_api_server() -> str:
    """Empty where one can be started."""
    why = "" if shutil.which("etcd") else "etcd is not installed"
    try:
        binaries.require("kube-apiserver", "kubectl")
    except ClusterError as error:
        why = str(error)
    return why and f"tests on an API server left out: {why}"


def no_cluster() -> str:
    """Empty where there is one, or one can be started."""
    if os.environ.get("KUBECONFIG"):
        return ""
    if os.geteuid():
        return "tests on a cluster left out: no KUBECONFIG, and starting a cluster here needs root"
    mark = State.from_environment().unprepared
    return f"tests on a cluster left out: {mark.read_text().strip()}" if mark.exists() else ""
