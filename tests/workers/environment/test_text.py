"""A model's tokenizer and chat template, from a Hugging Face folder."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from roll_wire.sample_pb2 import Trajectory
from roll_workers.builtin.models import char_tokenizer
from roll_workers.environment.envs.dataset import DataSet
from roll_workers.environment.envs.rows import read_rows
from roll_workers.text import Codec

TEMPLATE = (
    "{% for m in messages %}{{ '<' + m.role[0] + '>' + m.content + '<eos>' + ';' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<a>' }}{% endif %}"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    tokenizer = char_tokenizer("abcdefghijklmnopqrstuvwxyz 0123456789+?<>;\ue000")
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(folder)
    (folder / "config.json").write_text(json.dumps({"max_position_embeddings": 64}))
    return folder


def test_a_codec_reads_tokenizer_template_and_context(folder: Path) -> None:
    codec = Codec.of_folder(folder)
    assert (codec.context, codec.has_chat) == (64, True)
    assert codec.decode([*codec.encode("7 + 5"), 1]) == "7 + 5"


def test_a_conversation_is_rendered_up_to_where_the_policy_speaks(folder: Path) -> None:
    codec = Codec.of_folder(folder)
    tokens = codec.encode_chat([{"role": "user", "content": "hi"}])
    assert codec.backend.decode(tokens, skip_special_tokens=False) == "<u>hi<eos>;<a>"


def test_a_reply_continues_the_conversation_without_repeating_the_end_of_turn(
    folder: Path,
) -> None:
    codec = Codec.of_folder(folder)
    eos = codec.backend.token_to_id("<eos>")
    ended = codec.encode_reply("hi", eos)
    cut_off = codec.encode_reply("hi", 5)
    assert codec.backend.decode(ended, skip_special_tokens=False) == ";<u>hi<eos>;<a>"
    assert cut_off == [eos, *ended]
    # The whole equals what the template makes of the whole conversation.
    first = codec.encode_chat([{"role": "user", "content": "x"}])
    whole = codec.encode_chat(
        [
            {"role": "user", "content": "x"},
            {"role": "assistant", "content": "y"},
            {"role": "user", "content": "hi"},
        ]
    )
    assert [*first, *codec.encode("y"), eos, *ended] == whole


def test_a_chat_template_is_rendered_without_torch(folder: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from roll_workers.text import Codec\n"
        f"codec = Codec.of_folder(Path({str(folder)!r}))\n"
        "codec.encode_chat([{'role': 'user', 'content': 'hi'}])\n"
        "sys.exit('torch' in sys.modules)\n"
    )
    assert subprocess.run([sys.executable, "-c", program], timeout=60).returncode == 0


def test_messages_and_plain_prompts_go_through_the_template(folder: Path, tmp_path: Path) -> None:
    codec = Codec.of_folder(folder)
    rows = [
        {"prompt": "7 + 5?"},
        {"messages": [{"role": "user", "content": "7 + 5?"}]},
    ]
    (tmp_path / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    source = read_rows("data.jsonl", tmp_path, "train")
    chat = DataSet(source, codec)
    assert chat.prompt(0)[1] == chat.prompt(1)[1] == codec.encode("<u>7 + 5?<eos>;<a>")
    facts = Trajectory.FromString(chat.payload(1)).facts
    assert json.loads(facts["prompt"]) == "7 + 5?"
    assert json.loads(facts["messages"]) == rows[1]["messages"]
    assert DataSet(source, codec, chat="Never").prompt(0)[1] == codec.encode("7 + 5?")
    told = DataSet(source, codec, system="sum")
    assert told.prompt(1)[1] == codec.encode("<s>sum<eos>;<u>7 + 5?<eos>;<a>")
