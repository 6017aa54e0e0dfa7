"""Writes the CustomResourceDefinition from the models: `python -m roll_api.crd`.

What pydantic calls JSON schema is turned into what the API server calls structural: references are
inlined, "or null" is dropped, exclusive bounds become booleans, free objects keep unknown fields.
Only the first sentence of a description goes along, because the object has to stay small.
"""

import io
import json
import re
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema
from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap, CommentedSeq
from ruamel.yaml.representer import RoundTripRepresenter

from roll_api.job import GROUP, VERSION, ObjectMeta, RLJob
from roll_api.rules import RULES, TRANSITIONS, Rule, Transition
from roll_api.spec import JobSpec
from roll_api.status import JobStatus

Schema = dict[str, Any]

TARGET = Path(__file__).resolve().parent.parent / f"rljobs.{GROUP}.yaml"
IN_CHART = TARGET.parents[1] / "helm" / "roll-operator" / "files" / TARGET.name
"""Helm reads nothing outside of a chart: it carries a copy."""

_KEPT = (
    "type", "description", "default", "enum", "format", "pattern", "minimum", "maximum",
    "minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties", "required",
)  # fmt: skip

ONE_LINE = 1000
"""Characters of an object that is written on one line: a third of the text would be indentation."""

COLUMNS: tuple[tuple[str, str, str, int], ...] = (
    ("Phase", "string", ".status.phase", 0),
    ("Step", "integer", ".status.step", 0),
    ("Ready", "string", ".status.ready", 0),
    ("Samples/s", "number", ".status.samples.perSecond", 0),
    ("Stale", "integer", ".status.staleness.max", 0),
    ("Restarts", "integer", ".status.restarts", 0),
    ("Age", "date", ".metadata.creationTimestamp", 0),
    ("Checkpoint", "integer", ".status.checkpoint", 1),
    ("Reward", "number", ".status.reward", 1),
    ("Reason", "string", ".status.reason", 1),
    ("Pending", "string", ".status.pendingReason", 1),
)


class _JsonSchema(GenerateJsonSchema):
    """Defaults of objects name only what differs from the defaults of their own fields."""

    def encode_default(self, dft: Any) -> Any:
        if isinstance(dft, BaseModel):
            return dft.model_dump(mode="json", exclude_unset=True)
        return super().encode_default(dft)


def crd() -> Schema:
    """The CustomResourceDefinition of RLJob."""
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"rljobs.{GROUP}"},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": "RLJob",
                "listKind": "RLJobList",
                "plural": "rljobs",
                "singular": "rljob",
                "shortNames": ["rlj"],
                "categories": ["all"],
            },
            "versions": [_version()],
        },
    }


def _version() -> Schema:
    return {
        "name": VERSION,
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": _root()},
        "subresources": {
            "status": {},
            "scale": {
                "specReplicasPath": ".spec.roles.inference.replicas",
                "statusReplicasPath": ".status.roles.inference.replicas",
                "labelSelectorPath": ".status.inferenceSelector",
            },
        },
        "additionalPrinterColumns": [
            {"name": name, "type": kind, "jsonPath": path} | ({"priority": wide} if wide else {})
            for name, kind, path, wide in COLUMNS
        ],
    }


def _root() -> Schema:
    spec = _structural_of(JobSpec)
    rules: list[Rule | Transition] = [*RULES, *TRANSITIONS]
    spec["x-kubernetes-validations"] = [_validation(rule) for rule in rules]
    for shared in (spec, *spec["properties"]["roles"]["properties"].values()):
        shared["properties"] = _whole(shared["properties"], "roles")
    status = _reported(_structural_of(JobStatus))
    status["properties"] = _whole(status["properties"])
    conditions = status["properties"]["conditions"]
    conditions["items"]["x-kubernetes-map-type"] = "atomic"
    conditions |= {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]}
    return {
        "type": "object",
        "description": _first_sentence(RLJob.__doc__ or ""),
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object", "properties": {"name": _name()}},
            "spec": spec,
            "status": status,
        },
    }


def _name() -> Schema:
    """The name is the one thing that a CRD may restrict in metadata."""
    name = _structural_of(ObjectMeta)["properties"]["name"]
    return {key: name[key] for key in ("type", "maxLength", "pattern")}


def _validation(rule: Rule | Transition) -> Schema:
    return {"rule": rule.cel, "message": rule.message, "fieldPath": f".{rule.shown_at}"}


def _structural_of(model: type[BaseModel]) -> Schema:
    schema = model.model_json_schema(by_alias=True, schema_generator=_JsonSchema)
    return _structural(schema, schema.get("$defs", {}))


def _structural(schema: Schema, definitions: Schema) -> Schema:
    """One node of a structural schema, from one node of pydantic's."""
    if "anyOf" in schema:
        (present,) = (option for option in schema["anyOf"] if option.get("type") != "null")
        return _structural({**present, **_said_here(schema)}, definitions)
    if "$ref" in schema:
        target = definitions[schema["$ref"].rsplit("/", 1)[1]]
        return _structural({**target, **_said_here(schema)}, definitions)
    result = {key: schema[key] for key in _KEPT if schema.get(key) is not None}
    if "const" in schema:
        result["enum"] = [schema["const"]]
    for exclusive, bound in (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")):
        if exclusive in schema:
            result |= {bound: schema[exclusive], exclusive: True}
    if "description" in result:
        result["description"] = _first_sentence(result["description"])
    if "properties" in schema:
        result["properties"] = {
            key: _structural(value, definitions) for key, value in schema["properties"].items()
        }
    elif isinstance(schema.get("additionalProperties"), dict):
        result["additionalProperties"] = _structural(schema["additionalProperties"], definitions)
    elif schema.get("type") == "object":
        result["x-kubernetes-preserve-unknown-fields"] = True
    if "items" in schema:
        result["items"] = _structural(schema["items"], definitions)
    return result


def _said_here(schema: Schema) -> Schema:
    """What a field says about itself goes before what its type says."""
    return {key: schema[key] for key in ("description", "default") if schema.get(key) is not None}


def _whole(sections: Schema, *but: str) -> Schema:
    """Each section has one writer, and is written as a whole.

    Server-side apply would remember an owner of every key, which makes half of the object and a quarter of
    what a write costs the API server; and it makes null, which is no object, of a map that it empties key by
    key. What several may set (replicas, steps, suspend) stands outside of sections.
    """
    return {
        name: part | {"x-kubernetes-map-type": "atomic"}
        if part["type"] == "object" and name not in but
        else part
        for name, part in sections.items()
    }


def _reported(schema: Schema) -> Schema:
    """A part of the status, which the operator alone writes: a default would speak before it does."""
    bare = {key: value for key, value in schema.items() if key != "default"}
    if "properties" in bare:
        bare["properties"] = {k: _reported(v) for k, v in bare["properties"].items()}
    if "items" in bare:
        bare["items"] = _reported(bare["items"])
    return bare


def _first_sentence(text: str) -> str:
    sentence = re.split(r"(?<!e\.g)[.](?=\s|$)", " ".join(text.split()), maxsplit=1)[0]
    return f"{sentence}."


class _Representer(RoundTripRepresenter):
    """Text that readers of YAML 1.1 understand too: no aliases, and a point in every float."""

    def ignore_aliases(self, data: Any) -> bool:
        return True

    def represent_float(self, data: float) -> Any:
        mantissa, exponent, power = repr(data).partition("e")
        whole = mantissa if "." in mantissa else f"{mantissa}.0"
        return self.represent_scalar("tag:yaml.org,2002:float", f"{whole}{exponent}{power}")


_Representer.add_representer(float, _Representer.represent_float)


def rendered() -> str:
    """The file's text: one line per field, and small objects on one line."""
    yaml = YAML()
    yaml.Representer = _Representer
    yaml.width = 10_000
    text = io.StringIO()
    text.write("# Written by `python -m roll_api.crd` from the models in roll_api.\n")
    yaml.dump(_laid_out(crd()), text)
    return text.getvalue()


def _laid_out(value: Any) -> Any:
    if isinstance(value, dict):
        mapping = CommentedMap({key: _laid_out(item) for key, item in value.items()})
        if len(json.dumps(value)) < ONE_LINE or not any(
            isinstance(item, dict) and item for item in value.values()
        ):
            mapping.fa.set_flow_style()
        return mapping
    if isinstance(value, list):
        sequence = CommentedSeq([_laid_out(item) for item in value])
        if not any(isinstance(item, dict) for item in value):
            sequence.fa.set_flow_style()
        return sequence
    return value


if __name__ == "__main__":
    for path in (TARGET, IN_CHART):
        path.write_text(rendered(), encoding="utf-8")
