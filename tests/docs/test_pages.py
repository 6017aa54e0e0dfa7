"""What the pages print is what the code does: their jobs run, their tables name what exists."""

import re
import shutil
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest
from roll_api import builtins, crd, load_job, reference
from roll_operator.cli.overrides import override
from roll_workers.builtin.data import builtin_rows
from roll_workers.builtin.models import CHARSETS, SMOLLM2, resolve_model
from roll_workers.environment.setup import Setup
from support.pages import GUIDES, ROOT, blocks, table


def test_the_job_of_the_readme_is_complete(tmp_path: Path) -> None:
    [code] = blocks("README.md", "python")
    [job] = blocks("README.md", "yaml")
    (tmp_path / "rewards.py").write_text(code)
    (tmp_path / "job.yaml").write_text(job)
    loaded = load_job(tmp_path / "job.yaml")
    setup = Setup.of_job(loaded, tmp_path, tmp_path)
    assert {of.split for of in setup.declared} == {"train", "validation"}
    assert loaded.spec.algorithm.learning_rate == 5e-4, "a tiny model does not learn with 1e-6"
    assert loaded.spec.rewards[0].scorer.python == "rewards.py:score"


def test_the_page_about_environments_shows_the_example() -> None:
    [code, *_] = blocks("docs/environments.md", "python")
    example = (ROOT / "examples/guess/guess.py").read_text()
    assert code.removeprefix("# guess.py\n") == example.partition('"""\n\n')[2]
    [job] = blocks("docs/environments.md", "yaml")
    whole = (ROOT / "examples/guess/job.yaml").read_text().splitlines()
    assert [line for line in job.splitlines() if line not in whole] == []


def test_the_table_of_builtin_models_is_that_of_the_code() -> None:
    told = {
        row[0].strip("`"): row[2].strip("`") for row in table("docs/examples.md", "`model.path`")
    }
    expected = {f"builtin:{name}": characters for name, characters in CHARSETS.items()}
    assert told == expected | {f"builtin:{SMOLLM2}": "all"}
    assert set(told) == {f"builtin:{name}" for name in builtins.MODELS}


def test_the_table_of_builtin_data_is_that_of_the_code() -> None:
    told = table("docs/examples.md", "`data.train.path`")
    assert {row[0].strip("`") for row in told} == {f"builtin:{name}" for name in builtins.DATA}
    for path, rows, prompt, answer in told:
        name = path.strip("`")
        made, held_out = builtin_rows(name), builtin_rows(f"{name}/held-out")
        assert rows == f"{len(made)}, and {len(held_out)} in `{name}/held-out`"
        first = made[0]
        text = first.get("prompt") or first["messages"][-1]["content"]
        assert (prompt.split("`")[1], answer.strip("`")) == (text, first["answer"])


@pytest.mark.parametrize("page", GUIDES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\((?!https?:)([^)\s]+)\)", page.read_text(encoding="utf-8")):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


def anchors(page: Path) -> set[str]:
    """What GitHub makes of the headings."""
    heads = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


def test_pictures_of_terminals_show_the_texts_beside_them() -> None:
    program = module_of(ROOT / "docs/images/terminal.py")
    drawn = re.findall(r'terminal.py "(.*)" (\d+) <(\S+) >(\S+)', program.__doc__ or "")
    assert len(drawn) == 2
    for title, width, text, picture in drawn:
        screen = (ROOT / text).read_text(encoding="utf-8")
        assert (ROOT / picture).read_text() == program.picture(title, int(width), screen), picture


def module_of(file: Path) -> Any:
    made = spec_from_file_location(file.stem, file)
    assert made is not None and made.loader is not None
    module = module_from_spec(made)
    made.loader.exec_module(module)
    return module


def test_generated_files_are_named_as_such() -> None:
    """By what `make generate` runs."""
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    targets = [crd.TARGET, reference.TARGET, crd.IN_CHART.parent]
    for target in targets:
        assert f"`{target.relative_to(ROOT)}" in page


def test_the_files_that_the_architecture_names_exist() -> None:
    rows = table("docs/architecture.md", "to add")
    named = {path for row in rows for path in re.findall(r"`([\w/.]+/[\w/.]*)`", " ".join(row))}
    assert len(named) > 20
    assert [path for path in sorted(named) if not (ROOT / path).exists()] == []


@pytest.mark.parametrize("validation", [True, False])
def test_the_program_that_shows_answers_takes_a_run_as_one_types_it(
    validation: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run = tmp_path / "runs" / "mine"
    run.mkdir(parents=True)
    source = ROOT / "examples/custom_reward/job.yaml"
    job = override(load_job(source), [] if validation else ["data.validation=null"])
    (run / "job.json").write_text(job.to_json())
    (run / "run.json").write_text(f'{{"source": "{source.parent}"}}')
    model = resolve_model(job.spec.model.path, run, source.parent)
    shutil.copytree(model, run / "checkpoints" / "step-000100-t1" / "model")
    monkeypatch.chdir(tmp_path)

    module_of(ROOT / "examples/answers.py").main(Path("runs/mine"))

    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "| question | answer | before | after |"
    assert len(lines) == 10
    name = "builtin:largest-of-three" + ("/held-out" if validation else "")
    first = builtin_rows(name)[0]
    assert lines[2].startswith(f"| {first['prompt']} | {first['answer']} | '")
