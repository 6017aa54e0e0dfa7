"""An API server alone, without root: what the operator's tests stand on."""

import json
from pathlib import Path

import pytest
from roll_cluster import ApiServer, ClusterError
from roll_cluster.processes import start_time

pytestmark = pytest.mark.api_server


def test_data_survive_a_restart_of_the_server_and_end_with_the_block(tmp_path: Path) -> None:
    with ApiServer(tmp_path) as api:
        first = api.pid
        api.kubectl("create", "configmap", "kept")
        api.stop()
        with pytest.raises(ClusterError, match="kubectl get configmap kept"):
            api.kubectl("get", "configmap", "kept")
        api.start()
        second = api.pid
        assert second != first
        assert api.kubectl("get", "configmap", "kept", "-o", "name") == "configmap/kept\n"
        etcd = api.etcd.pid
    assert second is not None and start_time(second) is None
    assert etcd is not None and start_time(etcd) is None


def test_a_server_with_a_wrong_flag_says_so_and_leaves_no_etcd(tmp_path: Path) -> None:
    api = ApiServer(tmp_path, flags=["--no-such-flag"])
    with pytest.raises(ClusterError, match=r"(?s)kube-apiserver ended at once.*no-such-flag"), api:
        pass
    assert api.etcd.pid is None


def test_two_servers_do_not_see_each_other(tmp_path: Path) -> None:
    with ApiServer(tmp_path / "one") as one, ApiServer(tmp_path / "two") as two:
        one.kubectl("create", "namespace", "only-here")
        names = [
            n["metadata"]["name"] for n in json.loads(two.kubectl("get", "ns", "-o=json"))["items"]
        ]
        assert "only-here" not in names and "default" in names
