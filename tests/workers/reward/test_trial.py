"""`roll reward`: a reward function is tried in seconds, by the code that judges in a run."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROLL = str(Path(sys.executable).with_name("roll"))
ROWS: list[dict[str, Any]] = [
    {"prompt": "3,7,5=", "answer": "7", "level": 2},
    {"prompt": "1,0,9=", "answer": "9", "level": 1},
]


def roll_reward(
    folder: Path, code: str, *arguments: str, rows: list[dict[str, Any]] = ROWS
) -> subprocess.CompletedProcess[str]:
    (folder / "rewards.py").write_text(code)
    (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    job = {
        "apiVersion": "roll.dev/v1alpha1",
        "kind": "RLJob",
        "metadata": {"name": "mine"},
        "spec": {
            "model": {"path": "no-such/model"},
            "data": {"train": {"path": "rows.jsonl"}},
            "rewards": [
                {"name": "mine", "scorer": {"python": "rewards.py:score", "timeoutSeconds": 2}}
            ],
            "roles": {
                "inference": {"replicas": 1},
                "reward": {"replicas": 1},
                "environment": {"replicas": 1},
            },
        },
    }
    (folder / "job.yaml").write_text(json.dumps(job))
    return subprocess.run(
        [ROLL, "reward", str(folder / "job.yaml"), *arguments],
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_each_row_is_judged_with_its_own_answer_and_with_a_wrong_one(tmp_path: Path) -> None:
    done = roll_reward(
        tmp_path, "def score(response, answer, level): return level * (response == answer)\n"
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == f"{tmp_path / 'rows.jsonl'}, line 1: '3,7,5=', answer '7'"
    assert lines[1] == "  '7' (its own answer): 2  (mine 2)"
    assert lines[2] == "  '9' (another row's answer): 0  (mine 0)"
    assert lines[4] == "  '9' (its own answer): 1  (mine 1)"
    assert lines[-1].startswith("4 answers judged, ")


def test_a_typed_response_is_judged_alone(tmp_path: Path) -> None:
    code = "def score(response, tokens): return {'nines': response.count('9'), 'size': tokens}\n"
    done = roll_reward(tmp_path, code, "--response", "-99", "--rows", "1")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[1] == "  '-99': 5  (mine 5, mine.nines 2, mine.size 3)"


def test_a_function_that_fails_is_told_with_its_line_and_the_others_are_still_judged(
    tmp_path: Path,
) -> None:
    done = roll_reward(
        tmp_path,
        "def score(response):\n"
        "    if response == '7':\n"
        "        raise RuntimeError('seven')\n"
        "    return 1.0\n",
    )
    assert done.returncode == 1
    assert "'9' (its own answer): 1 " in done.stdout
    assert done.stderr.strip() == (
        "error: 2 of 4 answers could not be judged; the first: "
        "rewards.py:score raised: rewards.py, line 3: RuntimeError: seven"
    )


def test_a_function_that_hangs_is_ended(tmp_path: Path) -> None:
    done = roll_reward(tmp_path, "def score(response):\n    while True: pass\n", "--rows", "1")
    assert done.returncode == 1
    assert "rewards.py:score did not end within 2 s" in done.stderr


def test_a_row_without_the_answer_that_a_function_asks_for_is_told(tmp_path: Path) -> None:
    rows = [{"prompt": "3,7,5="}]
    done = roll_reward(tmp_path, "def score(response, answer): return 1.0\n", rows=rows)
    assert done.returncode == 1
    assert "rewards.py:score needs answer, which the data row does not have" in done.stderr


def test_a_column_that_a_function_looks_up_in_vain_is_told_with_those_that_there_are(
    tmp_path: Path,
) -> None:
    code = "def score(response, **facts):\n    return float(response == facts['gold'])\n"
    done = roll_reward(tmp_path, code, "--rows", "1", "--response", "7")
    assert done.returncode == 1
    assert done.stderr == (
        "error: 1 of 1 answers could not be judged; the first: rewards.py:score raised: rewards.py, line 2: "
        "KeyError: 'gold' (it is given answer, level, prompt, response, tag, tokens, turns)\n"
    )


@pytest.mark.parametrize("messages", ["what?", [], ["what?"], [{"role": "user"}]])
def test_a_row_whose_messages_are_none_is_one_sentence(tmp_path: Path, messages: Any) -> None:
    rows = [ROWS[0], {"messages": messages, "answer": "7"}]
    done = roll_reward(tmp_path, "def score(response): return 1.0\n", rows=rows)
    assert done.returncode == 2
    assert done.stderr == (
        f"error: {tmp_path / 'rows.jsonl'}, line 2: 'messages' is not a list of {{role, content}} messages\n"
    )


def test_a_file_that_does_not_import_ends_it_at_once(tmp_path: Path) -> None:
    done = roll_reward(tmp_path, "import no_such_module\n")
    assert done.returncode == 2
    assert done.stderr.startswith("error: rewards.py:score: can't import it: rewards.py, line 1")
    assert "Traceback" not in done.stderr
