"""Chat models with scripted answers: folders with a template."""

from __future__ import annotations

import contextlib
import copy
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from tests.support.tokenizers import byte_level

CHATML = """\
{% for m in messages %}<|im_start|>{{ m.role }}
{{ m.content }}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""


@dataclass(frozen=True)
class FakeModel:
    """The content of a model folder whose answers follow a script.

    Attributes:
        template: of chats, or several by name.
        script: the texts of the answer's tokens, each of which occurs once; they follow `cue`.
        special: special tokens of the template.
        cue: the text of the prompt's last token.
        end: the end token that the configs name.
        tokenizer: further fields of its config.
    """

    template: str | Mapping[str, str]
    script: Sequence[str]
    special: Sequence[str] = ()
    cue: str = "\n"
    end: str = "<|end|>"
    tokenizer: Mapping[str, Any] | None = None

    def write(self, folder: Path) -> str:
        """Create the folder, and return its name."""
        words = copy.deepcopy(byte_level())
        words.add_tokens([AddedToken(text, special=True) for text in self.special])
        new = [text for text in (self.cue, *self.script) if len(words.tokenize(text)) > 1]
        words.add_tokens([AddedToken(text, special=False, normalized=False) for text in new])
        words.eos_token, template = self.end, self.template
        words.chat_template = template if isinstance(template, str) else dict(template)
        for key, value in (self.tokenizer or {}).items():
            setattr(words, key, value)
        words.save_pretrained(folder)
        model = model_that_says(self._successors(words), len(words), words.eos_token_id)
        with contextlib.redirect_stderr(io.StringIO()):  # a progress bar
            model.save_pretrained(folder)
        return str(folder)

    def _successors(self, tokenizer: PreTrainedTokenizerFast) -> dict[int, int]:
        parts = [tokenizer.encode(text, add_special_tokens=False) for text in self.script]
        first = tokenizer.encode(self.cue, add_special_tokens=False)[-1]
        chain = [first, *(token for ids in parts for token in ids)]
        assert len({*chain}) == len(chain), "a token occurs twice"
        return dict(pairwise(chain))


def model_that_says(
    successors: Mapping[int, int], vocabulary: int, end: int, context: int = 512
) -> LlamaForCausalLM:
    """Return a Llama in which every token is followed by its successor, or by `end`."""
    hidden = -(-vocabulary // 16) * 16
    shape = {"vocab_size": vocabulary, "hidden_size": hidden, "intermediate_size": 16}
    shape |= {"num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 4}
    tokens = {"eos_token_id": end, "bos_token_id": None, "tie_word_embeddings": False}
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**shape, **tokens, max_position_embeddings=context))
    with torch.no_grad():
        model.model.embed_tokens.weight.copy_(torch.eye(vocabulary, hidden))
        model.lm_head.weight.zero_()
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
        for token in range(vocabulary):
            model.lm_head.weight[successors.get(token, end), token] = 1.0
    return model
