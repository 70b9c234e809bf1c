"""The demo model's training text: the standard library of the Python that runs this.

Nothing is downloaded.  Four kinds of document are made, each a plain string in which the
special tokens of `SPECIAL_TOKENS` stand for themselves:

- `sources`: the library's own modules, as they are;
- `docstrings`: conversations made from the docstrings of modules, classes and functions;
- `topics`: conversations made from the language reference that `help()` shows;
- `about_lade`: questions and answers about this tool, written by hand in `about_lade.toml`.
"""

from __future__ import annotations

import ast
import builtins
import importlib
import inspect
import random
import re
import sysconfig
import textwrap
import tomllib
from collections.abc import Iterator
from contextlib import suppress
from itertools import cycle
from pathlib import Path

SPECIAL_TOKENS = ("<|bos|>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>")
BOS, END, SYSTEM, USER, ASSISTANT = SPECIAL_TOKENS

# Tables, tests and other people's packages teach the model nothing about writing Python.
SKIPPED_FOLDERS = frozenset(
    {"test", "tests", "idle_test", "site-packages", "encodings", "lib2to3", "turtledemo"}
    | {"pydoc_data", "__pycache__", "ensurepip", "msilib", "ctypes_test", "sqlite3_test"}
)
SYSTEM_PROMPTS = (
    "You are a helpful assistant.",
    "You are a careful Python programmer.",
    "Answer briefly.",
    "You explain Python.",
)
HELD_OUT_EVERY = 50  # one module in so many is kept for the validation loss
C_MODULES = ("math", "itertools", "time", "sys", "gc", "operator", "array", "zlib", "errno")
BUILTIN_TYPES = (str, bytes, list, dict, set, tuple, int, float, frozenset, bytearray, object)

# Users know these modules by another name than that of their file.
SPOKEN_NAMES = {"posixpath": "os.path", "genericpath": "os.path", "_pyio": "io"}

ASK_WHAT = (
    "What does {name} do?",
    "What is {name}?",
    "Explain {name}.",
    "what does {name} do",
    "Can you explain {name}?",
    "Tell me about {name}.",
)
ASK_HOW = ("How do I use {name}?", "How do I call {name}?", "What arguments does {name} take?")
ASK_CODE = (
    "Show me the code of {name}.",
    "How is {name} implemented?",
    "Write {name} in Python.",
    "Write a function {name}.",
)
ASK_WHICH = (
    "Which function does this? {summary}",
    "Which function should I use? {summary}",
    "I need something that does this: {summary}",
)
ASK_TOPIC = (
    "Explain {name} in Python.",
    "How do {name} work in Python?",
    "Tell me about {name}.",
    "What should I know about {name}?",
)


def chat(*turns: str, system: str | None = None) -> str:
    """One conversation as text; `turns` alternate between the user and the assistant."""
    head = f"{SYSTEM}\n{system}{END}\n" if system else ""
    roles = cycle((USER, ASSISTANT))
    body = "".join(f"{next(roles)}\n{turn.strip()}{END}\n" for turn in turns)
    return BOS + head + body


def library(held_out: bool) -> Iterator[tuple[Path, str]]:
    """Names and texts of the standard library's modules, those held out or all others.

    What is not UTF-8, or is mostly a table, is left out.
    """
    root = Path(sysconfig.get_paths()["stdlib"])
    names = (path.relative_to(root) for path in sorted(root.rglob("*.py")))
    names = (name for name in names if not SKIPPED_FOLDERS & {*name.parts})
    for number, name in enumerate(names):
        if (number % HELD_OUT_EVERY == 0) == held_out:
            with suppress(UnicodeDecodeError):
                text = (root / name).read_text(encoding="utf-8")
                if len(text) <= 70 * len(text.splitlines()):
                    yield name, text


def sources(held_out: bool = False) -> Iterator[str]:
    """Every module as one document, with its file name on the first line."""
    for name, text in library(held_out):
        if text:
            yield f"{BOS}# {name.as_posix()}\n{text.strip()}\n{END}"


def first_paragraph(doc: str) -> str:
    return " ".join(doc.split("\n\n", 1)[0].split())


def clip(text: str, limit: int) -> str:
    """`text` up to the last paragraph or line that ends before `limit` characters."""
    if len(text) <= limit:
        return text
    cut = max(text.rfind("\n\n", 0, limit), text.rfind(". ", 0, limit) + 1)
    return text[: cut if cut > limit // 3 else limit].rstrip()


def conversations_about(
    name: str, signature: str | None, doc: str, code: str | None, rng: random.Random
) -> Iterator[str]:
    """Questions and answers about one documented name."""
    doc = clip(inspect.cleandoc(doc), 1500)
    summary = first_paragraph(doc)
    if len(summary) < 12:
        return
    quoted = rng.choice((f"`{name}`", name))
    system = rng.choice(SYSTEM_PROMPTS) if rng.random() < 0.15 else None
    what = rng.choice(ASK_WHAT).format(name=quoted)
    if signature:
        shown = f"```python\n{signature}\n```"
        how = rng.choice(ASK_HOW).format(name=quoted)
        if rng.random() < 0.5:
            yield chat(what, summary, how, f"{shown}\n\n{doc}", system=system)
        else:
            yield chat(what, doc, how, shown, system=system)
        if 20 < len(summary) < 120 and rng.random() < 0.6:
            answer = f"`{name}`:\n\n{shown}\n\n{summary}"
            yield chat(rng.choice(ASK_WHICH).format(summary=summary), answer, system=system)
    else:
        yield chat(what, doc, system=system)
    if code and code.count("\n") < 40:
        short = name.rsplit(".", 1)[-1]
        asked = rng.choice(ASK_CODE).format(name=rng.choice((quoted, f"`{short}`", short)))
        yield chat(asked, f"```python\n{code}\n```", system=system)


def docstrings(rng: random.Random, held_out: bool = False) -> Iterator[str]:
    """Conversations about everything documented in the library's Python sources."""
    for name, text in library(held_out):
        try:
            tree = ast.parse(text)
        except SyntaxError:
            continue
        module = ".".join(name.with_suffix("").parts).removesuffix(".__init__")
        module = SPOKEN_NAMES.get(module, module)
        if doc := ast.get_docstring(tree):
            yield from conversations_about(f"the module {module}", None, doc, None, rng)
        yield from _documented(tree, module, text, rng)


def _documented(node: ast.AST, prefix: str, text: str, rng: random.Random) -> Iterator[str]:
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            continue
        name, signature, code = f"{prefix}.{child.name}", None, None
        if doc := ast.get_docstring(child):
            if not isinstance(child, ast.ClassDef):
                signature = f"{name}({ast.unparse(child.args)})"
                # The segment starts at the `def`, so only later lines carry the indent.
                segment = ast.get_source_segment(text, child) or ""
                code = textwrap.dedent(" " * child.col_offset + segment)
            yield from conversations_about(name, signature, doc, code, rng)
        if isinstance(child, ast.ClassDef):
            yield from _documented(child, name, text, rng)


def c_docstrings(rng: random.Random) -> Iterator[str]:
    """Conversations about the built-in functions and the modules written in C."""
    named: list[tuple[str, object]] = []
    for name in dir(builtins):
        value = getattr(builtins, name)
        if callable(value) and not name.startswith("_"):
            named.append((name, value))
    for kind in BUILTIN_TYPES:
        named += [(f"{kind.__name__}.{m}", getattr(kind, m)) for m in dir(kind) if m[0] != "_"]
    for module_name in C_MODULES:
        module = importlib.import_module(module_name)
        named += [
            (f"{module_name}.{member}", getattr(module, member))
            for member in dir(module)
            if callable(getattr(module, member)) and not member.startswith("_")
        ]
    for name, value in named:
        doc = inspect.getdoc(value)
        if not doc:
            continue
        try:
            signature = f"{name}{inspect.signature(value)}"  # type: ignore[arg-type]
        except (TypeError, ValueError):
            signature = None
        # These are the names people ask for most: once is not enough to learn them.
        for _ in range(2):
            yield from conversations_about(name, signature, doc, None, rng)


def topics(rng: random.Random) -> Iterator[str]:
    """Conversations from the language reference that ships for `help()`."""
    texts: dict[str, str] = importlib.import_module("pydoc_data.topics").topics
    for name, text in texts.items():
        spoken = re.sub(r"[-_]", " ", name)
        paragraphs = text.strip().split("\n\n")
        body, chunk = [], ""
        for paragraph in paragraphs[1:]:
            if len(chunk) + len(paragraph) > 1600 and chunk:
                body.append(chunk)
                chunk = ""
            chunk += paragraph + "\n\n"
        body.append(chunk)
        turns = [rng.choice(ASK_TOPIC).format(name=spoken), body[0]]
        for more in body[1:4]:
            turns += [rng.choice(("Go on.", "Tell me more.", "Continue.", "And then?")), more]
        if all(turn.strip() for turn in turns):
            yield chat(*turns)
        yield f"{BOS}{text.strip()}\n{END}"


def about_lade(rng: random.Random, repeats: int) -> Iterator[str]:
    """The hand-written questions about this tool, each phrasing `repeats` times in all."""
    with Path(__file__).with_name("about_lade.toml").open("rb") as file:
        entries = tomllib.load(file)["entry"]
    for _ in range(repeats):
        rng.shuffle(entries)
        asked = [(rng.choice(entry["questions"]), entry["answer"]) for entry in entries]
        while asked:
            turns = [text for pair in asked[: rng.choice((1, 1, 2, 3))] for text in pair]
            del asked[: len(turns) // 2]
            system = rng.choice(SYSTEM_PROMPTS) if rng.random() < 0.2 else None
            yield chat(*turns, system=system)


def documents(seed: int, repeats: int) -> list[str]:
    """All documents of one epoch, shuffled by `seed`; those about this tool `repeats` times."""
    rng = random.Random(seed)
    found = [*sources(), *docstrings(rng), *c_docstrings(rng), *topics(rng)]
    found += about_lade(rng, repeats)
    rng.shuffle(found)
    return found


def held_out_documents() -> list[str]:
    """Documents of modules that no training document comes from."""
    return [*sources(held_out=True), *docstrings(random.Random(0), held_out=True)]
