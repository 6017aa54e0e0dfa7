"""What was said, where the model's tokenizer is not at hand: as in a scheduler's pod."""

from pathlib import Path

from roll_operator.controller.folder import RunFolder
from roll_operator.controller.text import _decoder
from support.job_objects import make_job


def test_without_a_tokenizer_tokens_are_numbers_and_that_is_said(tmp_path: Path) -> None:
    decode, note = _decoder(RunFolder(tmp_path), make_job())
    assert decode([3, 14], True) == "tokens 3 14"
    assert note.startswith("texts are shown as token numbers")
