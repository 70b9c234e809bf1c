"""A fake model that spells out a text by a rule: what it sees decides what it says.

It answers to the same calls as a causal language model of transformers, writes token ids to
the cache as if they were keys, and reads its text back from the cache through the step's mask.
So a wrong mask, slot or position changes what it says, and a test can read the cache.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

Rule = Callable[[Sequence[int]], int]
"""The text that a token sees, itself included and in order of position -> the next token."""


class OracleModel(nn.Module):
    """Says `rule(visible text)` after every token.

    Attributes:
        steps: for every forward, the text that each of its tokens saw.
    """

    def __init__(self, rule: Rule, vocabulary: int = 100, context: int = 512) -> None:
        super().__init__()
        self.rule = rule
        self.weight = nn.Parameter(torch.zeros(1))
        self.steps: list[list[tuple[int, ...]]] = []
        self.config = SimpleNamespace(
            model_type="llama",
            num_hidden_layers=1,
            vocab_size=vocabulary,
            max_position_embeddings=context,
            get_text_config=lambda decoder=True: self.config,
        )

    def forward(
        self,
        input_ids: Tensor,
        position_ids: Tensor,
        past_key_values: Any,
        logits_to_keep: Any,
        lade_step: Any,
        **_ignored: Any,
    ) -> Any:
        keys = torch.stack([input_ids[0], position_ids[0]], dim=-1).float()[None, None]
        seen, _ = past_key_values.update(keys, keys, 0)
        # As lists: one number of a tensor takes a thousand times as long as one of a list.
        tokens, positions = (column.long().tolist() for column in seen[0, 0].unbind(-1))
        mask = lade_step.bool_mask(None)
        order = sorted(range(len(tokens)), key=positions.__getitem__)
        everyone = [True] * len(tokens)
        texts = []
        for row in range(input_ids.shape[1]):
            sees = everyone if mask is None else mask[row].tolist()
            visible = [cell for cell in order if sees[cell]]
            assert [positions[cell] for cell in visible] == list(range(len(visible))), (
                "a token sees a gap or a rival"
            )
            texts.append(tuple(tokens[cell] for cell in visible))
        self.steps.append(texts)
        rows = range(len(texts)) if isinstance(logits_to_keep, int) else logits_to_keep.tolist()
        logits = torch.zeros(1, len(rows), self.config.vocab_size)
        for out, row in enumerate(rows):
            logits[0, out, self.rule(texts[row])] = 1.0
        return SimpleNamespace(logits=logits)


class MarkovModel(OracleModel):
    """Gives every token the logits in the row of the token before it.

    Args:
        table: logits, [vocabulary, vocabulary].
    """

    def __init__(self, table: Tensor) -> None:
        super().__init__(lambda seen: 0, vocabulary=len(table))
        self.table = table

    def forward(self, input_ids: Tensor, logits_to_keep: Any, **step: Any) -> Any:
        keys = input_ids[0].float()[None, None, :, None]
        step["past_key_values"].update(keys, keys, 0)
        rows = slice(None) if isinstance(logits_to_keep, int) else logits_to_keep
        return SimpleNamespace(logits=self.table[input_ids[:, rows]])


def spells(text: Sequence[int]) -> Rule:
    """A rule that says `text` by position, whatever it sees: every guess converges at once."""
    return lambda seen: text[len(seen)] if len(seen) < len(text) else 0


def scrambles(vocabulary: int = 100, memory: int = 3) -> Rule:
    """A rule that depends on every one of the last `memory` tokens, and looks random."""

    def rule(seen: Sequence[int]) -> int:
        value = len(seen) // 40
        for token in seen[-memory:]:
            value = (value * 31 + token * 7 + 3) % 10007
        return value % vocabulary

    return rule
