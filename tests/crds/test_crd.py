"""The generated CRD: up to date, small, and of the form that an API server accepts."""

from collections.abc import Iterator
from typing import Any

import pytest
from roll_api import RLJob, crd, reference
from roll_api.base import Model
from roll_api.rules import TRANSITIONS
from support.api_server import defaulted

CRD = crd.crd()
VERSION = CRD["spec"]["versions"][0]
ROOT = VERSION["schema"]["openAPIV3Schema"]


def nodes(schema: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    yield path, schema
    for key, child in schema.get("properties", {}).items():
        yield from nodes(child, f"{path}.{key}")
    for key in ("items", "additionalProperties"):
        if key in schema:
            yield from nodes(schema[key], f"{path}[]")


def at(path: str) -> Any:
    return dict(nodes(ROOT))[path]


def test_the_checked_in_crd_is_what_the_models_say() -> None:
    assert crd.TARGET.read_text(encoding="utf-8") == crd.rendered(), "run: make generate"


def test_the_checked_in_reference_is_what_the_models_say() -> None:
    assert reference.TARGET.read_text(encoding="utf-8") == reference.rendered()


@pytest.mark.parametrize(
    ("key", "word"),
    [
        ("seed", "never"),
        ("storage.ledgerSize", "never"),
        ("data.train.path", "never"),
        ("data.train.promptKey", "at rest"),
        ("rollout.groupSize", "never"),
        ("rollout.maxStaleness", "at rest"),
        ("algorithm.learningRate", "at rest"),
        ("rewards", "at rest"),
        ("rewards[].weight", "at rest"),
        ("roles.inference.replicas", "any time"),
        ("roles.trainer.replicas", "at rest"),
        ("failurePolicy.maxRestarts", "any time"),
    ],
)
def test_the_reference_says_when_a_key_may_change(key: str, word: str) -> None:
    section, _, name = key.rpartition(".")
    text = reference.rendered().split(f"## {section or 'spec'}\n")[1].split("\n## ")[0]

    row = next(line for line in text.splitlines() if line.startswith(f"| `{name}` |"))

    assert row.endswith(f"| {word} |")


def test_the_crd_stays_under_60_kB() -> None:
    assert len(crd.rendered().encode()) < 60_000


def test_every_node_is_structural() -> None:
    for path, node in nodes(ROOT):
        assert not node.keys() & {"$ref", "anyOf", "allOf", "oneOf", "title", "const"}, path
        assert isinstance(node.get("type"), str), path
        assert isinstance(node.get("exclusiveMinimum", True), bool), path
        assert isinstance(node.get("exclusiveMaximum", True), bool), path
        assert not ("properties" in node and "additionalProperties" in node), path


def test_everything_in_the_spec_has_a_bound() -> None:
    bound = {"string": "maxLength", "array": "maxItems", "integer": "maximum", "number": "maximum"}
    for path, node in nodes(ROOT["properties"]["spec"]):
        if node["type"] in bound and "enum" not in node:
            assert bound[node["type"]] in node, path
        if "additionalProperties" in node or "x-kubernetes-preserve-unknown-fields" in node:
            assert "maxProperties" in node, path


def test_templates_options_and_the_operators_record_keep_unknown_fields() -> None:
    free = [path for path, node in nodes(ROOT) if node.get("x-kubernetes-preserve-unknown-fields")]

    assert {path.rsplit(".", 1)[1] for path in free} == {"options", "template", "record"}


def test_no_rule_reads_what_the_api_server_hides() -> None:
    for rule in ROOT["properties"]["spec"]["x-kubernetes-validations"]:
        assert ".options" not in rule["rule"]
        assert ".template" not in rule["rule"]
        assert f".spec{rule['fieldPath']}" in dict(nodes(ROOT))
        assert len(rule["message"]) < 2048


def test_a_transition_asks_whether_a_key_is_there_unless_it_always_is() -> None:
    """CEL fails on an absent key, and the update with it."""
    for transition in TRANSITIONS:
        for path in transition.reads:
            parts = path.split(".")
            for depth in range(1, len(parts) + 1):
                parent = at(".spec" + "".join(f".{part}" for part in parts[: depth - 1]))
                key, name = ".".join(parts[:depth]), parts[depth - 1]
                always = "default" in parent["properties"][name] or name in parent.get(
                    "required", []
                )
                both = f"has(self.{key}) == has(oldSelf.{key})"
                if transition.while_there:
                    both = f"!has(self.{key}) || !has(oldSelf.{key})"
                assert always or both in transition.cel, key


def test_the_status_has_no_defaults() -> None:
    assert all("default" not in node for _, node in nodes(ROOT["properties"]["status"]))


def test_scale_reaches_inference_even_where_no_role_is_named() -> None:
    scale = VERSION["subresources"]["scale"]
    spec = defaulted({"model": {"path": "a"}}, ROOT["properties"]["spec"])

    assert scale["specReplicasPath"] == ".spec.roles.inference.replicas"
    assert spec["roles"]["inference"]["replicas"] == 0
    assert at(scale["statusReplicasPath"])["type"] == "integer"
    assert at(scale["labelSelectorPath"])["type"] == "string"


def test_columns_are_those_of_the_design() -> None:
    columns = VERSION["additionalPrinterColumns"]
    narrow = [c["name"].upper() for c in columns if not c.get("priority")]

    assert narrow == ["PHASE", "STEP", "READY", "SAMPLES/S", "STALE", "RESTARTS", "AGE"]
    assert all(c["jsonPath"] in dict(nodes(ROOT)) for c in columns if "status" in c["jsonPath"])


def test_the_crd_fills_in_what_pydantic_fills_in() -> None:
    job = {
        "apiVersion": "roll.dev/v1alpha1",
        "kind": "RLJob",
        "metadata": {"name": "a"},
        "spec": {"pipeline": "SFT", "model": {"path": "a"}, "data": {"train": {"path": "a"}}},
    }
    by_models = RLJob.parse(job).spec.model_dump(mode="json", exclude_none=True)

    assert defaulted(job, ROOT)["spec"] == by_models


def every_model(model: type[Model]) -> Iterator[type[Model]]:
    yield model
    for child in model.__subclasses__():
        yield from every_model(child)


@pytest.mark.parametrize("model", list(dict.fromkeys(every_model(Model))))
def test_every_field_is_described(model: type[Model]) -> None:
    for name, field in model.model_fields.items():
        assert field.description, f"{model.__name__}.{name}"
        first, *_ = field.description.split("\n")
        assert first.endswith("."), f"{model.__name__}.{name}: {first}"
