"""One table of objects, two judges that must agree: pydantic, and the CRD's schema with its CEL rules."""

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from roll_api import RLJob
from roll_api.crd import crd
from roll_api.rules import refused_changes
from ruamel.yaml import YAML
from support.api_server import ApiServer
from support.objects import changed

TABLE = YAML(typ="safe", pure=True).load(Path(__file__).with_name("table.yaml"))
API_SERVER = ApiServer(crd())


def rows(section: str) -> list[Any]:
    return [pytest.param(row, id=row["name"]) for row in TABLE[section]]


def made(row: dict[str, Any], base: Any = TABLE["base"]) -> Any:
    return changed(base, row.get("set"), row.get("remove"))


def pydantic_refuses(obj: Any, cluster: bool) -> list[str]:
    try:
        RLJob.parse(obj, cluster=cluster)
    except ValidationError as error:
        return [".".join(str(part) for part in detail["loc"]) for detail in error.errors()]
    return []


def test_names_of_rows_differ() -> None:
    for section in ("create", "update"):
        names = [row["name"] for row in TABLE[section]]
        assert len(names) == len(set(names))


@pytest.mark.parametrize("row", rows("create"))
def test_pydantic_judges_a_new_job(row: dict[str, Any]) -> None:
    wanted = [row["bad"]] if "bad" in row else []

    assert pydantic_refuses(made(row), cluster=True) == wanted
    assert pydantic_refuses(made(row), cluster=False) == ([] if row.get("cluster") else wanted)


@pytest.mark.parametrize("row", rows("create"))
def test_the_crd_judges_a_new_job(row: dict[str, Any]) -> None:
    """What `only: pydantic` marks is refused by an API server too, but not by a word of the CRD."""
    wanted = [row["bad"]] if "bad" in row and row.get("only") != "pydantic" else []

    refused = API_SERVER.refuses(made(row))

    assert [path for path, _ in refused] == wanted, refused


@pytest.mark.parametrize("row", rows("update"))
def test_both_judge_an_update(row: dict[str, Any]) -> None:
    old = changed(TABLE["base"], row.get("from"), row.get("without"))
    new = made(row, old)
    wanted = [row["bad"]] if "bad" in row else []

    by_crd = [path for path, _ in API_SERVER.refuses(new, old)]
    by_models = [
        f"spec.{t.shown_at}" for t in refused_changes(RLJob.parse(old).spec, RLJob.parse(new).spec)
    ]

    assert by_crd == wanted
    assert by_models == wanted


def test_each_rule_is_broken_by_a_row() -> None:
    broken = {message for row in TABLE["create"] for _, message in API_SERVER.refuses(made(row))}
    for row in TABLE["update"]:
        old = changed(TABLE["base"], row.get("from"), row.get("without"))
        broken |= {message for _, message in API_SERVER.refuses(made(row, old), old)}
    rules = API_SERVER.schema["properties"]["spec"]["x-kubernetes-validations"]

    unproved = [rule["message"] for rule in rules if rule["message"] not in broken]

    assert unproved == []
