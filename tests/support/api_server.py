"""Judges objects as an API server would, from the CRD alone: schema, defaults, pruning of nulls, CEL.

The order is the server's: strict field validation, nulls dropped, defaults filled in, schema, rules.
"""

from copy import deepcopy
from typing import Any, cast

import cel
from jsonschema import Draft4Validator, ValidationError

Schema = dict[str, Any]


class ApiServer:
    """A stand-in for the validation of one custom resource."""

    def __init__(self, crd: Schema) -> None:
        self.schema: Schema = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]

    def refuses(self, new: Any, old: Any = None) -> list[tuple[str, str]]:
        """All (key path, message) for a create, or for an update when there is an old object."""
        new = deepcopy(new)
        problems = [(path, "unknown field") for path in _unknown(new, self.schema, "")]
        new = defaulted(new, self.schema)
        errors = Draft4Validator(self.schema).iter_errors(new)
        problems += [(_key_path(error), error.message) for error in errors]
        if problems:
            return problems
        return self._broken_rules(new, None if old is None else defaulted(old, self.schema))

    def _broken_rules(self, new: Any, old: Any) -> list[tuple[str, str]]:
        broken = []
        for rule in self.schema["properties"]["spec"]["x-kubernetes-validations"]:
            bindings = {"self": new["spec"]}
            if "oldSelf" in rule["rule"]:
                if old is None:
                    continue
                bindings["oldSelf"] = old["spec"]
            if not cel.evaluate(rule["rule"], bindings):
                broken.append((f"spec{rule['fieldPath']}", rule["message"]))
        return broken


def _key_path(error: ValidationError) -> str:
    parts = [str(part) for part in error.absolute_path]
    if error.validator == "required":  # reported at the parent
        wanted, given = cast(list[str], error.validator_value), cast(Schema, error.instance)
        parts += [key for key in wanted if key not in given]
    return ".".join(parts)


def defaulted(value: Any, schema: Schema) -> Any:
    """The value with nulls dropped, defaults filled in, and numbers typed as the schema says."""
    if isinstance(value, dict):
        properties = schema.get("properties", {})
        value = {key: item for key, item in value.items() if item is not None}
        for key, child in properties.items():
            if key not in value and "default" in child:
                value[key] = deepcopy(child["default"])
        return {key: defaulted(item, properties.get(key, {})) for key, item in value.items()}
    if isinstance(value, list):
        return [defaulted(item, schema.get("items", {})) for item in value]
    if schema.get("type") == "number" and type(value) is int:
        return float(value)
    return value


def _unknown(value: Any, schema: Schema, path: str) -> list[str]:
    if isinstance(value, list):
        items = schema.get("items", {})
        return [p for i, item in enumerate(value) for p in _unknown(item, items, f"{path}.{i}")]
    properties = schema.get("properties")
    if not isinstance(value, dict) or properties is None or path == "metadata":
        return []
    found: list[str] = []
    for key, item in value.items():
        here = f"{path}.{key}" if path else key
        found += _unknown(item, properties[key], here) if key in properties else [here]
    return found
