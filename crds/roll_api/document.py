"""A YAML 1.2 document together with the lines on which its keys stand."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import MappingNode, Node, SequenceNode

from roll_api.problems import InvalidJob, Loc, Problem

_ODD_KEY = "key {} is not text: put it in quotes"


@dataclass(frozen=True)
class Document:
    """One mapping, and the syntax tree that it was made from."""

    data: dict[str, Any]
    root: Node

    def line(self, loc: Loc) -> int:
        """The line of a key, or of the nearest parent that is written down."""
        node, line = self.root, self.root.start_mark.line
        for part in loc:
            if isinstance(node, MappingNode):
                found = next(((k, v) for k, v in node.value if k.value == part), None)
                if found is None:
                    break
                line, node = found[0].start_mark.line, found[1]
            elif (
                isinstance(node, SequenceNode) and isinstance(part, int) and part < len(node.value)
            ):
                node = node.value[part]
                line = node.start_mark.line
            else:
                break
        return int(line) + 1


def read_document(text: str, file: str) -> Document:
    """Reads a mapping; raises InvalidJob where the text holds none."""
    try:
        data = YAML(typ="safe", pure=True).load(text)
        root = YAML(typ="safe", pure=True).compose(text)
    except MarkedYAMLError as error:
        if error.context == "expected a single document in the stream":
            line = error.problem_mark.line + 1 if error.problem_mark else None
            several = "holds several documents: keep one RLJob in a file"
            raise InvalidJob([Problem(file, line, "", several)]) from error
        mark = error.problem_mark or error.context_mark
        line = None if mark is None else mark.line + 1
        problem = (error.problem or "cannot be read").split("\n")[0]
        raise InvalidJob([Problem(file, line, "", f"is not YAML: {problem}")]) from error
    except YAMLError as error:
        raise InvalidJob([Problem(file, None, "", f"is not YAML: {error}")]) from error
    if not isinstance(data, dict):
        raise InvalidJob([Problem(file, 1, "", "holds no RLJob: the top level must be a mapping")])
    odd = [
        Problem(file, k.start_mark.line + 1, "", _ODD_KEY.format(k.value)) for k in _odd_keys(root)
    ]
    if odd:
        raise InvalidJob(odd)
    return Document(data, root)


def _odd_keys(node: Node) -> Iterator[Node]:
    """Keys that YAML reads as something else than text, which JSON has no place for."""
    if isinstance(node, MappingNode):
        for key, value in node.value:
            if key.tag not in ("tag:yaml.org,2002:str", "tag:yaml.org,2002:merge"):
                yield key
            yield from _odd_keys(value)
    elif isinstance(node, SequenceNode):
        for item in node.value:
            yield from _odd_keys(item)
