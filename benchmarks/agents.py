"""What agents ask of `lade serve`: turns after a title request, long tool lists, random requests.

    python benchmarks/agents.py --model Qwen/Qwen2.5-Coder-0.5B-Instruct --only title --only tools
    python benchmarks/agents.py --only requests             # with the demo model

Times are CPU seconds of the server until the first token.  Every random request must get the text
of plain decoding, asked alone; answers by a schema, and arguments of calls, must be valid.
"""

from __future__ import annotations

import json
import random
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any, Literal

import psutil
from common import Report, argument_parser, run_parts
from pydantic import BaseModel, Field, ValidationError
from serve import SUBJECTS, WISHES, events, messages, told

from tests.support.server import Server


class Item(BaseModel, extra="forbid"):
    kind: Literal["river", "town", "bread"]
    count: int = Field(ge=0, le=99)


class Order(BaseModel, extra="forbid"):
    name: str = Field(max_length=6)
    items: list[Item] = Field(max_length=2)
    urgent: bool


SCHEMAS = {kind.__name__: kind for kind in (Item, Order)}
FORMS = {
    name: {"type": "json_schema", "json_schema": {"name": name, "schema": kind.model_json_schema()}}
    for name, kind in SCHEMAS.items()
}
TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": kind.model_json_schema()}}
    for name, kind in SCHEMAS.items()
]
FILE = "".join(
    f"def area_{n}(width, height):\n    return {n} * width * height\n" for n in range(40)
)
LONG_TOOLS = [
    {
        "type": "function",
        "function": TOOLS[n % 2]["function"]
        | {"name": f"tool_{n}", "description": f"Tool {n} of many.  " + WISHES[n % 6] * 9},
    }
    for n in range(71)
]


def turns(server: Server, tools: list[Any], titles: bool) -> list[tuple[int, int, float]]:
    """Return for each turn of a conversation its tokens, those cached, and the CPU seconds."""
    program, talk, figures = psutil.Process(server.pid), messages(f"Explain this:\n{FILE}"), []
    for turn in range(6):
        if titles and turn:
            ask = messages("Say a short title for a talk about areas.")
            server.ask("/v1/chat/completions", {"messages": ask, "max_tokens": 8})
        began = sum(program.cpu_times()[:2])
        body = {"messages": talk, "tools": tools, "tool_choice": "none", "max_tokens": 24}
        if tools:
            body["tool_choice"] = "auto"
        stream = events(server.port, body)
        next(stream)  # which says that the server has begun
        chunks = [next(stream)]
        seconds = sum(program.cpu_times()[:2]) - began
        chunks += stream
        usage = chunks[-1]["usage"]
        cached = usage["prompt_tokens_details"]["cached_tokens"]
        figures.append((usage["prompt_tokens"], cached, round(seconds, 2)))
        answer = {"role": "assistant", "content": "".join(map(told, chunks))}
        talk = [*talk, answer, *messages(f"And the one with number {turn}?")]
    return figures


def title(report: Report, args: Namespace, place: Path) -> None:
    """A title request between turns costs the next turn at most a fifth more."""
    seconds = []
    for titles in (False, True):
        with Server(place, "--max-context", "4096", model=args.model) as server:
            server.patience = 600.0
            figures = turns(server, [], titles)
        report.row(f"turns, titles between: {titles}", {"tokens, cached, CPU s": figures})
        seconds.append(sum(turn[2] for turn in figures[1:]))
    report.row("title request", {"times": round(seconds[1] / seconds[0], 2)})
    report.holds(seconds[1] <= 1.2 * seconds[0], "a title request costs the next turn too much")


def tools(report: Report, args: Namespace, place: Path) -> None:
    """The turns after the first of a conversation with 17k tokens of tools begin within 1 s."""
    with Server(place, "--max-context", "20000", model=args.model) as server:
        server.patience = 3600.0
        figures = turns(server, LONG_TOOLS, titles=True)
    report.row("17k tokens of tools", {"tokens, cached, CPU s": figures})
    report.holds(max(turn[2] for turn in figures[1:]) < 1, "a turn begins late")


def _asked(draw: random.Random, talks: list[list[Any]]) -> tuple[str, dict[str, Any]]:
    """Return a random request, and its kind."""
    kind = draw.choice(("plain", "schema", "call", "tools", "turn", "turn", "left"))
    said = messages(draw.choice(WISHES).format(draw.choice(SUBJECTS)) + f" ({draw.random()})")
    body: dict[str, Any] = {"messages": said, "max_tokens": draw.randint(1, 24)}
    if draw.random() < 0.5:
        body |= {"temperature": 1.0, "seed": draw.randrange(9)}
    if kind == "schema":
        body |= {"response_format": FORMS[draw.choice([*FORMS])], "max_tokens": 300}
    elif kind in ("call", "tools"):
        body |= {"tools": TOOLS, "tool_choice": "required" if kind == "call" else "auto"}
        body["max_tokens"] = 300 if kind == "call" else 24
    elif kind == "turn":
        talk = draw.choice(talks)
        if len(talk) > 8:
            talk.clear()
        talk += said
        body["messages"] = list(talk)
    return kind, body


def _is_valid(body: dict[str, Any], message: dict[str, Any]) -> bool:
    """Whether an answer fits its schema, or a call the schema of its tool."""
    made = [
        (call["function"]["name"], call["function"]["arguments"])
        for call in message.get("tool_calls", ())
    ]
    if "response_format" in body:
        made = [(body["response_format"]["json_schema"]["name"], message["content"])]
    try:
        for name, text in made:
            SCHEMAS[name].model_validate_json(text)
    except ValidationError:
        return False
    return bool(made)


def requests(report: Report, args: Namespace, place: Path) -> None:
    """Random requests: texts of plain decoding, valid answers, and memory that stays."""
    draw, talks, path = random.Random(1), [[] for _ in range(5)], "/v1/chat/completions"
    kinds, wrong, invalid, memory = [], [], [], []
    plain = ("--strategy", "autoregressive", "--keep-memory", "0")
    with (
        Server(place, model=args.model) as server,
        Server(place, *plain, model=args.model) as alone,
    ):
        for number in range(70 if args.quick else 1000):
            kind, body = _asked(draw, talks)
            kinds.append(kind)
            if kind == "left":
                stream = events(server.port, body | {"max_tokens": 200})
                next(stream)
                stream.close()
                continue
            answer = server.ask(path, body)[1]
            assert "choices" in answer, (kind, body, answer)
            choice = answer["choices"][0]
            alone.ask(path, {"messages": messages(f"{number} is new"), "max_tokens": 1})
            expected = alone.ask(path, body)[1]["choices"][0]
            for one in (choice, expected):
                for call in one["message"].get("tool_calls", ()):
                    del call["id"]
            if choice != expected:
                wrong.append((number, kind))
            if kind in ("schema", "call") and not _is_valid(body, choice["message"]):
                invalid.append((number, kind, choice))
            if kind == "turn":
                body["messages"][-1]
                next(t for t in talks if t == body["messages"]).append(choice["message"])
            if number % 100 == 99:
                memory.append(round(psutil.Process(server.pid).memory_info().rss / 1e6))
        failed = server.outcome("failed")
    counts = {kind: kinds.count(kind) for kind in sorted({*kinds})}
    report.row(
        f"{len(kinds)} requests",
        counts | {"other": len(wrong), "invalid": len(invalid), "MB": memory},
    )
    report.holds(not wrong, f"other texts: {wrong[:9]}")
    report.holds(not invalid, f"invalid: {json.dumps(invalid[:3])}")
    report.holds(not failed, f"{failed} answers failed")
    report.holds(not memory or memory[-1] < 1.2 * memory[4], f"memory grows: {memory}")


def main() -> int:
    parser = argument_parser(__doc__)
    parser.add_argument("--model", default="demo")
    return run_parts(parser, {"title": title, "tools": tools, "requests": requests})


if __name__ == "__main__":
    sys.exit(main())
