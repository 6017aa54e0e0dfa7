"""The API server as a user's command reaches it: the kubeconfig's, with every failure in one line.

Answers are plain dictionaries: the client's typed models know no RLJob, and cost time at the start.
"""

import json
from collections.abc import Iterator
from functools import cached_property
from typing import Any
from urllib.parse import urlencode

from roll_api import GROUP, VERSION

from roll_operator.controller.cluster import errors, paths
from roll_operator.controller.folder import RunError

Manifest = dict[str, Any]

APPLY = "application/apply-patch+yaml"
CONNECT_SECONDS = 10.0
CALL_SECONDS = 30.0


class Cluster:
    """The cluster of the current context, and the namespace that a command is about."""

    def __init__(self, namespace: str | None) -> None:
        self.client, of_context = _connect()
        self.namespace = namespace or of_context

    def get(self, path: str, **query: str) -> Manifest:
        return self._json("GET", path, query=query)

    def find(self, path: str) -> Manifest | None:
        try:
            return self.get(path)
        except errors.NotFound as error:
            if not error.reason:  # no Status of an object: the path itself is unknown
                raise
            return None

    def apply(self, path: str, body: Manifest, **query: str) -> Manifest:
        """What the manager no longer names goes away; what others wrote differently is overwritten."""
        query = {"fieldManager": "roll", "force": "true", "fieldValidation": "Strict", **query}
        return self._json("PATCH", path, body=body, query=query, content_type=APPLY)

    def delete(self, path: str) -> None:
        self._json("DELETE", path)

    def pods(self, job: str) -> list[Manifest]:
        path = paths.collection("v1", "Pod", self.namespace)
        found: list[Manifest] = self.get(path, labelSelector=f"roll.dev/job={job}")["items"]
        return found

    def job(self, name: str) -> Manifest:
        """Raises RunError where there is none."""
        found = self.find(paths.job(self.namespace, name))
        if found is None:
            raise RunError(
                f"there is no RLJob {name} in namespace {self.namespace} "
                "(kubectl get rljobs -A lists all; -n chooses the namespace)"
            )
        return found

    def lines(self, path: str, **query: str) -> Iterator[str]:
        """Lines of a text, as they come; for ever where the query says follow."""
        import urllib3

        response = self._send("GET", path, query=query, seconds=(CONNECT_SECONDS, None))
        rest = b""
        try:
            for chunk in response.response.stream(65536):
                *whole, rest = (rest + chunk).split(b"\n")
                for line in whole:
                    yield line.decode("utf-8", "replace")
        except urllib3.exceptions.HTTPError as error:
            raise errors.Unavailable(0, "", f"the connection broke: {error}") from error
        finally:
            response.response.release_conn()
        if rest:
            yield rest.decode("utf-8", "replace")

    def _json(self, verb: str, path: str, **more: Any) -> Manifest:
        answer: Manifest = json.loads(self._send(verb, path, **more).read())
        return answer

    def _send(
        self,
        verb: str,
        path: str,
        *,
        body: Manifest | None = None,
        query: dict[str, str] | None = None,
        content_type: str = "application/json",
        seconds: float | tuple[float, float | None] = CALL_SECONDS,
    ) -> Any:
        import urllib3

        target = f"{path}?{urlencode(query)}" if query else path
        _, url, headers, *_ = self.client.param_serialize(
            verb,
            target,
            header_params={"Accept": "application/json, */*", "Content-Type": content_type},
            auth_settings=["BearerToken"],
        )
        text = None if body is None else json.dumps(body)
        try:
            response = self.client.call_api(verb, url, headers, text, _request_timeout=seconds)
        except (urllib3.exceptions.HTTPError, OSError, self._api_exception) as error:
            raise RunError(
                f"the cluster at {self._server} does not answer: {_why(error)}"
            ) from error
        if response.status >= 400:
            raise errors.error_of(response.status, response.getheaders(), response.read())
        return response

    @property
    def _server(self) -> str:
        return str(self.client.configuration.host)

    @cached_property
    def _api_exception(self) -> type[Exception]:
        from kubernetes.client.exceptions import ApiException

        found: type[Exception] = ApiException
        return found


def explain(error: errors.ApiError) -> str:
    """One line for a user."""
    if isinstance(error, errors.NotFound) and not error.reason:
        return (
            f"the cluster knows no RLJobs ({GROUP}/{VERSION}): install the operator first "
            "(helm install roll-operator helm/roll-operator -n roll-system --create-namespace)"
        )
    if error.status == 401:
        return "the cluster does not accept the credentials of this kubeconfig (401 Unauthorized)"
    return " ".join(error.message.split()) or str(error)


def _connect() -> tuple[Any, str]:
    try:
        from kubernetes import client, config
        from yaml import YAMLError  # type: ignore[import-untyped]
    except ImportError as error:
        raise RunError(
            f"clusters need the package {error.name}: pip install 'roll-operator[operator]'"
        ) from error
    settings = client.Configuration()
    try:
        config.load_kube_config(client_configuration=settings)
        _, active = config.list_kube_config_contexts()
    except config.ConfigException as error:
        raise RunError(
            f"there is no cluster to ask: {_why(error)} (KUBECONFIG or ~/.kube/config says which)"
        ) from error
    except (OSError, YAMLError, TypeError, KeyError, AttributeError) as error:
        raise RunError(f"the kubeconfig cannot be read: {_why(error)}") from error
    settings.retries = False
    return client.ApiClient(settings), active["context"].get("namespace") or "default"


def _why(error: BaseException) -> str:
    reason = getattr(error, "reason", None)
    return " ".join(str(reason or error).split())
