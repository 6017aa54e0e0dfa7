"""Text to tokens and back, for the roles that hold no model: rewards and environments.

Invariant: a prompt or an observation becomes tokens once, here and in the environment role only; what the
policy sampled is turned into text for reading, never back into tokens. A model folder with a
tokenizer.json costs no import of torch, and none of transformers unless there is a chat template.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from roll_wire.sample_pb2 import Piece, Trajectory

from roll_workers.errors import UserError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

Message = dict[str, Any]
FEW_TOKENS = 64  # a vocabulary of characters, which can be told
_ACTION = Piece.ACTION
# Stands for the policy's answer in a rendered conversation; no template and no text contains it.
_ANSWER = "\ue000answer\ue000"


class Codec:
    """The tokenizer of a model, with its chat template and its context length."""

    def __init__(
        self, backend: Tokenizer, *, full: Callable[[], Any], context: int | None, has_chat: bool
    ) -> None:
        self.backend = backend
        self.context = context
        self.has_chat = has_chat
        self._make_full = full
        self._full: Any = None

    @classmethod
    def of_model(cls, path: str, storage: Path, source: Path) -> Codec:
        """The codec of `model.path`. A tiny builtin model is not made for this."""
        from roll_workers.builtin import models

        name = path.removeprefix(models.PREFIX)
        if path != name and name in models.CHARSETS:
            charset = models.CHARSETS[name]
            return cls(
                models.char_backend(charset),
                full=lambda: models.char_tokenizer(charset),
                context=models.context_length(models.tiny_qwen2_recipe(charset)),
                has_chat=False,
            )
        return cls.of_folder(models.resolve_model(path, storage, source))

    @classmethod
    def of_folder(cls, folder: Path) -> Codec:
        from roll_workers.builtin import models

        context = models.context_length(_read_json(folder / "config.json"))
        if not (folder / "tokenizer.json").is_file():
            return cls._of_slow_tokenizer(folder, context)
        from tokenizers import Tokenizer

        def full() -> Any:
            # Not AutoTokenizer, which imports torch; all that is wanted of it is the chat template.
            from transformers import PreTrainedTokenizerFast

            return PreTrainedTokenizerFast.from_pretrained(folder)

        return cls(
            Tokenizer.from_file(str(folder / "tokenizer.json")),
            full=full,
            context=context,
            has_chat=(folder / "chat_template.jinja").is_file()
            or bool(_read_json(folder / "tokenizer_config.json").get("chat_template")),
        )

    @classmethod
    def _of_slow_tokenizer(cls, folder: Path, context: int | None) -> Codec:
        """A folder of older files, which transformers turns into a fast tokenizer where it can."""
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(folder)
        backend = getattr(tokenizer, "backend_tokenizer", None)
        if backend is None:
            raise UserError(f"model.path: {folder} has no fast tokenizer (tokenizer.json)")
        return cls(
            backend,
            full=lambda: tokenizer,
            context=context,
            has_chat=bool(tokenizer.chat_template),
        )

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        """UserError where the tokenizer has no token for a character."""
        try:
            return self.backend.encode(text, add_special_tokens=special).ids
        except Exception as error:  # the Rust side raises bare Exception
            known = sorted(self.backend.get_vocab().items(), key=lambda token: token[1])
            letters = "".join(token for token, _ in known if len(token) == 1)
            why = f"it knows only the characters {letters}" if len(known) < FEW_TOKENS else error
            raise UserError(
                f"the model's tokenizer can't encode {_shortened(text)}: {why}"
            ) from None

    def decode(self, tokens: Sequence[int]) -> str:
        return self.backend.decode(tokens, skip_special_tokens=True)

    def encode_chat(self, messages: list[Message], **options: Any) -> list[int]:
        """A conversation up to where the policy speaks."""
        return self.encode(self._rendered(messages, **options), special=False)

    def encode_reply(self, text: str, last_token: int | None, **options: Any) -> list[int]:
        """What stands between two answers of the policy: the end of its turn, the user's message, its cue.

        `last_token` is the last one the policy sampled: where it ended its own turn, that end is not repeated.
        """
        around = [{"role": "user", "content": ""}, {"role": "assistant", "content": _ANSWER}]
        rendered = self._rendered([*around, {"role": "user", "content": text}], **options)
        tokens = self.encode(rendered.rpartition(_ANSWER)[2], special=False)
        return tokens[1:] if tokens and tokens[0] == last_token else tokens

    def _rendered(self, messages: list[Message], **options: Any) -> str:
        if self._full is None:
            self._full = self._make_full()
        if not self._full.chat_template:
            raise UserError(
                "the data has chat messages, but the model's tokenizer has no chat template: "
                "use a `prompt` column, or a model with a template"
            )
        try:
            return self._full.apply_chat_template(
                messages, tokenize=False, add_generation_prompt=True, **options
            )
        except Exception as error:  # templates raise jinja errors of their own making
            raise UserError(
                f"the chat template refuses {_shortened(json.dumps(messages))}: {error}"
            ) from error


def sampled_tokens(trajectory: Trajectory) -> dict[int, array[int]]:
    """What the policy sampled, by turn."""
    sampled: dict[int, array[int]] = {}
    for piece in trajectory.pieces:
        if piece.kind != _ACTION:
            continue
        for column in piece.columns:
            if column.name == "token":
                # The wire is little-endian, and so is every machine that this runs on.
                tokens = array("i", column.data)
                if piece.turn in sampled:  # the turn was interrupted and resumed
                    sampled[piece.turn].extend(tokens)
                else:
                    sampled[piece.turn] = tokens
    return sampled


def _read_json(path: Path) -> dict[str, Any]:
    try:
        return json.loads(path.read_text())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise UserError(f"model.path: can't read {path}: {error}") from error


def _shortened(text: str, limit: int = 120) -> str:
    return repr(text if len(text) <= limit else text[:limit] + "…")
