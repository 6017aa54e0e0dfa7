"""Where no cluster can be had, one line says what was left out; in CI it is a failure."""

import os
import subprocess
import sys
from pathlib import Path

ONE = Path(__file__).with_name("test_trust.py")
AS_A_USER = "import os, sys, pytest; os.geteuid = lambda: 1000; sys.exit(pytest.main(sys.argv[1:]))"
WHY = "tests on a cluster left out: no KUBECONFIG, and starting a cluster here needs root"
NO_TESTS = 5  # pytest's word for it: nothing else was asked for


def run_as_a_user(**more: str) -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if k not in ("CI", "KUBECONFIG")} | more
    arguments = (str(ONE), "-q", "-p", "no:cacheprovider")
    return subprocess.run(
        [sys.executable, "-c", AS_A_USER, *arguments],
        cwd=ONE.parents[2], env=environment, capture_output=True, text=True, timeout=200,
    )  # fmt: skip


def test_what_needs_a_cluster_is_left_out_and_said_in_one_line() -> None:
    said = run_as_a_user()
    assert said.returncode == NO_TESTS, said.stdout
    assert said.stdout.count(WHY) == 1 and "7 deselected" in said.stdout


def test_in_ci_the_same_words_are_a_failure() -> None:
    said = run_as_a_user(CI="true")
    assert said.returncode == 1, said.stdout
    assert WHY in said.stdout and "7 errors" in said.stdout
