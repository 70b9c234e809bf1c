"""Requests of agents to `lade serve`: turns after a title request, long tool lists, random ones.

    python benchmarks/agents.py --model Qwen/Qwen2.5-Coder-0.5B-Instruct --only turns
    python benchmarks/agents.py --only requests             # with the demo model

Times are CPU seconds of the server until the first token.  Every random request must get the text
of plain decoding without other requests; answers with a schema, and arguments of calls, must be
valid.
"""

import random
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any, Literal

import psutil
from common import Report, argument_parser, run_parts
from pydantic import BaseModel, Field
from serve import SUBJECTS, WISHES, events, messages

from tests.support.server import Server

CHAT = "/v1/chat/completions"
CODE = "".join(
    f"def area_{n}(width, height):\n    return {n} * width * height\n" for n in range(40)
)


class Item(BaseModel, extra="forbid"):
    kind: Literal["river", "town", "bread"]
    count: int = Field(ge=0, le=99)


class Order(BaseModel, extra="forbid"):
    name: str = Field(max_length=6)
    items: list[Item] = Field(max_length=2)


SCHEMA = Order.model_json_schema()
FORM = {"type": "json_schema", "json_schema": {"name": "order", "schema": SCHEMA}}


def tool(name: str, about: str) -> dict[str, Any]:
    function = {"name": name, "description": about, "parameters": SCHEMA}
    return {"type": "function", "function": function}


def talk(server: Server, tools: list[Any], titles: bool) -> list[tuple[int, int, float]]:
    """Return for each turn its tokens, those cached, and the CPU seconds to the first token."""
    program, said, figures = psutil.Process(server.pid), messages(f"Explain this:\n{CODE}"), []
    for turn in range(6):
        if titles and turn:
            server.ask(CHAT, {"messages": messages("Say a title for a talk."), "max_tokens": 8})
        body = {"messages": said, "tools": tools}
        began = sum(program.cpu_times()[:2])
        usage = server.ask(CHAT, body | {"max_tokens": 1})[1]["usage"]
        seconds = round(sum(program.cpu_times()[:2]) - began, 2)
        cached = usage["prompt_tokens_details"]["cached_tokens"]
        figures.append((usage["prompt_tokens"], cached, seconds))
        answer = server.ask(CHAT, body | {"max_tokens": 24})[1]["choices"][0]["message"]
        said = [*said, answer, *messages(f"And the one with number {turn}?")]
    return figures


def turns(report: Report, args: Namespace, place: Path) -> None:
    """A title between turns costs at most a fifth; turns with 17k tokens of tools begin in 1 s."""
    many = [tool(f"tool_{n}", WISHES[n % 6] * 9) for n in range(4 if args.quick else 63)]
    later = []
    for tools, titles in (([], False), ([], True), (many, True)):
        with Server(place, "--max-context", "20000", model=args.model) as server:
            server.patience = 3600.0
            figures = talk(server, tools, titles)
        report.row(f"{len(tools)} tools, titles: {titles}", {"tokens, cached, CPU s": figures})
        later.append([seconds for _, _, seconds in figures[1:]])
    report.holds(sum(later[1]) <= 1.2 * sum(later[0]), "a title request costs too much")
    report.holds(max(later[2]) < 1, "a turn with tools begins late")


def asked(draw: random.Random, talks: list[list[Any]]) -> tuple[str, dict[str, Any], list[Any]]:
    """Return a random request with its kind, and the conversation that its answer continues."""
    kind = draw.choice(("plain", "schema", "call", "tools", "turn", "turn", "left"))
    said = messages(draw.choice(WISHES).format(draw.choice(SUBJECTS)) + f" ({draw.random()})")
    goes_on = draw.choice(talks) if kind == "turn" else []
    goes_on[:] = [*goes_on[-6:], *said]
    body: dict[str, Any] = {"messages": [*goes_on], "max_tokens": draw.randint(1, 24)}
    body |= {"temperature": 1.0, "seed": draw.randrange(9)} if draw.random() < 0.5 else {}
    body |= {"max_tokens": 300} if kind in ("schema", "call") else {}
    body |= {"response_format": FORM} if kind == "schema" else {}
    body |= {"tools": [tool("order", ""), tool("plan", "")]} if kind in ("call", "tools") else {}
    body |= {"tool_choice": "required"} if kind == "call" else {}
    return kind, body, goes_on


def requests(report: Report, args: Namespace, place: Path) -> None:
    """Random requests: texts of plain decoding, valid answers, and memory that stays."""
    draw, talks, kinds, memory = random.Random(1), [[] for _ in range(5)], [], []
    plain = ("--strategy", "autoregressive", "--keep-memory", "0")
    with (
        Server(place, "--keep-memory", "64MB", model=args.model) as server,
        Server(place, *plain, model=args.model) as alone,
    ):
        for number in range(70 if args.quick else 1000):
            kind, body, goes_on = asked(draw, talks)
            kinds.append(kind)
            if kind == "left":
                stream = events(server.port, body | {"max_tokens": 200})
                next(stream)
                stream.close()
                continue
            alone.ask(CHAT, {"messages": messages(f"{number} is new"), "max_tokens": 1})
            texts = []
            for one in (server, alone):
                message = one.ask(CHAT, body)[1]["choices"][0]["message"]
                calls = [call["function"] for call in message.get("tool_calls", ())]
                texts.append((message["content"], calls))
            report.holds(texts[0] == texts[1], f"request {number}, {kind}: {texts}")
            if kind in ("schema", "call"):
                Order.model_validate_json(calls[0]["arguments"] if calls else message["content"])
            goes_on.append({"role": "assistant", "content": message["content"]})
            if number % 100 == 99:
                memory.append(round(psutil.Process(server.pid).memory_info().rss / 1e6))
        report.holds(not server.outcome("failed"), "an answer failed")
    counts = {kind: kinds.count(kind) for kind in sorted({*kinds})}
    report.row(f"{len(kinds)} requests", counts | {"MB": memory})
    report.holds(not memory or memory[-1] < 1.2 * memory[4], f"memory grows: {memory}")


if __name__ == "__main__":
    parser = argument_parser(__doc__)
    parser.add_argument("--model", default="demo")
    sys.exit(run_parts(parser, {"turns": turns, "requests": requests}))
