"""Grammars that constrain an answer, by the package llguidance."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .. import files
from ..decoder.grammar import TokenSet
from ..decoder.tree import common_prefix
from ..errors import LadeError, UsageError, one_line
from .reasoning import answer_marks

SEPARATORS = {"item_separator": ", ", "key_separator": ": ", "whitespace_flexible": False}
"""JSON separators, fixed: with flexible white space few tokens are forced, and small models write
blanks without end."""

TAIL = 16
"""Tokens before a path in which the end mark of the reasoning may begin."""


@dataclass(frozen=True, slots=True)
class Grammar:
    """The grammar of an answer; see `from_schema` and `from_lark`."""

    text: str  # in llguidance's form

    @classmethod
    def from_schema(cls, schema: str | Mapping[str, Any]) -> Grammar:
        """Return the grammar of the JSON values that fit a schema.

        Args:
            schema: as JSON, a dict or a pydantic model; `{"type": "object"}` is any object.

        Raises:
            UsageError: the schema is not JSON, llguidance cannot compile it or is not installed.
        """
        if hasattr(schema, "model_json_schema"):
            schema = schema.model_json_schema()
        try:
            written = json.dumps(json.loads(schema) if isinstance(schema, str) else schema)
        except (ValueError, TypeError, RecursionError) as error:
            raise UsageError(f"the JSON schema is not JSON: {one_line(str(error))}") from None
        matcher = _library().LLMatcher
        try:
            text = matcher.grammar_from_json_schema(written, overrides=SEPARATORS)
        except ValueError as error:
            raise UsageError(_unusable("JSON schema", str(error))) from None
        return cls._checked(text, "JSON schema")

    @classmethod
    def from_lark(cls, text: str) -> Grammar:
        """Return the grammar of a text in Lark's form, or in llama.cpp's GBNF.

        Raises:
            UsageError: llguidance cannot compile it, or is not installed.
        """
        _library()
        from llguidance.gbnf_to_lark import any_to_lark

        try:
            lark = any_to_lark(text)
        except Exception as error:  # its parser raises exceptions of any type
            raise UsageError(_unusable("grammar", str(error))) from None
        return cls._checked(_library().LLMatcher.grammar_from_lark(lark), "grammar")

    @classmethod
    def _checked(cls, text: str, kind: str) -> Grammar:
        failed, reasons = _library().LLMatcher.validate_grammar_with_warnings(text)
        if failed:
            raise UsageError(_unusable(kind, reasons[0]))
        return cls(text)


def grammar_of(schema: str | None, grammar: str | None) -> Grammar | None:
    """Return the grammar of --json-schema or --grammar.

    Args:
        schema: JSON, or the name of a file.
        grammar: the name of a file.

    Raises:
        UsageError: a file cannot be read, or holds no valid schema or grammar.
    """
    if schema is not None:
        written = schema.lstrip().startswith("{")
        return Grammar.from_schema(schema if written else files.read_text(schema, "JSON schema"))
    return None if grammar is None else Grammar.from_lark(files.read_text(grammar, "grammar"))


def _unusable(kind: str, reason: str) -> str:
    return f"the {kind} cannot be used: {one_line(reason.strip())}"


def _library() -> Any:
    """Return llguidance.

    Raises:
        UsageError: it is not installed.
    """
    try:
        import llguidance
    except ImportError as error:
        raise UsageError(
            "schemas and grammars need the package llguidance: pip install 'ladecli[schema]'"
        ) from error
    return llguidance


def grammar_tokenizer(tokenizer: Any, vocabulary: int, stop_ids: Collection[int]) -> Any:
    """Return llguidance's form of a tokenizer, which takes about a second to build.

    Args:
        tokenizer: of transformers.
        vocabulary: the number of ids that have logits.
        stop_ids: ids that end an answer.

    Raises:
        UsageError: llguidance cannot read the tokenizer.
    """
    _library()
    from llguidance.hf import from_tokenizer

    try:
        size = max(vocabulary, len(tokenizer))
        return from_tokenizer(tokenizer, n_vocab=size, eos_token=sorted(stop_ids) or None)
    except Exception as error:
        reason = one_line(str(error))
        raise UsageError(f"this model's tokenizer takes no schema or grammar: {reason}") from error


class AnswerGrammar:
    """The grammar's state along an answer; a `decoder.grammar.Grammar`.

    If the model reasons, the grammar begins after the reasoning.

    Args:
        grammar: of the answer.
        vocab: returned by `grammar_tokenizer`.
        tokenizer: of transformers, to find the end of the reasoning; None without a template.
        prompt: the ids before the answer.

    Raises:
        UsageError: the grammar does not work with this tokenizer.
    """

    def __init__(self, grammar: Grammar, vocab: Any, tokenizer: Any, prompt: Sequence[int]) -> None:
        self._matcher = _library().LLMatcher(vocab, grammar.text, log_level=0)
        if self._matcher.is_error():
            raise UsageError(_unusable("grammar", self._matcher.get_error()))
        self._path: list[int] = []  # tokens in the matcher after the committed text
        self._sets: dict[tuple[int, ...], TokenSet | None] = {}
        # The reasoning: its tokens so far, its end marks, and its first tokens.
        self._tokenizer, self._reasoning = tokenizer, list[int]()
        self._end, self._starts = (
            (None, {}) if tokenizer is None else answer_marks(tokenizer, prompt)
        )

    def commit(self, token: int) -> bool:
        """Add a token to the text; return True if it ends the text.

        Raises:
            LadeError: the grammar forbids the token.
        """
        constrained = self._constrained([token])
        if not self._go(constrained or ()):
            raise LadeError(
                "the schema or grammar allows no token that the model's generation config allows"
            )
        if constrained is None:
            self._end = self._end or self._starts.get(token)
            self._reasoning.append(token)
        elif not constrained:  # it was the last token of the reasoning
            self._end = None
        self._starts, self._path, self._sets = {}, [], {}
        return bool(self._matcher.is_stopped())

    def forced(self, path: Sequence[int]) -> int | None:
        """See `decoder.grammar.Grammar`."""
        constrained = self._constrained(path)
        if constrained is None or (self._starts and not path) or not self._go(constrained):
            return None
        return next(iter(self._matcher.compute_ff_tokens()), None)

    def allowed(self, path: Sequence[int]) -> TokenSet | None:
        """See `decoder.grammar.Grammar`.

        Raises:
            LadeError: the grammar exceeds llguidance's limits.
        """
        key = tuple(path)
        if key not in self._sets:
            constrained = self._constrained(path)
            tokens = None
            if constrained is not None and self._go(constrained):
                tokens = bytearray(self._matcher.compute_bitmask())
                for token in self._starts if not path else ():
                    tokens[token >> 3] |= 1 << (token & 7)
            if self._matcher.is_error():
                raise LadeError(_unusable("grammar", self._matcher.get_error()))
            self._sets[key] = None if tokens is None else TokenSet(tokens)
        return self._sets[key]

    def _constrained(self, path: Sequence[int]) -> Sequence[int] | None:
        """Return the part of a path after the reasoning, to which the grammar applies; None if the
        reasoning goes on."""
        end = self._end or (self._starts.get(path[0]) if path else None)
        if end is None:
            return path
        tail = self._reasoning[-TAIL:]

        def ended(count: int) -> bool:
            tokens = [*tail, *path[:count]]
            return bool(re.search(end, self._tokenizer.decode(tokens, skip_special_tokens=False)))

        if not ended(len(path)):  # the usual case
            return None
        return path[next(filter(ended, range(1, len(path) + 1))) :]

    def _go(self, path: Sequence[int]) -> bool:
        """Move the matcher to a path after the committed text; return False if the grammar forbids
        the path."""
        common = common_prefix(path, self._path)
        self._matcher.rollback(len(self._path) - common)
        consumed = self._matcher.try_consume_tokens([*path[common:]])
        self._path = [*path[: common + consumed]]
        return len(self._path) == len(path)
