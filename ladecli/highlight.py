"""Code of a known language in colours, a line at a time: Pygments, with its state kept."""

from __future__ import annotations

import functools
import re
from typing import TYPE_CHECKING, TypeAlias

from rich.style import Style

if TYPE_CHECKING:
    from pygments.lexer import Lexer
    from pygments.token import _TokenType

Painted: TypeAlias = list[tuple[str, Style]]

# The terminal's own colours, of which those are left out that vanish on black or on white.
_STYLES = {
    "Comment": "dim italic",
    "Comment.Preproc": "magenta",
    "Keyword": "magenta",
    "Keyword.Type": "cyan",
    "Keyword.Constant": "cyan",
    "Operator.Word": "magenta",
    "Name.Builtin": "cyan",
    "Name.Function": "bold",
    "Name.Class": "bold",
    "Name.Tag": "magenta",
    "Name.Attribute": "cyan",
    "Name.Decorator": "magenta",
    "Name.Exception": "cyan",
    "Number": "cyan",
    "Literal.Number": "cyan",
    "Literal.String": "green",
    "Literal.String.Doc": "green italic",
    "Generic.Heading": "bold",
    "Generic.Subheading": "bold",
    "Generic.Deleted": "red",
    "Generic.Inserted": "green",
    "Generic.Error": "red",
    "Generic.Prompt": "dim",
    "Generic.Emph": "italic",
    "Generic.Strong": "bold",
}
_DEEPEST = 200  # states; broken code can make a lexer push without end


@functools.cache
def _style(kind: _TokenType) -> Style:
    name = ".".join(kind)
    while name and name not in _STYLES:
        name = name.rpartition(".")[0]
    return Style.parse(_STYLES.get(name, ""))


def lexer_for(info: str) -> Lexer | None:
    """The lexer for what stands behind a fence, or None where the language is unknown."""
    from pygments.lexers import get_lexer_by_name
    from pygments.lexers.special import TextLexer
    from pygments.util import ClassNotFound

    match = re.match(r"[\s{.]*([\w+#.-]+)", info)
    if match is None:
        return None
    try:
        lexer = get_lexer_by_name(match[1].lower())
    except (ClassNotFound, ImportError):
        return None
    return None if isinstance(lexer, TextLexer) else lexer


class Highlighter:
    """Paints code line by line, at a cost that depends on the line alone.

    Pygments' regular-expression lexers keep a stack of states; it is kept from line to line,
    so a string over several lines stays one.  Other lexers start anew with each line.  What
    cannot be lexed is left plain.

    Args:
        lexer: of the language.
    """

    def __init__(self, lexer: Lexer) -> None:
        self._lexer: Lexer | None = lexer
        self._stack: list[str] | None = ["root"]

    def paint(self, text: str, ending: str | None) -> Painted:
        """The text in styled parts.

        Args:
            text: of a line or of the next part of one.
            ending: what follows: a newline, "" where the line goes on, or None for a glimpse
                that leaves the state as it is.
        """
        if self._lexer is None:
            return [(text, Style.null())]
        try:
            return self._lex(self._lexer, text, ending)
        except Exception:
            # Lexers are many and old; no reply may break on one of them.
            if self._stack is None:
                self._lexer = None
            self._stack = None
            return self.paint(text, ending)

    def _lex(self, lexer: Lexer, text: str, ending: str | None) -> Painted:
        from pygments.lexer import ExtendedRegexLexer, LexerContext, RegexLexer

        source = text + (ending or "")
        if self._stack is None or not isinstance(lexer, RegexLexer):
            tokens = list(lexer.get_tokens_unprocessed(source))
        else:
            context = LexerContext(source, 0, list(self._stack))
            # Its loop is that of all these lexers, and the only one that tells its stack.
            loop = ExtendedRegexLexer.get_tokens_unprocessed
            tokens = list(loop(lexer, context=context))
            if ending is not None:
                stack = context.stack
                self._stack = stack if len(stack) <= _DEEPEST else ["root"]
        painted: Painted = []
        at = 0
        for start, kind, value in tokens:
            if start != at:
                raise ValueError("the lexer skipped something")
            at += len(value)
            if value := value.rstrip("\n"):
                painted.append((value, _style(kind)))
        if "".join(part for part, _ in painted) != text:
            raise ValueError("the lexer changed the text")
        return painted
