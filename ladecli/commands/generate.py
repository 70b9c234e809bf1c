"""`lade generate`: one completion for each prompt, streamed or as JSON."""

from __future__ import annotations

import dataclasses
import json
import signal
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ..decoder.errors import PromptError, RankError
from ..errors import INTERRUPTED, LadeError, UsageError, counted
from ..metrics import Tally
from ..options.answer import GenerateRequest
from ..options.model import SMALL_MODEL, TOY
from ..session import opening
from ..session.dialogue import Dialogue, Row
from ..session.grammar import Grammar, grammar_of
from ..session.text import TextDelta
from ..suites import STDIN, display_name, line_id, read_rows, read_text, row_notices, rows_of
from ..trace import record
from ..view.live import reply_view
from ..view.markdown import MarkdownRenderer
from ..view.terminal import Terminal, ctrl_c
from ..visualize import RAISE_LIMIT, Writer, remarks, together

if TYPE_CHECKING:
    from ..session.session import Session


def run(request: GenerateRequest) -> int:
    """Answer every prompt of the request.

    Returns:
        The exit code: 0, 1 if memory ran out during an answer, or 130 after Ctrl-C or SIGTERM.
    """
    terminal = Terminal(request.color, request.quiet)
    suffix = None if request.suffix_file is None else read_text(request.suffix_file)
    rows = gather(request.prompt or [], request.prompt_file or [], terminal.say, suffix)
    answers_to_give = sum(row.answers for row in rows)
    record.check(request, answers_to_give)
    texts, grammar = request.draft_texts(), grammar_of(request.json_schema, request.grammar)
    with opening.open_with_ranks(request, terminal) as session:
        talks = []
        # All prompts are checked before the first is answered, so that no work is lost.
        for number, row in enumerate(rows, start=1):
            # A conversation needs a template, unless --raw is given.
            chats = suffix is None and (session.has_template or row.is_conversation)
            template = request.template(chats)
            system = request.system if template else None
            talks.append(Dialogue(session, row, system, template))
            try:
                talks[-1].first()
            except (UsageError, PromptError) as error:
                which = f"prompt {number} of {len(rows)}: " if len(rows) > 1 else ""
                raise UsageError(f"{which}{error}") from error
        terminal.say(*row_notices(rows, request.typed_system), *session.new_notices())
        if request.model is None and sys.stderr.isatty():
            terminal.say(f"{TOY} lade generate {SMALL_MODEL}")
        read = [
            "\n".join((*row.turns, *(str(m.get("content")) for m in row.start))) for row in rows
        ]
        for name, text in zip(request.draft_text or (), texts, strict=True):
            if all(text.strip() in prompt for prompt in read):
                terminal.say(f"--draft-text {name} adds nothing: the prompt already contains it")
        answers = _Answers(request, session, terminal, answers_to_give, grammar)
        for text in texts:
            session.add_draft_text(text)
        for talk in talks:
            answers.hold(talk)
            if answers.code == INTERRUPTED:
                break
    return answers.code


def gather(
    texts: Sequence[str],
    files: Sequence[str],
    say: Callable[[str], object] = lambda _: None,
    suffix: str | None = None,
) -> list[Row]:
    """Return all prompts; those of a .jsonl have the ids of their rows, others a number.

    The file "-" is standard input.  A .jsonl file has a row in each line.  Standard input is read
    in the same way if all of its lines are rows, which `say` reports.  With a `suffix`, the answers
    go between the prompts and the suffix.

    Raises:
        UsageError: there is no prompt, or one cannot be read; the message names it and the fix.
    """
    prompts = [_row(1, text, "--prompt") for text in texts]
    no_prompt = "no prompt: give --prompt TEXT or --prompt-file FILE, or pipe one in"
    piped = not texts and not files
    if piped and (sys.stdin is None or sys.stdin.isatty()):
        raise UsageError(no_prompt)
    for name in [STDIN] if piped else files:
        if name.endswith(".jsonl"):
            rows = read_rows(name)
        else:
            text = read_text(name)
            if piped and not text.strip():
                raise UsageError(f"{no_prompt}; standard input is empty")
            if name == STDIN and (rows := rows_of(text)):
                say(f"standard input has {counted(len(rows), 'row')} of JSON: each is a prompt")
            else:
                # The last line break ends the line and does not belong to the prompt.
                text = text.removesuffix("\n") if suffix is None else text
                rows = {0: _row(len(prompts) + 1, text, display_name(name))}
        for line, row in rows.items():
            numbered = dataclasses.replace(row, id=str(len(prompts) + 1))
            prompts.append(numbered if row.id == line_id(line) else row)
    if suffix is not None:
        if any(row.is_conversation for row in prompts):
            raise UsageError("--suffix-file needs a single text, not a conversation")
        return [dataclasses.replace(row, suffix=suffix) for row in prompts]
    return prompts


def _row(number: int, prompt: str, source: str) -> Row:
    """Return a text as a row; `source` names its origin in messages."""
    if not prompt.strip():
        raise UsageError(f"{source} is empty; give some text to continue")
    try:
        prompt.encode("utf-8")
    except UnicodeEncodeError:  # an argument in another encoding
        raise UsageError(f"{source} is not UTF-8; check the terminal's encoding") from None
    return Row(str(number), "all", (prompt,))


class _Answers:
    """Answers to the prompts of a request, one after the other."""

    def __init__(
        self,
        request: GenerateRequest,
        session: Session,
        terminal: Terminal,
        total: int,
        grammar: Grammar | None,
    ) -> None:
        self.code = 0  # the exit code
        self._count, self._total = 0, total
        self._request = request
        self._session = session
        sampling = session.loaded.defaults.without_samples
        settings = opening.settings_of(request, session.choice, sampling)
        fills_in = request.suffix_file is not None
        self._settings = dataclasses.replace(settings, fills_in=fills_in, grammar=grammar)
        self._terminal = terminal

    def hold(self, talk: Dialogue) -> None:
        """Answer every turn of a conversation; errors as `_answer`."""
        talk.hold(lambda turn, ids: self._answer(talk, turn, ids))
        if talk.cut:
            self._fail(UsageError(f"prompt {talk.id}, {talk.cut}"))

    def _fail(self, error: LadeError) -> None:
        """Print an error, even with --quiet, and go on with the other answers."""
        Terminal(self._request.color).say(str(error))
        self.code = error.exit_code

    def _answer(self, talk: Dialogue, turn: int, ids: list[int]) -> TextDelta | None:
        """Answer a turn, whose prompt has these ids; return None to end the conversation.

        Raises:
            RankError: a rank is gone; the text so far was written.
        """
        request, session = self._request, self._session
        self._count = number = self._count + 1
        if number > 1 and not request.json:
            print(flush=True)
        if self._total > 1 and not request.json:
            self._terminal.say(f"answer to {talk.id}{f', turn {turn}' if turn > 1 else ''}:")
        tally, detailed = Tally(), request.trace is not None
        renderer = MarkdownRenderer(False, True, request.reasoning)
        limit = session.decoder.max_context
        shown = [] if request.json else [reply_view(self._terminal, tally, renderer, limit)]
        # The status row of a live view shows that the model is reasoning.
        written = any(isinstance(view, Writer) for view in shown)
        hides_reasoning = written and not request.reasoning and sys.stderr.isatty()
        settings = opening.with_length_limit(request, self._settings, session, ids)
        settings = dataclasses.replace(settings, template=talk.template)
        files = record.writers(request, session, settings, ids, number)
        lost: RankError | None = None
        try:
            # Ranks receive SIGTERM if one of them has failed.
            ends = (signal.SIGTERM,) if session.ranks == 1 else ()
            with ctrl_c(*ends) as cancelled, together(tally, *shown, *files) as show:
                for event in session.stream(ids, settings, cancelled, detailed=detailed):
                    if hides_reasoning and getattr(event, "reasoning", ""):  # a step's, or the rest
                        hides_reasoning = False
                        self._terminal.say("reasoning first; --reasoning shows it")
                    show(event)
        except RankError as error:
            lost = error
        except LadeError as error:
            self._fail(error)
        if request.json:
            answer = {"id": talk.id, "turn": turn} | self._as_json(tally)
            utf8 = "utf" in (sys.stdout.encoding or "").lower()
            print(json.dumps(answer, ensure_ascii=not utf8), flush=True)
        self._report(tally)
        if lost is not None:
            raise lost
        if tally.reason == "interrupted":
            self.code = INTERRUPTED
            return None
        return TextDelta(tally.reasoning, tally.text)

    def _report(self, tally: Tally) -> None:
        """Print notices and statistics of an answer on stderr."""
        request, session, terminal = self._request, self._session, self._terminal
        terminal.say(*session.new_notices())
        limit = None if "max_new_tokens" in request.origins else RAISE_LIMIT
        lines = remarks(tally, session.decoder.max_context, limit)
        if tally.reason == "memory":  # a shorter prompt may still be answered
            self._fail(LadeError("; ".join(lines)))
        else:
            terminal.say(*lines)
        if request.stats if request.stats is not None else not request.quiet:
            terminal.statistics(tally)

    def _as_json(self, tally: Tally) -> dict[str, Any]:
        """Return the JSON object of an answer; its keys are part of the interface."""
        session, settings = self._session, self._settings
        executor, sampling = session.decoder.executor, dataclasses.asdict(settings.sampling)
        seed, figures = sampling.pop("seed"), tally.as_json()
        steps = {name: figures.pop(name) for name in ("steps", "tokens_per_step", "accepted")}
        seconds = {"load": session.load_seconds, **figures.pop("seconds")}
        return {
            "model": session.loaded.name,
            "text": tally.text,
            "reasoning": tally.reasoning or None,
            "token_ids": tally.token_ids,
            # Without a reason, a rank was lost.
            "finish_reason": "length" if tally.cut else tally.reason or "lost",
            "usage": {"prompt_tokens": tally.prompt, "completion_tokens": tally.tokens},
            "decode": {
                **record.decoding(settings),
                "profile": session.choice.profile,
                "attention": session.attention,
                "cuda_graphs": executor.overlaps,
                "ranks": session.ranks,
                "parallel_mode": self._request.parallel_mode if session.ranks > 1 else None,
                "step_width": tally.step_width,
                **steps,
            },
            "sampling": sampling,
            "seconds": seconds,
            **figures,
            "seed": None if settings.sampling.greedy else seed,
        }
