"""One API server for the session, a proxy before it, and operators that end with their test."""

from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from roll_cluster import ApiServer
from roll_cluster.api_server import kubectl
from support.api_proxy import Proxy
from support.operator_world import JOB, OperatorProcess, Start, World

CRD = Path(__file__).resolve().parents[3] / "crds/rljobs.roll.dev.yaml"
FOLDER = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(FOLDER) and "world" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.api_server)


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with ApiServer(tmp_path_factory.mktemp("api")) as server:
        kubectl(server.kubeconfig, "apply", "--server-side", "-f", str(CRD))
        result = World(server)
        result.grant()
        yield result


@pytest.fixture
def certificates(world: World) -> Iterator[None]:
    with world.certificates():
        yield


@pytest.fixture
def proxy(world: World) -> Iterator[Proxy]:
    with Proxy(world.server.url, world.server.keys.ca) as proxy:
        yield proxy


@pytest.fixture
def namespace(world: World) -> Iterator[str]:
    name = world.namespace(f"test-{uuid4().hex[:8]}")
    yield name
    world.call("DELETE", f"/api/v1/namespaces/{name}")
    for job in world.all("rljobs", name):
        world.delete("rljobs", name, job["metadata"]["name"])
    for pod in world.all("pods", name):
        world.delete("pods", name, pod["metadata"]["name"], gracePeriodSeconds=0)


@pytest.fixture
def operator(world: World, proxy: Proxy, tmp_path: Path) -> Iterator[Start]:
    """Starts an operator with a lease of this test's own, watching all namespaces."""
    lease = f"lease-{uuid4().hex[:8]}"
    made: list[OperatorProcess] = []

    def start(**env: str) -> OperatorProcess:
        folder = tmp_path / f"operator-{len(made)}"
        token = world.token(env.get("ROLL_OPERATOR_SERVICE_ACCOUNT", "roll-operator"))
        process = OperatorProcess(
            folder, f"{proxy.url}/{folder.name}", token, **{"ROLL_LEASE_NAME": lease, **env}
        ).start()
        made.append(process)
        return process

    yield start
    for process in made:
        process.kill()
        print(f"--- {process.log}\n{process.said()[-6000:]}")


@pytest.fixture
def job() -> dict[str, Any]:
    return deepcopy(JOB)
