"""A job's file with mistakes: all of them are reported at once, with line and key path."""

import io
import json
import re
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from roll_api import InvalidJob, RLJob, load_job, spec_hash
from roll_api.crd import crd
from roll_api.shapes import WORDS
from ruamel.yaml import YAML
from support.objects import changed

GOOD = """\
apiVersion: roll.dev/v1alpha1
kind: RLJob
metadata: {name: arithmetic}
spec:
  steps: 120
  model: {path: "builtin:tiny-qwen2"}
  data:
    train: {path: rows.jsonl}
  algorithm:
    learningRate: 1e-3
  rollout:
    groupsPerStep: 32
    groupSize: 8
    runAhead: 1.5
  rewards:
  - name: exact
    scorer: {kind: exactMatch}
  roles:
    inference: {replicas: 2}
    reward: {}
    environment: {}
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "job.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def problems(folder: Path, text: str) -> list[tuple[int | None, str, str]]:
    with pytest.raises(InvalidJob) as caught:
        load_job(written(folder, text))
    return [(p.line, p.key_path, p.message) for p in caught.value.problems]


def test_a_good_file_is_a_job(tmp_path: Path) -> None:
    job = load_job(written(tmp_path, GOOD))

    assert job.name == "arithmetic"
    assert job.spec.algorithm.learning_rate == 0.001
    assert job.spec.rollout.effective_run_ahead == 1.5
    assert job.spec.roles.reward.replicas == 1


def test_all_mistakes_are_reported_at_once_with_their_lines(tmp_path: Path) -> None:
    text = (
        GOOD.replace("steps: 120", "steps: many")
        .replace("groupSize: 8", "groupsize: 8")
        .replace("runAhead: 1.5", "runAhead: 7")
        .replace("  - name: exact\n    scorer", "  - scorer")
        .replace("inference: {replicas: 2}", "inference: {replicas: -2}")
        .replace("    reward: {}\n", "")
    )

    found = problems(tmp_path, text)

    assert [(line, key) for line, key, _ in found] == [
        (5, "spec.steps"),
        (13, "spec.rollout.groupsize"),
        (14, "spec.rollout.runAhead"),
        (16, "spec.rewards[0].name"),
        (17, "spec.roles.reward.replicas"),
        (18, "spec.roles.inference.replicas"),
    ]


def test_an_unknown_key_comes_with_the_likely_one(tmp_path: Path) -> None:
    text = GOOD.replace("groupSize", "group_size").replace("learningRate", "learnRate")

    assert problems(tmp_path, text) == [
        (10, "spec.algorithm.learnRate", "unknown key; did you mean learningRate?"),
        (13, "spec.rollout.group_size", "unknown key; did you mean groupSize?"),
    ]


def test_an_unknown_key_like_no_other_comes_with_all_keys(tmp_path: Path) -> None:
    ((line, key, message),) = problems(tmp_path, GOOD.replace("reward: {}", "reward: {zzz: 1}"))

    assert (line, key) == (20, "spec.roles.reward.zzz")
    assert message.startswith("unknown key; known here: replicas, threads")


def test_a_wrong_type_says_what_was_found(tmp_path: Path) -> None:
    assert problems(tmp_path, GOOD.replace("steps: 120", "steps: '120'")) == [
        (5, "spec.steps", "input should be a valid integer, not '120'")
    ]


def test_text_of_the_wrong_form_says_what_to_write(tmp_path: Path) -> None:
    text = GOOD.replace("{kind: exactMatch}", "{python: rewards.score}").replace(
        "{name: arithmetic}", "{name: My Job}"
    )

    assert problems(tmp_path, text) == [
        (
            3,
            "metadata.name",
            "write small letters, digits and '-', beginning with a letter, e.g. my-job, not 'My Job'",
        ),
        (
            17,
            "spec.rewards[0].scorer.python",
            "write FILE.py:NAME, e.g. rewards.py:score, not 'rewards.score'",
        ),
    ]


def test_every_pattern_has_words(tmp_path: Path) -> None:
    """A pattern that came without them would be shown as it is."""
    assert set(re.findall(r'"pattern": "((?:[^"\\]|\\.)*)"', json.dumps(crd()))) == {
        json.dumps(pattern)[1:-1] for pattern in WORDS
    }


def test_a_broken_rule_says_which_values_break_it(tmp_path: Path) -> None:
    ((line, key, message),) = problems(
        tmp_path,
        GOOD.replace("groupsPerStep: 32", "groupsPerStep: 33").replace(
            "    learningRate", "    minibatches: 16\n    learningRate"
        ),
    )

    assert (line, key) == (13, "spec.rollout.groupsPerStep")
    assert "rollout.groupsPerStep=33, rollout.groupSize=8" in message
    assert "algorithm.minibatches=16" in message


def test_a_rule_stays_silent_about_a_value_that_is_wrong_by_itself(tmp_path: Path) -> None:
    text = GOOD.replace("inference: {replicas: 2}", "inference: {replicas: two}")

    assert [key for _, key, _ in problems(tmp_path, text)] == ["spec.roles.inference.replicas"]


def test_rules_about_pods_do_not_concern_one_machine(tmp_path: Path) -> None:
    path = written(tmp_path, GOOD.replace("  roles:\n", "  roles:\n    trainer: {replicas: 2}\n"))

    assert load_job(path).spec.roles.trainer.ranks == 2
    with pytest.raises(InvalidJob, match=r"storage\.claim or storage\.uri"):
        load_job(path, cluster=True)


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("spec:\n  a: [1\n  b: 2\n", 3, "is not YAML"),
        ("a: 1\na: 2\n", 2, "duplicate key"),
        ("a: 1\n---\nb: 2\n", 2, "holds several documents: keep one RLJob in a file"),
        ("a:\n  1: 2\n", 2, "key 1 is not text"),
        ("- 1\n", 1, "must be a mapping"),
        ("", 1, "must be a mapping"),
    ],
)
def test_what_is_no_job_at_all(tmp_path: Path, text: str, line: int, message: str) -> None:
    ((found_line, key, found),) = problems(tmp_path, text)

    assert (found_line, key) == (line, "")
    assert message in found


def test_every_part_may_be_missing(tmp_path: Path) -> None:
    assert [key for _, key, _ in problems(tmp_path, "spec: {}\n")] == [
        "apiVersion",
        "kind",
        "metadata",
        "spec.data",
        "spec.model",
        "spec.rewards",
        "spec.roles.environment.replicas",
        "spec.roles.inference.replicas",
    ]


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InvalidJob, match=r"gone\.yaml: cannot be read: No such file"):
        load_job(tmp_path / "gone.yaml")


def test_a_file_that_is_not_text(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_bytes(b"\xff\xfe\x00")

    with pytest.raises(InvalidJob, match="is not UTF-8"):
        load_job(path)


PATHS = [
    "spec", "spec.model", "spec.model.path", "spec.data", "spec.data.train", "spec.steps",
    "spec.rollout", "spec.rollout.groupSize", "spec.rollout.filter", "spec.rewards",
    "spec.rewards.0", "spec.rewards.0.scorer", "spec.rewards.0.name", "spec.rewards.1",
    "spec.roles", "spec.roles.trainer", "spec.roles.inference.replicas", "spec.algorithm.betas",
    "spec.environment", "spec.storage", "metadata", "metadata.name", "kind", "status",
]  # fmt: skip
VALUES: st.SearchStrategy[Any] = st.sampled_from(
    [None, 0, -1, 2.5, True, "", "x", [], [1], [{}], {}, {"x": 1}, {1: 2}]
)


@settings(deadline=None)
@given(st.dictionaries(st.sampled_from(PATHS), VALUES, min_size=1, max_size=4))
def test_whatever_is_wrong_is_a_problem_and_never_a_crash(mistakes: dict[str, Any]) -> None:
    data = YAML(typ="safe", pure=True).load(GOOD)
    data["spec"]["rewards"].append({"name": "other", "scorer": {"kind": "math"}})
    for path, value in sorted(mistakes.items()):
        with suppress(TypeError, KeyError, IndexError, AttributeError):  # an earlier one removed it
            data = changed(data, {path: value})
    text = io.StringIO()
    YAML().dump(data, text)

    with TemporaryDirectory() as folder:
        try:
            load_job(written(Path(folder), text.getvalue()))
        except InvalidJob as invalid:
            assert invalid.problems
            assert all(p.line is not None and p.message for p in invalid.problems)


def test_a_problem_prints_as_file_line_and_key(tmp_path: Path) -> None:
    path = written(tmp_path, GOOD.replace("steps: 120", "steps: 0"))

    with pytest.raises(InvalidJob) as caught:
        load_job(path)

    assert str(caught.value).startswith(f"{path}:5: spec.steps: ")


def test_a_job_survives_the_way_to_a_worker(tmp_path: Path) -> None:
    job = load_job(written(tmp_path, GOOD))

    assert RLJob.from_json(job.to_json()) == job


def test_scaling_suspending_and_budgets_keep_the_spec_hash(tmp_path: Path) -> None:
    def hashed(old: str, new: str) -> str:
        return spec_hash(load_job(written(tmp_path, GOOD.replace(old, new))))

    same = hashed("", "")

    assert hashed("replicas: 2", "replicas: 3") == same
    assert hashed("steps: 120", "steps: 120\n  suspend: true") == same
    assert hashed("name: arithmetic", "name: other") == same
    assert hashed("steps: 120", "steps: 120\n  failurePolicy: {maxRestarts: 3}") == same
    assert hashed("steps: 120", "steps: 120\n  runPolicy: {activeDeadlineSeconds: 3}") == same
    assert hashed("steps: 120", "steps: 120\n  restart: {id: again}") == same
    assert hashed("steps: 120", "steps: 121") != same
    assert hashed("groupSize: 8", "groupSize: 4") != same


def test_a_stored_job_may_have_keys_of_a_newer_contract(tmp_path: Path) -> None:
    data = load_job(written(tmp_path, GOOD)).model_dump(mode="json", exclude_none=True)
    data["spec"]["rollout"]["newer"] = {"a": 1}
    data["spec"]["rewards"][0]["newer"] = 2
    data["status"] = {"phase": "Running", "newer": 3}

    job = RLJob.parse_stored(data)

    assert job.status is not None
    assert job.status.phase == "Running"
    assert job.spec.rollout.group_size == 8
