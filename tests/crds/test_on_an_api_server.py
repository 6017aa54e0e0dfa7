"""The same table, judged by a real API server: strict field validation, schema and CEL, by dry run.

Creating the CRD proves that its rules stay within the API server's cost limits.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kubernetes import client, config
from roll_api.crd import TARGET
from roll_cluster import ApiServer, ClusterError
from ruamel.yaml import YAML
from support.objects import changed

pytestmark = pytest.mark.api_server

TABLE = YAML(typ="safe", pure=True).load(Path(__file__).with_name("table.yaml"))
PLACE = ("roll.dev", "v1alpha1", "default", "rljobs")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    with ApiServer(tmp_path_factory.mktemp("api")) as started:
        started.kubectl("create", "-f", TARGET)
        # In this order: kubectl gives up on a list of conditions that is not there yet.
        for sign in ("jsonpath={.status.acceptedNames.kind}=RLJob", "condition=Established"):
            started.kubectl("wait", f"--for={sign}", "crd/rljobs.roll.dev", "--timeout=60s")
        yield started


@pytest.fixture(scope="module")
def api(server: ApiServer) -> client.CustomObjectsApi:
    return client.CustomObjectsApi(config.new_client_from_config(str(server.kubeconfig)))


def rows(section: str) -> list[Any]:
    return [
        pytest.param(row, id=row["name"])
        for row in TABLE[section]
        if row["name"] != "no name"  # the API server would ask for a name before anything else
    ]


def said(error: client.ApiException) -> str:
    """The server's words, with list items as in the table: `rewards.0`."""
    message: str = json.loads(error.body)["message"]
    return re.sub(r"\[(\d+)\]", r".\1", message)


def judge(row: dict[str, Any], attempt: Any) -> None:
    if "bad" not in row:
        attempt()
        return
    with pytest.raises(client.ApiException) as refused:
        attempt()
    assert refused.value.status in (400, 422)
    assert re.search(rf"\b{re.escape(row['bad'])}\b", said(refused.value)), said(refused.value)


@pytest.mark.parametrize("row", rows("create"))
def test_the_api_server_judges_a_new_job(api: client.CustomObjectsApi, row: dict[str, Any]) -> None:
    job = changed(TABLE["base"], row.get("set"), row.get("remove"))
    judge(
        row,
        lambda: api.create_namespaced_custom_object(
            *PLACE, job, dry_run="All", field_validation="Strict"
        ),
    )


@pytest.mark.parametrize("row", rows("update"))
def test_the_api_server_judges_an_update(api: client.CustomObjectsApi, row: dict[str, Any]) -> None:
    old = changed(TABLE["base"], row.get("from"), row.get("without"))
    stored = api.create_namespaced_custom_object(*PLACE, old)
    name = stored["metadata"]["name"]
    new = changed(old, row.get("set"), row.get("remove"))
    new["metadata"]["resourceVersion"] = stored["metadata"]["resourceVersion"]
    try:
        judge(
            row,
            lambda: api.replace_namespaced_custom_object(
                *PLACE, name, new, dry_run="All", field_validation="Strict"
            ),
        )
    finally:
        api.delete_namespaced_custom_object(*PLACE, name)


def test_a_map_of_the_status_can_be_emptied_by_server_side_apply(server: ApiServer) -> None:
    """A scheduler that has just started knows no figures yet, and drops of it start at none."""
    name = "emptied"
    base = {**TABLE["base"], "metadata": {"name": name}}
    server.kubectl("create", "-f", "-", stdin=json.dumps(base))
    for figures in ({"loss": 1.5, "reward": 2.5}, {}, {"loss": 0.5}):
        status = {
            "progress": {"metrics": figures},
            "samples": {"dropped": dict.fromkeys(figures, 1)},
            "record": {"scopes": figures},
        }
        job = {key: base[key] for key in ("apiVersion", "kind", "metadata")} | {"status": status}
        server.kubectl(
            *("apply", "--server-side", "--subresource=status", "-f", "-"), stdin=json.dumps(job)
        )
        found = json.loads(server.kubectl("get", "rljob", name, "-o", "json"))["status"]
        assert found == status


def test_a_second_owner_sets_replicas_and_no_part_of_a_section(server: ApiServer) -> None:
    base = {**TABLE["base"], "metadata": {"name": "shared"}}
    server.kubectl("apply", "--server-side", "-f", "-", stdin=json.dumps(base))

    def other(spec: dict[str, Any]) -> str:
        job = {key: base[key] for key in ("apiVersion", "kind", "metadata")} | {"spec": spec}
        apply = ("apply", "--server-side", "--field-manager=other", "-f", "-")
        return server.kubectl(*apply, stdin=json.dumps(job))

    other({"roles": {"reward": {"replicas": 7}}})
    found = json.loads(server.kubectl("get", "rljob", "shared", "-o", "json"))["spec"]
    assert (found["roles"]["reward"]["replicas"], found["roles"]["inference"]["replicas"]) == (7, 2)
    with pytest.raises(ClusterError, match=r"conflict with .*\.spec\.model"):
        other({"model": {"dtype": "float32"}})
