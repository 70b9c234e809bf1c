"""Damaged files for the program's commands: valid files, random changes, and checks of the results.

A case is a kind of file and a number, which determine it.  For any file, a command must end with
one of its own exit codes and one line about the fault; it must print no control character and take
only seconds, and a model that it accepts must be decoded as by `generate`.
"""

from __future__ import annotations

import contextlib
import io
import json
import math
import os
import re
import shutil
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, TypeAlias
from unittest import mock

import tomli_w
import torch
import transformers

from ladecli.commands.cli import entry
from ladecli.files import toml
from ladecli.session.conversation import Conversation

Files: TypeAlias = Mapping[str, bytes]
"""The contents of a folder by path."""
SECONDS = 60
"""The time limit of a case."""
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")
NEW = 6
"""The number of tokens of an answer."""
ASKED = ("-p", "the cat", "-n", str(NEW), "--offline", "--device", "cpu", "--no-stats")


class StuckError(BaseException):
    """A case takes too long; not an Exception, which the program would report."""


@dataclass(frozen=True)
class FuzzTarget:
    """A kind of file that the program reads.

    Attributes:
        seeds: folders of valid files.
        calls: command lines that read them; {} stands for the folder.
        damaged: the files to damage, all if empty.
        change: another change of the folder.
        typed: the standard input.
        decodes: True if the folder is a model, which must be decoded as by `generate`.
        share: of all cases.
    """

    seeds: Sequence[Files]
    calls: Sequence[Sequence[str]]
    damaged: tuple[str, ...] = ()
    change: Callable[[Path, Random], None] | None = None
    typed: str = ""
    decodes: bool = False
    share: float = 1.0


@dataclass
class Outcome:
    """The result of a case.

    Attributes:
        fault: the violated rule; None without a violation.
        compared: True if its text was compared with that of `generate`.
    """

    name: str
    arguments: Sequence[str]
    code: int = -1
    out: str = ""
    err: str = ""
    fault: str | None = None
    compared: bool = False
    notes: list[str] = field(default_factory=list)


def run(kinds: Mapping[str, FuzzTarget], name: str, number: int, place: Path) -> Outcome:
    """Run a case in a new folder; for a negative number nothing is damaged."""
    kind, draw = kinds[name], Random(f"{name} {number}")
    shutil.rmtree(place, ignore_errors=True)
    seed = draw.choice(kind.seeds)
    for path, data in seed.items():
        (place / path).parent.mkdir(parents=True, exist_ok=True)
        (place / path).write_bytes(data)
    if number >= 0 and kind.change is not None and draw.random() < 0.25:
        kind.change(place, draw)
    elif number >= 0:
        path = place / draw.choice(kind.damaged or sorted(seed))
        for _ in range(draw.choice((1, 1, 1, 2, 4))):
            path.write_bytes(mutated(path, draw))
    arguments = [part.replace("{}", str(place)) for part in draw.choice(kind.calls)]
    outcome = call(f"{name} {number}", arguments, place, kind.typed.replace("{}", str(place)))
    outcome.fault = fault_of(outcome)
    if kind.decodes and outcome.code == 0 and not outcome.fault:
        outcome.fault = compare(outcome, place)
    return outcome


def call(name: str, arguments: Sequence[str], home: Path, typed: str = "") -> Outcome:
    """Call the program in this process."""
    outcome = Outcome(name, arguments)
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8") for _ in range(2))
    variables = {f"XDG_{kind}_HOME": str(home) for kind in ("CONFIG", "STATE")}
    with (
        mock.patch.dict(os.environ, variables),
        mock.patch.object(sys, "stdin", io.TextIOWrapper(io.BytesIO(typed.encode()))),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            with _in_time():
                outcome.code = entry(list(arguments))
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                raise
            outcome.fault = f"{type(error).__name__} out of the program: {error}"
    for name_, stream in (("out", out), ("err", err)):
        stream.flush()
        setattr(outcome, name_, stream.buffer.getvalue().decode(errors="replace"))
    return outcome


@contextlib.contextmanager
def _in_time() -> Iterator[None]:
    def stop(*_: object) -> None:
        raise StuckError(f"it takes more than {SECONDS} s")

    before, left = signal.signal(signal.SIGALRM, stop), signal.alarm(SECONDS)
    try:
        yield
    finally:
        signal.signal(signal.SIGALRM, before)
        signal.alarm(left)  # of a test's own limit


def fault_of(outcome: Outcome) -> str | None:
    """Return the rule that the result of a case violates; None without a violation."""
    if outcome.fault:
        return outcome.fault
    err = outcome.err
    last = (err.strip("\n").split("\n") or [""])[-1]
    faults = {
        "an internal error": "--debug shows where" in err or "Traceback" in err,
        "a thing without a name": "lade: cannot read or write:" in err,
        "the words of a library": "pydantic" in err,
        f"the exit code {outcome.code}": outcome.code not in (0, 1, 2),
        "no line of ours at the end": outcome.code != 0
        and not (last.startswith("lade: ") or outcome.out),
        "several lines": outcome.code == 2 and not outcome.out and err.count("\nlade: ") > 3,
        "a control character": CONTROL.search(err) is not None,
    }
    return next((what for what, holds in faults.items() if holds), None)


def compare(outcome: Outcome, folder: Path) -> str | None:
    """Return how the answer of an accepted model differs from that of `generate`; None if it does
    not."""
    answer = json.loads(outcome.out)
    if "not applied" in outcome.err:
        return None
    ours = answer["token_ids"]
    try:
        texts = [_theirs(folder, attention) for attention in ("eager", "sdpa")]
    except Exception as error:  # `generate` refuses the model
        outcome.notes.append(f"generate refuses: {type(error).__name__}: {error}")
        return None
    if texts[0] != texts[1]:  # NaN logits, which attention backends treat differently
        outcome.notes.append("generate has one text by eager attention and another by sdpa")
        return None
    theirs = texts[0]
    outcome.compared = True
    if ours != theirs[: len(ours)] or len(theirs) - len(ours) > 1:
        return f"other tokens than generate's: {ours}, {theirs}"
    return None


def _theirs(folder: Path, attention: str) -> list[int]:
    """Return the new tokens of `generate`."""
    with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
        model = transformers.AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, attn_implementation=attention
        )
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        ids = tokenizer("the cat", return_tensors="pt")["input_ids"]
        ends = (
            {}
            if model.generation_config.eos_token_id is not None
            else {"eos_token_id": tokenizer.eos_token_id}
        )
        tokens = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=NEW,
            do_sample=False,
            use_cache=True,  # a word in place of true makes transformers drop positions
            **ends,
        )
    new: list[int] = tokens[0, ids.shape[1] :].tolist()
    return new


# Changes of files.

_LONG = "a" * 5000
ODD: list[Any] = [
    *(None, True, False, 0, -1, 1, 2, 3, 7, 0.5, -0.0, 1e-9, 1e308, 10**9, 2**31, 2**63, 2**64),
    *(10**30, 10**400, math.inf, -math.inf, math.nan, "", " ", "\0", "\n", "x", "1", "nan", "None"),
    *("\ud800", "\x1b]52;c;aGk=\x07", "\u202ex", "..", "/", "/dev/zero", "~", "../../x", _LONG),
    *("{{", "{}", "%s", "auto", "float32", "llama", [], {}, [[]], [None], {"": None}, {"x": {}}),
    *([0], ["x"], [-1, 10**12], {"rope_type": "default"}, {"0": 1}, "int8", "main", [1, 2] * 500),
]
"""Values in place of others."""
_CHUNKS = (
    *(b"\0", b"\xff\xfe", b"\xef\xbb\xbf", b"\r", b"\n\n", b"\x1b[2J", b"\xc3\x28", b'"'),
    *(b"[" * 3000, b"{" * 50, b"1e999", b"-", b"\\ud800", b"//", b"#", b"NaN", b"\xe2\x80\xae"),
    b"0" * 400,
)
_NUMBERS = [value.to_bytes(8, "little") for value in (0, 1, 2**31, 2**32 - 1, 2**62, 2**64 - 1)]


def mutated(path: Path, draw: Random) -> bytes:
    """Return the content of a file with one change."""
    data, suffix = path.read_bytes(), path.suffix
    if draw.random() < 0.3:
        return _bytes(data, draw)
    with contextlib.suppress(ValueError, TypeError, LookupError, AttributeError, RecursionError):
        if suffix == ".json":
            return _dumped(_changed(json.loads(data), draw))
        if suffix == ".jsonl":
            return _lines(data, draw)
        if suffix == ".toml":
            return tomli_w.dumps(_changed(toml.loads(data.decode()), draw)).encode()
        if suffix == ".jinja":
            return _template(data.decode(), draw).encode()
        if suffix == ".safetensors":
            return _header(data, draw)
    return _bytes(data, draw)


def _bytes(data: bytes, draw: Random) -> bytes:
    """Return bytes with one of them, or a run of them, changed, left out, doubled or added."""
    # The important parts are mostly at the beginning.
    at = draw.randrange(min(len(data), draw.choice((64, 4096, 10**9))) + 1)
    size = draw.choice((1, 2, 8, 100, 10_000))
    chunk = data[at : at + size]
    return draw.choice(
        (
            lambda: data[:at],
            lambda: data[:at] + data[at + size :],
            lambda: data[:at] + chunk + data[at:],
            lambda: data[:at] + draw.choice(_CHUNKS) + data[at:],
            lambda: data[:at] + bytes([draw.randrange(256)]) + data[at + 1 :],
            lambda: data[:at] + draw.randbytes(len(chunk)) + data[at + size :],
            lambda: data[at:],
            lambda: data[:at] + draw.choice(_NUMBERS) + data[at + 8 :],
        )
    )()


def _changed(value: Any, draw: Random) -> Any:
    """Return a JSON value with one change somewhere in it."""
    holders = [*_holders(value)]
    if not holders or draw.random() < 0.03:
        return draw.choice(ODD)
    holder = draw.choice(holders)
    keys = list(holder) if isinstance(holder, dict) else range(len(holder))
    key = draw.choice(keys)
    what = draw.randrange(8)
    if what < 4:
        holder[key] = draw.choice(ODD)
    elif what == 4:
        del holder[key]
    elif what == 5:
        holder[key] = _near(holder[key], draw)
    elif what == 6:
        other = draw.choice(holders)
        holder[key] = json.loads(json.dumps(draw.choice([*_values(other)])))
    elif isinstance(holder, dict):
        name = draw.choice((str(draw.choice(ODD)), f"{key}x", key.upper()))
        holder[name] = draw.choice((holder[key], draw.choice(ODD)))
    else:
        holder.insert(key, draw.choice((holder[key], draw.choice(ODD))))
    return value


def _near(value: Any, draw: Random) -> Any:
    """Return a value similar to another one."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, (int, float)):
        return draw.choice((value + 1, value - 1, -value, value * 2, value * 10**6, str(value)))
    if isinstance(value, str):
        return draw.choice((value.upper(), f" {value}", value[:-1], f"{value}\n", [value]))
    return [value] if isinstance(value, dict) else {"x": value}


def _holders(value: Any) -> Iterator[Any]:
    """Yield all lists and objects in a value that are not empty."""
    if isinstance(value, (dict, list)) and value:
        yield value
        for item in _values(value):
            yield from _holders(item)


def _values(holder: Any) -> Iterator[Any]:
    yield from holder.values() if isinstance(holder, dict) else holder


def _dumped(value: Any) -> bytes:
    return json.dumps(value).encode()


def _lines(data: bytes, draw: Random) -> bytes:
    """Return lines of JSON with one of them changed, left out, doubled or moved."""
    lines = data.decode().split("\n")
    at = draw.randrange(max(len(lines) - 1, 1))
    what = draw.randrange(6)
    if what == 0:
        del lines[at]
    elif what == 1:
        lines.insert(at, draw.choice(lines))
    elif what == 2:
        draw.shuffle(lines)
    else:
        lines[at] = _dumped(_changed(json.loads(lines[at]), draw)).decode()
    return "\n".join(lines).encode()


def _header(data: bytes, draw: Random) -> bytes:
    """Return a safetensors file with a change in its header."""
    size = int.from_bytes(data[:8], "little")
    head = _dumped(_changed(json.loads(data[8 : 8 + size]), draw))
    return len(head).to_bytes(8, "little") + head + data[8 + size :]


_STATEMENTS = (
    "{{ messages }}",
    "{{ messages[0].content * 3 }}",
    "{{ raise_exception('no\nway \x1b[2J') }}",
    "{{ raise_exception(messages) }}",
    "{{ messages[99].content }}",
    "{{ undefined.attribute }}",
    "{{ 1 // 0 }}",
    "{{ 'a' * 10**13 }}",
    "{{ range(10**9) | list }}",
    "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "{{ messages.__class__ }}",
    "{{ cycler.__init__.__globals__.os.system('true') }}",
    "{{ ('{0.__class__.__init__.__globals__}').format(namespace) }}",
    "{{ (messages | attr('format')) }}",
    "{{ ''|attr('__class__') }}",
    "{{ self.__init__.__globals__ }}",
    "{% include '/etc/passwd' %}",
    "{% import 'os' as os %}",
    "{% extends 'x' %}",
    "{% set messages = 5 %}",
    "{% do messages.append(1) %}",
    "{{ messages.append(1) }}",
    "{{ strftime_now('%Y' * 10**6) }}",
    "{{ strftime_now(5) }}",
    "{% generation %}x{% endgeneration %}",
    "{% break %}",
    "{{ messages[0].content | replace('', 'a' * 10**6) }}",
    "{{ ('a' * 10**5 ~ '!') | urlize }}",
    "{{ messages | sum }}",
    "{{ add_generation_prompt() }}",
    "{% if ",
    "{{ ",
    "{# ",
    "\x1b]8;;x\x07 \u202e",
    "{{ '\\ud800' }}",
    "{{ " + "(" * 500 + "1" + ")" * 500 + " }}",
    "{{ " + "[" * 5000,
)
"""Parts of templates that recurse, fail, or access forbidden objects."""


def _template(text: str, draw: Random) -> str:
    """Return a template with an additional statement, or without a part."""
    marks = [match.start() for match in re.finditer(r"[{}%]", text)] or [0]
    at, end = sorted((draw.choice((0, len(text), *marks)), draw.choice((len(text), *marks))))
    if draw.random() < 0.7:
        return text[:at] + draw.choice(_STATEMENTS) + text[at:]
    return text[:at] + text[end:]


def change_folder(folder: Path, draw: Random) -> None:
    """Replace one file of a model's folder by something else, or change its index."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    path = draw.choice(files)
    data = path.read_bytes()
    index = folder / "model.safetensors.index.json"
    if index.exists() and draw.random() < 0.5:
        _change_index(index, draw)
        return
    path.unlink()
    away = folder.parent / f"{folder.name}-away"
    what = draw.randrange(9)
    if what == 0:
        away.write_bytes(data)
        path.symlink_to(away)
    elif what == 1:
        path.symlink_to("/dev/zero")
    elif what == 2:
        path.symlink_to(path.name)
    elif what == 3:
        path.symlink_to("/")
    elif what == 4:
        os.mkfifo(path)
    elif what == 5:
        path.mkdir()
    elif what == 6:
        path.write_bytes(b"")
    elif what == 7:
        path.write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n")


def _change_index(path: Path, draw: Random) -> None:
    """Make an index of shards invalid."""
    stated = json.loads(path.read_bytes())
    named = stated["weight_map"]
    key = draw.choice(sorted(named))
    shards = sorted(set(named.values()))
    odd = ("../x", "/etc/passwd", "\0", "", ".", "no.safetensors", "x" * 300, 5, None, *shards)
    what = draw.randrange(4)
    if what == 0:
        named[key] = draw.choice(odd)
    elif what == 1:
        stated["weight_map"] = dict.fromkeys(named, draw.choice(odd))
    elif what == 2:  # two shards hold the same weights
        first, other = path.parent / shards[0], path.parent / shards[-1]
        other.write_bytes(first.read_bytes())
    else:
        away = path.parent.parent / f"{path.parent.name}-away.safetensors"
        shutil.copy(path.parent / shards[0], away)
        named.update({k: f"../{away.name}" for k, v in named.items() if v == shards[0]})
    path.write_bytes(_dumped(stated))


# The kinds.

_CONFIG = b"""\
model = "demo"
budget = 30
window = 5
stop = ["x", "y"]
template-arg = ["a=1"]
color = "never"
sources = "context,recycled"
markdown = false
top-p = 0.9
seed = 3
"""
_TEMPLATE = b"""\
{{ bos_token }}{% for m in messages %}{% if m.role == 'system' %}[S]{{ m.content | trim }}
{% elif m.role == 'user' %}[U]{{ m.content }}{% else %}[A]{{ m.content }}{{ eos_token }}{% endif %}
{% endfor %}{% if add_generation_prompt %}[A]{% endif %}"""
_PROMPTS = b"""\
{"prompt": "the cat", "id": 1}
{"turns": ["one", "two"], "category": "x"}
{"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]}
{"messages": [{"role": "user", "content": [{"type": "text", "text": "t"}]}]}
"""
FAMILIES = ("llama", "llama3", "qwen3", "gemma2", "gemma3", "phi3_long", "mixtral", "gpt2")


def fuzz_targets(base: Path) -> dict[str, FuzzTarget]:
    """Return all kinds of files by name, after creating their seeds in a folder."""
    from tests.support.adapters import make
    from tests.support.gguf import write as write_gguf
    from tests.support.traces import small_trace, write

    base.mkdir(parents=True, exist_ok=True)
    models = [_model_files(base / family, family) for family in FAMILIES]
    sharded = _model_files(base / "sharded", "llama", max_shard_size="20KB")
    small = str(base / "llama")
    adapter = _files_of(make(small, base / "adapter"))
    (base / "files").mkdir(exist_ok=True)
    write_gguf(base / "files" / "m.gguf")
    write(base / "a.trace", small_trace())
    generate = ("generate", small, *ASKED)
    profiles = sorted(Path(sys.modules["ladecli.profiles"].__file__ or "").parent.glob("*.toml"))
    model_calls = (("generate", "{}", *ASKED, "--raw", "--json"),)
    return {
        "config": FuzzTarget([{"lade/config.toml": _CONFIG}], [("config",), ("profiles",)]),
        "profile": FuzzTarget(
            [{"lade/profiles/mine.toml": path.read_bytes()} for path in profiles],
            [("profiles", "mine"), ("profiles",), ("profiles", "mine", "--json")],
        ),
        "trace": FuzzTarget(
            [{"a.jsonl": (base / "a.trace").read_bytes()}],
            [("replay", "{}/a.jsonl"), ("replay", "{}/a.jsonl", "--step")],
        ),
        "chat": FuzzTarget(
            [{"chat.json": _TALK.as_json("m").encode()}],
            [("chat", small, "--offline", "--device", "cpu", "-n", "1")],
            typed="/load {}/chat.json\n/save {}/x.md\n/save {}/y.json\n",
            share=0.2,
        ),
        "kept": FuzzTarget(
            [{"lade/chats/2026-01-01-000000-1.json": _OPEN_TALK.as_json("m").encode()}],
            [("chat", small, "--offline", "--device", "cpu", "--continue", "-n", "1")],
            share=0.2,
        ),
        "prompts": FuzzTarget(
            [{"p.jsonl": _PROMPTS}],
            [("generate", small, "-f", "{}/p.jsonl", "-n", "1", "--offline", "--device", "cpu")],
            share=0.2,
        ),
        "template": FuzzTarget(
            [{"t.jinja": _TEMPLATE}],
            [(*generate, "-s", "be brief", "--chat-template", "{}/t.jinja")],
            share=0.2,
        ),
        "adapter": FuzzTarget(
            [adapter],
            [("generate", "{}", *ASKED, "--raw"), (*generate, "--raw", "--adapter", "{}")],
            change=change_folder,
            share=0.1,
        ),
        "model": FuzzTarget(
            models,
            model_calls,
            damaged=("config.json", "generation_config.json", "tokenizer_config.json"),
            change=change_folder,
            decodes=True,
            share=0.3,
        ),
        "whole model": FuzzTarget(
            models, model_calls, change=change_folder, decodes=True, share=0.1
        ),
        "shards": FuzzTarget(
            [sharded],
            model_calls,
            damaged=("model.safetensors.index.json",),
            change=change_folder,
            decodes=True,
            share=0.1,
        ),
        "checked model": FuzzTarget(
            models, [("doctor", "{}"), ("doctor", "{}", "--json")], change=change_folder, share=0.2
        ),
        "gguf": FuzzTarget(
            [{"m.gguf": (base / "files" / "m.gguf").read_bytes()}],
            [("generate", "{}/m.gguf", *ASKED, "--raw")],
            share=0.1,
        ),
    }


_TALK = Conversation("be brief").with_question("hello").with_answer("hi", True, "so")
_OPEN_TALK = _TALK.with_question("and")


def _model_files(folder: Path, family: str, **saved: Any) -> Files:
    """Save a small random model of a family with a tokenizer in a folder; return its files."""
    from tests.support.models import new_model
    from tests.support.tokenizers import byte_level

    tokenizer = byte_level()
    ends = {"eos_token_id": tokenizer.eos_token_id, "bos_token_id": None, "pad_token_id": None}
    model = new_model(family, vocab_size=len(tokenizer), **ends)
    with contextlib.redirect_stderr(io.StringIO()):  # a progress bar
        model.save_pretrained(folder, **saved)
    tokenizer.save_pretrained(folder)
    (folder / "chat_template.jinja").write_bytes(_TEMPLATE)
    return _files_of(folder)


def _files_of(folder: Path) -> Files:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.is_file()}
