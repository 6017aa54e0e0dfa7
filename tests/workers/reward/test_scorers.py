"""A scorer ends in a finite number or in a typed failure, whatever the function does."""

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Awaitable, Callable
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from roll_workers.errors import UserError
from roll_workers.reward.scorers import (
    Reward,
    ScoredSample,
    Scorer,
    ScorerCrash,
    ScorerError,
    ScorerTimeout,
    as_reward,
)
from roll_workers.reward.scorers.matching import ExactMatch, Regex
from roll_workers.reward.scorers.maths import Math, verify_answer
from roll_workers.reward.scorers.processes import ASYNC_CALLS, STUCK_SECONDS, ScorerProcesses
from roll_workers.reward.scorers.python import Python

LIMIT = 60.0


def sample(response: str, answer: Any = "7", **changes: Any) -> ScoredSample:
    return ScoredSample(prompt="3,7,5=", response=response, answer=answer, tag="number", **changes)


def with_scorer(scorer: Scorer, body: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(LIMIT):
            await scorer.start()
            try:
                await body()
            finally:
                await scorer.close()

    asyncio.run(main())


def score(scorer: Scorer, *samples: ScoredSample) -> list[Any]:
    """What each sample's scoring ended in: a reward or the error."""
    results: list[Any] = []

    async def body() -> None:
        results.extend(
            await asyncio.gather(*(scorer.score(s) for s in samples), return_exceptions=True)
        )

    with_scorer(scorer, body)
    return results


def user_function(folder: Path, code: str, timeout: float = 20.0, **options: Any) -> Python:
    (folder / "rewards.py").write_text(textwrap.dedent(code))
    return Python("rewards.py:score", folder, timeout, options)


def test_an_exact_match_is_one_and_anything_else_zero() -> None:
    given = [sample("7"), sample(" 7\n"), sample("8"), sample(""), sample("7", answer=7)]
    assert score(ExactMatch(), *given) == [1.0, 1.0, 0.0, 0.0, 1.0]


def test_exact_match_heeds_its_options() -> None:
    assert score(ExactMatch(strip=False), sample(" 7")) == [0.0]
    assert score(ExactMatch(ignoreCase=True), sample("YES", "yes")) == [1.0]
    assert score(ExactMatch(), sample("YES", "yes")) == [0.0]


def test_exact_match_without_an_answer_is_a_failure_and_not_a_zero() -> None:
    [failure] = score(ExactMatch(), sample("7", answer=None))
    assert isinstance(failure, ScorerError)


def test_a_pattern_with_a_group_is_compared_with_the_answer() -> None:
    scorer = Regex(r"answer is (\d+)", timeout=20)
    given = [sample("answer is 9, no, answer is 7"), sample("answer is 9"), sample("7")]
    assert score(scorer, *given) == [1.0, 0.0, 0.0]


def test_a_pattern_without_a_group_only_has_to_match() -> None:
    scorer = Regex(r"<think>.*</think>", timeout=20)
    assert score(scorer, sample("<think>a</think>", None), sample("a", None)) == [1.0, 0.0]


def test_a_pattern_of_exponential_time_ends_as_a_time_out() -> None:
    scorer = Regex(r"(?:a+)+$", timeout=0.5)
    slow, quick = score(scorer, sample("a" * 60 + "b", None), sample("aaa", None))
    assert isinstance(slow, ScorerTimeout)
    assert quick == 1.0


def test_a_malformed_pattern_is_the_users_error() -> None:
    with pytest.raises(UserError, match="not a regular expression"):
        Regex(r"(", timeout=1)


def test_math_compares_values_and_not_spelling() -> None:
    *values, failure = score(
        Math(timeout=30),
        sample("so it is $\\frac{1}{2}$", "0.5"),
        sample("The answer is \\boxed{0.5}.", "\\frac{1}{2}"),
        sample("1/3", "1/2"),
        sample("no idea", "1/2"),
        sample("12", 12),
        sample("12", ""),
    )
    assert values == [1.0, 1.0, 0.0, 0.0, 1.0]
    assert isinstance(failure, ScorerError)
    assert "not mathematics" in str(failure)


@pytest.mark.parametrize("what", ["parse", "verify"])
@pytest.mark.parametrize("exhausted", [MemoryError, RecursionError])
def test_math_without_memory_or_stack_is_a_failure_and_not_a_zero(
    monkeypatch: pytest.MonkeyPatch, what: str, exhausted: type[Exception]
) -> None:
    def has_none_left(*args: Any, **options: Any) -> None:
        raise exhausted

    assert verify_answer("$8$", "7", precision=6) == 0.0
    monkeypatch.setattr(f"math_verify.{what}", has_none_left)
    with pytest.raises(exhausted):
        verify_answer("$9$", "7", precision=6)


def test_math_that_cannot_be_read_or_compared_is_a_zero() -> None:
    assert verify_answer("$\\frac{1}{0}$", "7", precision=6) == 0.0
    assert verify_answer("$\\frac{1}{$", "7", precision=6) == 0.0


def test_math_that_takes_too_long_is_a_time_out_and_the_next_one_works() -> None:
    scorer = Math(timeout=2)
    slow, quick = score(scorer, sample("$9^{9^{9^{9}}}$", "9^{9^{9^{8}}}"), sample("$12$", "12"))
    assert isinstance(slow, ScorerTimeout)
    assert quick == 1.0


def test_a_function_gets_the_parameters_that_it_names(tmp_path: Path) -> None:
    scorer = user_function(
        tmp_path,
        """
        def score(response, answer, level, bonus, tag="none"):
            assert tag == "number"
            return (response == answer) * level + bonus
        """,
        bonus=0.5,
    )
    assert score(scorer, sample("7", facts={"level": 2, "other": 1})) == [Reward(2.5)]


def test_a_function_that_takes_keywords_gets_everything(tmp_path: Path) -> None:
    scorer = user_function(
        tmp_path,
        """
        def score(prompt, response, answer, **facts):
            return {"facts": len(facts), "level": facts["level"]}
        """,
    )
    [reward] = score(scorer, sample("7", facts={"level": 2}))
    assert reward == Reward(6.0, {"facts": 4.0, "level": 2.0})  # level, tag, tokens, turns


def test_a_function_that_needs_a_column_that_is_not_there_is_a_failure(tmp_path: Path) -> None:
    scorer = user_function(tmp_path, "def score(response, difficulty): return 1.0\n")
    [failure] = score(scorer, sample("7"))
    assert isinstance(failure, ScorerError)
    assert "rewards.py:score needs difficulty" in str(failure)


def test_an_answer_that_the_row_lacks_is_missing_like_any_other_column(tmp_path: Path) -> None:
    [failure] = score(
        user_function(tmp_path, "def score(response, answer): return response == answer\n"),
        sample("7", answer=None),
    )
    assert isinstance(failure, ScorerError)
    assert "rewards.py:score needs answer, which the data row does not have" in str(failure)
    defaults = user_function(tmp_path, "def score(response, answer='7'): return response == answer")
    assert score(defaults, sample("7", answer=None)) == [Reward(1.0)]


@pytest.mark.parametrize(
    ("returned", "reward"),
    [
        ("1", Reward(1.0)),
        ("True", Reward(1.0)),
        ("{'a': 1, 'b': 0.5}", Reward(1.5, {"a": 1.0, "b": 0.5})),
        ("{'value': 2, 'parts': {'a': 1}}", Reward(2.0, {"a": 1.0})),
        ("{'value': 2, 'turns': [1, 1]}", Reward(2.0, {}, [1.0, 1.0])),
        ("__import__('numpy').float32(0.5)", Reward(0.5)),
    ],
)
def test_a_function_may_return_a_number_or_named_parts(
    tmp_path: Path, returned: str, reward: Reward
) -> None:
    assert score(user_function(tmp_path, f"def score(): return {returned}\n"), sample("7")) == [
        reward
    ]


@pytest.mark.parametrize(
    "value",
    [float("nan"), float("inf"), None, "1.0", {}, {"a": float("nan")}, {"value": 1, "x": 2}, [1.0]],
)
def test_what_is_no_finite_number_is_a_failure_that_names_the_function(value: Any) -> None:
    with pytest.raises(ScorerError, match=r"rewards\.py:score"):
        as_reward(value, "rewards.py:score")


def test_nan_from_a_user_function_is_a_failure(tmp_path: Path) -> None:
    [failure] = score(user_function(tmp_path, "def score(): return float('nan')\n"), sample("7"))
    assert isinstance(failure, ScorerError)
    assert "rewards.py:score returned nan" in str(failure)


def test_an_exception_is_a_failure_with_its_line(tmp_path: Path) -> None:
    scorer = user_function(
        tmp_path,
        """
        def score(response):
            if response == "8":
                raise ValueError("eight")
            return 1.0
        """,
    )
    failure, fine = score(scorer, sample("8"), sample("7"))
    assert isinstance(failure, ScorerError)
    assert str(failure) == "rewards.py:score raised: rewards.py, line 4: ValueError: eight"
    assert fine == Reward(1.0)


@pytest.mark.parametrize("define", ["def", "async def"])
@pytest.mark.parametrize(
    ("raised", "said"),
    [
        ("KeyError", "KeyError"),
        (
            "KeyError([1])",
            "KeyError: [1] (it is given answer, prompt, response, tag, tokens, turns)",
        ),
        ("KeyError('tag')", "KeyError: 'tag'"),
    ],
)
def test_whatever_key_a_function_misses_is_a_failure(
    tmp_path: Path, define: str, raised: str, said: str
) -> None:
    code = f"{define} score(response, **facts):\n    if response == '8': raise {raised}\n    return 1.0\n"
    failure, fine = score(user_function(tmp_path, code, timeout=5.0), sample("8"), sample("7"))
    assert isinstance(failure, ScorerError)
    assert str(failure) == f"rewards.py:score raised: rewards.py, line 2: {said}"
    assert fine == Reward(1.0)


def test_what_a_function_prints_does_not_disturb_its_answers(tmp_path: Path) -> None:
    scorer = user_function(
        tmp_path,
        """
        import os, sys
        def score():
            print("hello"); os.write(1, b"raw"); sys.stdout.flush()
            return 1.0
        """,
    )
    assert score(scorer, sample("7"), sample("7")) == [Reward(1.0)] * 2


def test_a_hanging_function_is_a_time_out_and_does_not_hold_up_others(tmp_path: Path) -> None:
    scorer = user_function(
        tmp_path,
        """
        def score(response):
            while response == "hang":
                pass
            return 1.0
        """,
        timeout=8.0,
    )
    # More hanging calls than there are processes at the start.
    ends: dict[str, float] = {}

    async def body() -> None:
        async def one(name: str, response: str) -> Any:
            try:
                return await scorer.score(sample(response))
            except ScorerTimeout as error:
                return error
            finally:
                ends[name] = time.monotonic()

        began = time.monotonic()
        hung = [asyncio.create_task(one(f"hung-{i}", "hang")) for i in range(4)]
        await asyncio.sleep(0)
        assert await one("quick", "7") == Reward(1.0)
        assert not any(task.done() for task in hung), "it waited for the hanging ones"
        assert ends["quick"] - began < 8.0
        for result in await asyncio.gather(*hung):
            assert isinstance(result, ScorerTimeout)
        assert await one("after", "7") == Reward(1.0)

    with_scorer(scorer, body)


def call_all(
    folder: Path,
    code: str,
    calls: int,
    *,
    processes: int,
    apart: float = 0.0,
    ended: Callable[[], None] = lambda: None,
) -> list[int]:
    """What calls return that begin `apart` seconds one after the other; `ended` is told of each."""
    (folder / "rewards.py").write_text(textwrap.dedent(code))
    scorer = ScorerProcesses("rewards.py:score", source=folder, timeout=20, processes=processes)

    async def call() -> int:
        reward = await scorer.call({})
        ended()
        return int(reward.value)

    async def main() -> list[int]:
        async with asyncio.timeout(LIMIT):
            await scorer.start()
            try:
                begun = []
                for _ in range(calls):
                    begun.append(asyncio.create_task(call()))
                    await asyncio.sleep(apart)
                return await asyncio.gather(*begun)
            finally:
                await scorer.close()

    return asyncio.run(main())


def test_a_long_queue_of_calls_that_end_adds_no_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a clock that moves with each call that ends, so that a machine that stands still is no hung call."""
    ended = 0
    clock = SimpleNamespace(monotonic=lambda: ended * STUCK_SECONDS / 4)
    monkeypatch.setattr("roll_workers.reward.scorers.processes.time", clock)

    def count() -> None:
        nonlocal ended
        ended += 1

    code = "import os, time\ndef score():\n    time.sleep(0.1)\n    return os.getpid()\n"
    assert len(set(call_all(tmp_path, code, 32, processes=2, ended=count))) <= 2


def test_calls_are_taken_in_the_order_in_which_they_came(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("roll_workers.reward.scorers.processes.MOST_PROCESSES", 1)
    code = """
        import itertools, time
        numbers = itertools.count()
        def score():
            time.sleep(0.3)
            return next(numbers)
        """
    assert call_all(tmp_path, code, 10, processes=1, apart=0.1) == list(range(10))


def test_processes_that_hung_calls_made_necessary_end_when_they_are_idle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("roll_workers.reward.scorers.processes.IDLE_SECONDS", 0.5)
    (tmp_path / "rewards.py").write_text(
        "import os, time\ndef score(hangs=''):\n"
        "    while os.path.exists(hangs):\n        time.sleep(0.01)\n    return os.getpid()\n"
    )
    hangs = tmp_path / "hangs"
    hangs.touch()
    scorer = ScorerProcesses("rewards.py:score", source=tmp_path, timeout=LIMIT, processes=1)

    async def main() -> None:
        async with asyncio.timeout(LIMIT):
            await scorer.start()
            try:
                hung = asyncio.create_task(scorer.call({"hangs": str(hangs)}))
                await asyncio.sleep(0)
                quick = await scorer.call({})
                hangs.unlink()
                pids = {int(reward.value) for reward in (quick, await hung)}
                assert len(pids) == 2
                await asyncio.to_thread(_wait_for, lambda: sum(map(_alive, pids)) == 1)
                [left] = filter(_alive, pids)
                assert int((await scorer.call({})).value) == left
            finally:
                await scorer.close()

    asyncio.run(main())


def test_processes_that_do_not_start_are_tried_again_after_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("roll_workers.reward.scorers.processes.STUCK_SECONDS", 1.0)
    (tmp_path / "rewards.py").write_text(
        textwrap.dedent(
            """
            import os, time
            with open("attempts", "a") as attempts:
                print(time.monotonic(), file=attempts)
            if os.path.exists("hangs"):
                raise MemoryError
            def score(hangs):
                while hangs and os.path.exists("hangs"):
                    time.sleep(0.01)
                return 1.0
            """
        )
    )
    monkeypatch.chdir(tmp_path)
    scorer = ScorerProcesses("rewards.py:score", source=tmp_path, timeout=LIMIT, processes=1)

    hangs = tmp_path / "hangs"

    def attempts() -> list[float]:
        return [float(line) for line in Path("attempts").read_text().splitlines()[1:]]

    async def main() -> None:
        async with asyncio.timeout(LIMIT):
            await scorer.start()
            try:
                hangs.touch()
                calls = [asyncio.create_task(scorer.call({"hangs": yes})) for yes in (True, False)]
                await asyncio.to_thread(_wait_for, lambda: len(attempts()) >= 3)
                hangs.unlink()
                assert await asyncio.gather(*calls) == [Reward(1.0)] * 2
            finally:
                await scorer.close()

    asyncio.run(main())
    assert min(later - one for one, later in pairwise(attempts())) >= 1.0


def test_async_functions_share_a_process_and_end_at_their_time_out(tmp_path: Path) -> None:
    scorer = user_function(
        tmp_path,
        """
        import asyncio
        together = 0
        async def score(response):
            global together
            together += 1
            if response == "hang":
                await asyncio.Event().wait()
            while together < 3:
                await asyncio.sleep(0.01)
            return 1.0
        """,
        timeout=3.0,
    )
    hung, *rest = score(scorer, sample("hang"), sample("7"), sample("7"))
    assert isinstance(hung, ScorerTimeout)
    assert rest == [Reward(1.0)] * 2


def test_an_async_function_that_blocks_its_process_is_a_time_out_too(tmp_path: Path) -> None:
    scorer = user_function(
        tmp_path,
        """
        async def score(response):
            while response == "hang":
                pass
            return 1.0
        """,
        timeout=0.5,
    )

    async def body() -> None:
        with pytest.raises(ScorerTimeout):
            await scorer.score(sample("hang"))
        assert await scorer.score(sample("7")) == Reward(1.0)

    with_scorer(scorer, body)


def test_cancelled_calls_of_an_async_function_give_back_their_places(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("roll_workers.reward.scorers.processes.MOST_PROCESSES", 1)
    (tmp_path / "rewards.py").write_text(
        textwrap.dedent(
            """
            import asyncio
            running = 0
            async def score(response):
                global running
                if response == "7":
                    return running
                running += 1
                try:
                    await asyncio.Event().wait()
                finally:
                    running -= 1
            """
        )
    )
    scorer = ScorerProcesses("rewards.py:score", source=tmp_path, timeout=50.0, processes=1)

    async def main() -> None:
        async with asyncio.timeout(LIMIT):
            await scorer.start()
            try:
                for _ in range(ASYNC_CALLS + 1):
                    call = asyncio.create_task(scorer.call({"response": "wait"}))
                    while not (await scorer.call({"response": "7"})).value:
                        pass  # the call that is to be cancelled has begun
                    call.cancel()
                    await asyncio.wait([call])
                    while (await scorer.call({"response": "7"})).value:
                        pass  # the function has been told
            finally:
                await scorer.close()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("poison", "expected"),
    [
        ("os._exit(7)", ScorerCrash),
        ("time.sleep(999)", ScorerTimeout),
        ("time.sleep(4)", ScorerTimeout),  # blocks all beyond their time, yet goes on by itself
    ],
)
def test_a_poison_call_of_an_async_function_does_not_condemn_its_neighbours(
    tmp_path: Path, poison: str, expected: type[object]
) -> None:
    scorer = user_function(
        tmp_path,
        f"""
        import asyncio, os, time
        together = 0
        async def score(response):
            global together
            together += 1
            while together == 1 and not os.path.exists("{tmp_path}/met"):
                await asyncio.sleep(0.01)  # for company
            open("{tmp_path}/met", "w").close()
            await asyncio.sleep(0.3)
            if response == "poison":
                {poison}
            await asyncio.sleep(0.3)
            return 1.0
        """,
        timeout=3.0,
    )
    neighbours = [sample("7") for _ in range(9)]
    ended, *others = score(scorer, sample("poison"), *neighbours)
    assert isinstance(ended, expected)
    assert others == [Reward(1.0)] * 9


def test_a_function_that_ends_its_process_is_a_crash_and_the_next_call_works(
    tmp_path: Path,
) -> None:
    scorer = user_function(
        tmp_path,
        """
        import os
        def score(response):
            if response == "die":
                os._exit(7)
            return 1.0
        """,
    )

    async def body() -> None:
        with pytest.raises(ScorerCrash, match="exit code 7"):
            await scorer.score(sample("die"))
        assert await scorer.score(sample("7")) == Reward(1.0)

    with_scorer(scorer, body)


def test_a_killed_scorer_process_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "rewards.py").write_text("import os\ndef score(): return os.getpid()\n")
    scorer = ScorerProcesses("rewards.py:score", source=tmp_path, timeout=20, processes=1)

    async def main() -> None:
        async with asyncio.timeout(LIMIT):
            await scorer.start()
            first = int((await scorer.call({})).value)
            os.kill(first, signal.SIGKILL)
            values = []
            while not values:
                try:
                    values.append(int((await scorer.call({})).value))
                except ScorerCrash as crash:
                    assert "signal 9" in str(crash) or "has ended" in str(crash)
            assert values != [first]
            await scorer.close()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("import json\nimport no_such_module\n", "rewards.py, line 2: ModuleNotFoundError"),
        ("x = 1\ndef score(:\n", "rewards.py, line 2: SyntaxError"),
        ("x = 1\n", "has no 'score'"),
        ("score = 1\n", "not a function"),
        ("import os; os._exit(3)\n", "exit code 3"),
        ("import sys; sys.exit(3)\n", "line 1: SystemExit"),
    ],
)
def test_a_function_that_does_not_import_is_the_users_error(
    tmp_path: Path, code: str, expected: str
) -> None:
    with pytest.raises(UserError, match=r"rewards\.py:score") as caught:
        score(user_function(tmp_path, code), sample("7"))
    assert expected in str(caught.value)


def test_options_that_the_function_would_never_see_are_the_users_error(tmp_path: Path) -> None:
    code = "def score(response, *rest, bonus=0.0): return bonus\n"
    assert score(user_function(tmp_path, code, bonus=0.5), sample("7")) == [Reward(0.5)]
    with pytest.raises(UserError, match=r"no parameter bonsu, which scorer\.options names"):
        score(user_function(tmp_path, code, bonsu=0.5), sample("7"))


def test_a_missing_file_is_the_users_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="there is no file"):
        score(Python("rewards.py:score", tmp_path, 1.0, {}), sample("7"))


def test_a_hanging_scorer_process_dies_with_its_worker(tmp_path: Path) -> None:
    (tmp_path / "rewards.py").write_text(
        "import os, pathlib\n"
        "def score():\n"
        "    pathlib.Path('pid').write_text(str(os.getpid()) + '\\n')\n"
        "    while True: pass\n"
    )
    program = (
        "import asyncio; from pathlib import Path\n"
        "from roll_workers.reward.scorers.processes import ScorerProcesses\n"
        "p = ScorerProcesses('rewards.py:score', source=Path(), timeout=99)\n"
        "async def main():\n    await p.start(); await p.call({})\n"
        "asyncio.run(main())\n"
    )
    worker = subprocess.Popen([sys.executable, "-c", program], cwd=tmp_path)
    try:
        pid = int(_wait_for(lambda: (tmp_path / "pid").read_text().strip()))
        assert _alive(pid)
    finally:
        worker.kill()
        worker.wait()
    _wait_for(lambda: not _alive(pid))


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def _wait_for(condition: Callable[[], Any], seconds: float = 30.0) -> Any:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            if value := condition():
                return value
        except FileNotFoundError:
            pass
        time.sleep(0.01)
    raise AssertionError("did not happen in time")
