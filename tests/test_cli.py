"""The command line as people use it: prompts from everywhere, streams, exit codes, bad input."""

from __future__ import annotations

import contextlib
import http.server
import io
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import pexpect
import pytest
import sentencepiece
import torch
import transformers
from safetensors.torch import load_file

from ladecli.commands.cli import entry
from ladecli.trace.format import read_trace
from tests.support import new_python, processes
from tests.support.adapters import make as make_adapter
from tests.support.hub import DEMO, POINTER, copied, holding, renaming, stating, without

# Prompts and streams.


def test_answers_go_to_stdout_and_figures_to_stderr(lade: Any, model_folder: str) -> None:
    arguments = ("generate", model_folder, "-p", "the cat", "-n", "20", "--ignore-eos")
    result = lade(*arguments)
    assert (result.code, result.out[-1]) == (0, "\n")
    assert "\x1b" not in result.out + result.err
    assert re.search("20 tokens in .* tokens per step", result.err)
    quiet = lade(*arguments, "--quiet")
    assert (quiet.code, quiet.out, quiet.err) == (0, result.out, "")


def test_without_a_limit_an_answer_ends_at_512_tokens_and_says_so(lade: Any) -> None:
    roomy = ("--max-context", "600", "--ignore-eos", "--no-stats")
    result = lade("generate", "-p", "def ", "--raw", *roomy)
    assert result.err == "lade: cut at 512 tokens; max-new-tokens sets another limit\n"


def test_prompts_from_flag_and_stdin_are_the_same(lade: Any, model_folder: str) -> None:
    options = ("-n", "12", "--ignore-eos", "--no-stats")
    flag = lade("generate", model_folder, "-p", "the cat sat", *options)
    for extra in ((), ("-f", "-")):
        piped = lade("generate", model_folder, *extra, *options, typed="\ufeffthe cat sat\n")
        assert piped.out == flag.out


def test_other_line_ends_are_converted(lade: Any, model_folder: str, tmp_path: Path) -> None:
    """Line ends are converted as in Python's text mode: the model sees no carriage returns."""
    text = "the cat\nsat: Grüße\n"
    arguments = ["generate", model_folder, "-n", "3", "--ignore-eos", "--json", "-q"]
    flag = lade(*arguments, "-p", text.removesuffix("\n")).json()
    forms = (("\n", "utf-8"), ("\r\n", "utf-8-sig"), ("\r", "utf-16"), ("\r\n", "utf-16"))
    for number, (end, encoding) in enumerate(forms):
        path = tmp_path / f"{number}.txt"
        path.write_bytes(text.replace("\n", end).encode(encoding))
        arguments += ["--prompt-file", str(path)]
    for form, file in zip(forms, lade(*arguments).rows(), strict=True):
        assert (file["usage"], file["token_ids"]) == (flag["usage"], flag["token_ids"]), form


def test_several_prompts(lade: Any, model_folder: str, tmp_path: Path, rows_file: Any) -> None:
    path = rows_file({"id": 7, "prompt": "the cat"}, {"turns": ["the\u2028mat"]})
    (tmp_path / "y.txt").write_text("def f")
    files = ("-f", path, "-f", str(tmp_path / "y.txt"))
    answers = lade("generate", model_folder, *files, "-n", "4", "--budget", "10", "--json").rows()
    assert [answer["id"] for answer in answers] == ["7", "2", "3"], "rows can be joined by them"
    for answer, prompt in zip(answers, ("the cat", "the\u2028mat", "def f"), strict=True):
        alone = lade("generate", model_folder, "-p", prompt, "-n", "4", "--json")
        assert alone.json()["token_ids"] == answer["token_ids"]
    path = rows_file(*({"prompt": text} for text in ("a", "xyz " * 200, "b")))
    refusal = lade("generate", model_folder, "-f", path, "-q").refused()
    assert refusal.startswith("prompt 2 of 3: the prompt has ")


def test_rows_on_standard_input(lade: Any, model_folder: str, rows_file: Any) -> None:
    rows = ({"id": "a", "prompt": "the cat"}, {"turns": ["def f", "def g"]})
    path = rows_file(*rows)
    text, asked = Path(path).read_text(), ("generate", model_folder, "-n", "4", "--raw")
    expected = lade(*asked, "-f", path, "--json", "--no-stats").rows()
    for extra in ((), ("-f", "-")):
        piped = lade(*asked, *extra, "--json", typed=f"\n{text}\n")
        assert [row["token_ids"] for row in piped.rows()] == [row["token_ids"] for row in expected]
        assert "2 rows" in piped.err
    shown = lade(*asked, "--no-stats", typed=text)
    named = re.findall("answer to (.*):", shown.err)
    assert named == ["a", "2", "2, turn 2"]
    assert not any(line in shown.out for line in shown.err.splitlines())
    assert lade(*asked, "-q", typed=text).err == ""
    for other in (f"{text}the mat", '{"text": "the cat"}'):
        alone = lade(*asked, "--json", typed=other)
        flag = lade(*asked, "--json", "-p", other)
        assert alone.json()["token_ids"] == flag.json()["token_ids"]
    assert "prompt is blank" in lade(*asked, typed='{"prompt": " "}').refused()


HI, BRIEF = {"role": "user", "content": "What is the pool?"}, "Be brief."
TALKS: list[tuple[dict[str, Any], list[dict[str, Any]]]] = [
    ({"messages": [HI]}, [HI]),
    ({"messages": [{"role": "user", "content": [{"type": "text", "text": HI["content"]}]}]}, [HI]),
    ({"messages": [{"role": "developer", "content": BRIEF}, HI]}, [{"role": "system"}, HI]),
    ({"system": BRIEF, "prompt": HI["content"]}, [{"role": "system"}, HI]),
    (
        {"messages": [HI, {"role": "assistant", "content": "Old n-grams."}, HI]},
        [HI, {"role": "assistant", "content": "Old n-grams."}, HI],
    ),
]
"""Rows in OpenAI's form, and the messages that they are for a template."""


def test_rows_with_messages_are_conversations(lade: Any, rows_file: Any) -> None:
    path = rows_file(*(row for row, _ in TALKS))
    answers = lade("generate", "-f", path, "-n", "4", "--json", "-q").rows()
    tokenizer = transformers.AutoTokenizer.from_pretrained(DEMO)
    model = transformers.AutoModelForCausalLM.from_pretrained(DEMO, dtype=torch.float32)
    for answer, (row, messages) in zip(answers, TALKS, strict=True):
        whole = [{"content": BRIEF} | message for message in messages]
        template = {"add_generation_prompt": True, "return_dict": True}
        ids = tokenizer.apply_chat_template(whole, **template)["input_ids"]
        expected = model.generate(torch.tensor([ids]), max_new_tokens=4, do_sample=False)
        assert answer["usage"]["prompt_tokens"] == len(ids), row
        assert answer["token_ids"] == expected[0, len(ids) :].tolist(), row


def test_turns_are_answered_one_after_the_other(lade: Any, tmp_path: Path, rows_file: Any) -> None:
    row = {"id": "a", "turns": ["What is the pool?", "And the window?"]}
    path = rows_file(row, {"prompt": "And now?"})
    asked = ("generate", "-f", path, "-s", BRIEF, "-n", "6", "--json", "-q")
    first, second, third = answers = lade(*asked, "--trace", str(tmp_path / "x.trace")).rows()
    assert [(answer["id"], answer["turn"]) for answer in answers] == [("a", 1), ("a", 2), ("2", 1)]
    assert {path.name for path in tmp_path.glob("*.trace")} == {f"x{n}.trace" for n in ("", -2, -3)}
    messages = [{"role": "user", "content": text} for text in row["turns"]]
    messages.insert(1, {"role": "assistant", "content": first["text"]})
    rows_file({"messages": [{"role": "system", "content": BRIEF}, *messages]})
    alone = lade("generate", "-f", path, "-n", "6", "--json", "-q").json()
    assert (alone["usage"], alone["token_ids"]) == (second["usage"], second["token_ids"])
    rows_file({"prompt": "And now?"})
    assert lade(*asked).json()["usage"] == third["usage"]


def test_a_rows_own_system_message_holds(lade: Any, rows_file: Any) -> None:
    path = rows_file({"system": BRIEF, "prompt": "Hi"}, {"prompt": "Hi"})
    own = lade("generate", "-f", path, "-n", "2", "--json")
    assert "--system" not in own.err
    both = lade("generate", "-f", path, "-n", "2", "--json", "-s", "Be very very kind.")
    assert "--system is not for 1 of 2 rows" in both.err
    (first, second), (same, longer) = (
        [row["usage"]["prompt_tokens"] for row in result.rows()] for result in (own, both)
    )
    assert (first, True) == (same, second < longer)


def test_a_turn_that_does_not_fit_costs_no_other_answer(lade: Any, rows_file: Any) -> None:
    path = rows_file({"id": "a", "turns": ["Hi", "the pool " * 90]}, {"prompt": "Hi"})
    result = lade("generate", "-f", path, "-n", "4", "--json", "-q", "--max-context", "90")
    assert [row["id"] for row in result.rows(2)] == ["a", "2"]
    assert result.err.startswith("lade: prompt a, turn 2: the prompt has ")


def test_conversations_without_a_template(lade: Any, model_folder: str, rows_file: Any) -> None:
    path = rows_file({"messages": [{"role": "system", "content": BRIEF}, HI]})
    asked = ("generate", model_folder, "-n", "4", "--json", "-q")
    prompt = ("-p", "hi")
    for options in (("-f", path), (*prompt, "-s", BRIEF), (*prompt, "--template-arg", "a=1")):
        assert "no chat template; use --raw" in lade(*asked, *options).refused()
    lines = lade(*asked, "-f", path, "--raw").json()
    assert lines["token_ids"] == lade(*asked, "-p", f"{BRIEF}\n{HI['content']}").json()["token_ids"]


def test_the_figures_of_an_answer_agree(lade: Any, model_folder: str) -> None:
    plain = ("generate", model_folder, "-p", "the cat", "-n", "30", "--ignore-eos", "--json")
    drafts = ("-W", "4", "-N", "3", "-G", "2", "--sources", "trajectory", "--profile", "a100")
    answer = lade(*plain, *drafts).json()
    assert (answer["model"], answer["finish_reason"]) == (model_folder, "length")
    assert answer["usage"]["completion_tokens"] == len(answer["token_ids"]) == 30
    decode = answer["decode"]
    assert decode.items() >= {
        "window": 4, "ngram": 3, "guesses": 2, "budget": 4 * 2 + 2 * 2, "profile": "a100",
        "sources": ["trajectory"], "attention": "sdpa", "cuda_graphs": False,
        "ranks": 1, "parallel_mode": None, "tokens_per_step": 30 / decode["steps"],
    }.items()  # fmt: skip
    assert decode["steps"] + sum(decode["accepted"].values()) in (30, 31)
    assert answer["sampling"] == {
        "temperature": 0.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "repetition_penalty": 1.0,
    }  # fmt: skip
    assert answer["seed"] is None
    assert 0 < answer["seconds"]["load"] < 60
    assert lade(*plain, "--strategy", "autoregressive").json()["decode"]["step_width"] == 1.0


def test_sampling_prints_its_seed(lade: Any, model_folder: str) -> None:
    options = ("-p", "the", "-n", "20", "-t", "1.5", "--json", "--ignore-eos")
    sample = ("generate", model_folder, *options)
    first = lade(*sample).json()
    again = lade(*sample, "--seed", str(first["seed"]), "--strategy", "jacobi").json()
    assert again["token_ids"] == first["token_ids"]
    assert lade(*sample).json()["token_ids"] != first["token_ids"]


@pytest.mark.slow
def test_streams_with_limited_encodings(model_folder: str) -> None:
    options = ("generate", model_folder, "-p", "the", "-n", "60", "--ignore-eos", "-t", "2")
    plain = processes.lade(*options, "--seed", "1", PYTHONIOENCODING="ascii")
    assert (plain.returncode, "Error" in plain.stderr) == (0, False)
    with open(os.devnull, "w") as output:
        streams = 0, output.fileno(), None  # no standard error
        child = processes.Fork(["generate", "-p", "the", "-n", "3"], streams, os.environ)
        assert child.wait() == 0


def test_colors_on_demand(lade: Any, model_folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    prompt = ("generate", model_folder, "-p", "ab ab ab", "-n", "100", "--ignore-eos")
    options = ("--sources", "trajectory", "--no-stats", "--color")
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[3" in lade(*prompt, *options, "always").out, "a flag beats the environment"
    for color in ("auto", "never"):
        assert "\x1b[3" not in lade(*prompt, *options, color).out


# Bad input: one line that names the fault, and the exit code.


def files(folder: Path) -> None:
    """Prompt files that cannot be used, and one that can."""
    (folder / "binary").write_bytes(b"\x7fELF\0\1\2")
    (folder / "wide").write_bytes("cut".encode("utf-32"))
    (folder / "odd").write_bytes("cut".encode("utf-16")[:-1])
    (folder / "latin").write_bytes("caf\u00e9".encode("latin-1"))
    (folder / "empty").write_text("\n")
    (folder / "none.jsonl").write_text("\n")
    (folder / "rows.jsonl").write_text('{"prompt": "a"}\n{"prompt": 3}\n')
    (folder / "folder").mkdir()


A = "generate -p a"
SWEEP = "bench demo --sweep"
MISTAKES = {
    "generate -p ''": "--prompt is empty",
    "generate -p a -p b": "--prompt was given 2 times; give it once",
    "generate -f no/such.txt": "there is no prompt file no/such.txt",
    "generate -f folder": "is a folder; name a file in it",
    "generate -f binary": "is binary (a zero byte)",
    "generate -f wide": "is binary (a zero byte)",
    "generate -f latin": "is not UTF-8 (byte 3)",
    "generate -f odd": "is not UTF-16 (byte",
    "generate -f empty": "is empty",
    "generate -f rows.jsonl": "line 2: prompt: input should be a valid string, not 3",
    "generate -f none.jsonl": "has no prompts",
    f"{A} --parallel-mode tensor": "does nothing without --parallel K",
    f"{A} -W 0": "window must be at least 1, not 0",
    f"{A} -W many": "window must be a whole number, not 'many'",
    f"{A} --stop ''": "stop needs a text",
    f"{A} -W 9 -N 9 --budget 3": "budget 3 is smaller than",
    f"{A} -t -1": "temperature must be 0, or from 1e-15 to 1e+15",
    f"{A} --top-p 0": "top-p must be in (0, 1], not 0.0",
    f"{A} --draft-text x": "there is no draft text x; check the path",
    f"{A} --profile x": "unknown profile 'x'; known profiles: a100",
    f"{A} --strategy x": "unknown strategy 'x'; use one of lookahead",
    f"{A} --sources x": "unknown source 'x'; known sources: trajectory",
    f"{A} --sources ,": "sources must name at least one of",
    f"{A} --device cuda:1": "no CUDA device",
    f"{A} --device tpu": "unknown device 'tpu'",
    f"{A} -n 0": "max-new-tokens must be at least 1, not 0",
    f"{A} --max-context 2": "max-context must be at least 16, not 2",
    f"{A} --raw --system x": "system needs the chat template; leave raw or system out",
    "generate '' -p a": "MODEL is empty; name a model",
    "generate --top_k 4": "No such option: --top_k (Possible options: --stop, --top-k,",
    "generate --temp 1": "No such option: --temp; here it is --temperature",
    "generate --zzz": "No such option: --zzz (see lade generate --help)",
    "generate -p a -n": "Option '-n' requires an argument (see lade --help)",
    "generate -p a\udcff": "--prompt is not UTF-8; check the terminal's encoding",
    "run x": "No such command 'run'; here it is lade chat MODEL",
    "generate -p a x y": "(y) (see lade generate --help)",
    "chatt x": "No such command 'chatt'. Did you mean 'chat'? (see lade --help)",
    "config shwo": "unexpected extra argument",
    "bench --strategies lookahaed": "'lookahaed'",
    "bench --strategies ,": "unknown strategy ''",
    "bench --prompts nowhere.jsonl": "nowhere.jsonl",
    "bench --prompts mtbench": "use builtin, mt-bench,",
    "bench --report x.pdf": ".md or .json",
    "bench --report nowhere/x.md": "nowhere",
    "bench --prompts q.json --report ./q.json": "--prompts and --report are the same file",
    f"{SWEEP} ''": "W, N, G, budget, sources, context once",
    f"{SWEEP} W": "--sweep 'W': ",
    f"{SWEEP} W=": "--sweep 'W=': ",
    f"{SWEEP} 'W=5 W=3'": "--sweep 'W=3': ",
    f"{SWEEP} W=x": "--sweep W=x: needs a number from 1 on",
    f"{SWEEP} N=1": "--sweep N=1: needs a number from 2 on",
    f"{SWEEP} G=W": "--sweep G=W: needs a number from 0 on",
    f"{SWEEP} 'W=G G=W'": "another axis that has numbers",
    f"{SWEEP} sources=contxt": "--sweep sources=contxt",
    f"{SWEEP} context=4x": "--sweep context=4x",
    f"{SWEEP} context=1k --prompts builtin": "leave --prompts out",
    f"{SWEEP} W=5 --strategies hf": "leave --strategies out",
    f"{SWEEP} context=1k,2k --strategies hf-compiled": "one context at a time",
    "bench --strategies hf --parallel 2 --parallel-mode tensor": "leave hf, hf-prompt-lookup,",
    "verify --prompts no-such-suite": "no-such-suite",
    "tune --seconds 0": "seconds must be finite and above 0, not 0",
    "tune --seconds inf": "seconds must be finite and above 0, not inf",
    "profiles moon": "unknown profile 'moon'; known profiles: a100, ",
    "profiles --device cuda": "no CUDA device: ",
}
"""Input that is refused before a model is loaded, and a part of the error line."""


@pytest.mark.parametrize("line", MISTAKES)
def test_bad_input_is_refused_early(line: str, lade: Any, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("ladecli.models.load.load", lambda *_: pytest.fail("a model was loaded"))
    monkeypatch.chdir(tmp_path)
    files(tmp_path)
    assert MISTAKES[line] in lade(*shlex.split(line)).refused()


def test_no_prompt_at_a_terminal(lade: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    assert "no prompt: give --prompt TEXT or --prompt-file FILE" in lade("generate").refused()


@pytest.mark.parametrize(
    ("option", "package", "fix"),
    [
        ("--device-map auto", "accelerate", "accelerate"),
        *(("--quantize 4bit", name, "'ladecli[quant]'") for name in ("accelerate", "bitsandbytes")),
    ],
)
def test_missing_packages(option: str, package: str, fix: str, lade: Any, monkeypatch: Any) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    refusal = lade("generate", "-p", "a", *option.split()).refused()
    assert refusal == f"{option.removesuffix(' auto')} needs {package}: pip install {fix}\n"


def test_a_draft_text_makes_an_answer_faster(lade: Any, tmp_path: Path) -> None:
    known = tmp_path / "known.txt"
    command = ["generate", "-p", "What is the pool?", "-n", "40", "--json"]
    without = lade(*command).json()
    known.write_text(without["text"])
    result = lade(*command, "--draft-text", str(known))
    assert "adds nothing" not in result.err
    answer = result.json()
    assert answer["token_ids"] == without["token_ids"]
    assert answer["decode"]["steps"] < without["decode"]["steps"] / 2
    known.write_text("is the pool?\n")
    assert "known.txt adds nothing" in lade(*command, "--draft-text", str(known)).err


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a full device")
def test_an_answer_survives_a_trace_that_cannot_be_written(lade: Any, tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"prompt": "a"}\n' * 2)
    result = lade("generate", "-f", str(rows), "-n", "3", "--json", "-q", "--trace", "/dev/full")
    assert [len(row["token_ids"]) for row in result.rows(1)] == [3, 3]
    line = "lade: --trace /dev/full cannot be written: "
    assert [text.startswith(line) for text in result.err.splitlines()] == [True, True]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a full device")
@pytest.mark.parametrize("closed", [False, True], ids=["full", "closed"])
@pytest.mark.parametrize(
    "command", ["--version", "generate -p a -n 3", "generate -p a -n 3 --json"]
)
def test_lost_output_is_an_error(command: str, closed: bool, tmp_path: Path) -> None:
    errors = tmp_path / "errors"
    with open(os.devnull) as nothing, open("/dev/full", "w") as full, errors.open("w") as written:
        out = None if closed else full.fileno()
        streams = nothing.fileno(), out, written.fileno()
        assert processes.Fork(command.split(), streams, os.environ).wait() == 1
    assert errors.read_text().startswith("lade: ")


class Code:
    """An object that would run a command if it were unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("exit 1",)


Change = Callable[[Path], object]
"""A function that changes the files of a folder."""
WEIGHTS, CONFIG = "model.safetensors", partial(stating, "config.json")


def prefixed(prefix: str) -> Change:
    """Rename weights as a wrapper saves them."""
    return renaming(WEIGHTS, lambda name: [prefix + name])


def pickled(folder: Path) -> None:
    (folder / WEIGHTS).unlink()
    torch.save({"a": Code()}, folder / "pytorch_model.bin")


def tokenizer_is(name: str, data: bytes) -> Change:
    """Replace tokenizer.json by a tokenizer in another format."""
    return lambda folder: (folder / "tokenizer.json").rename(folder / name).write_bytes(data)


def of_kind(name: Any, *changes: Change) -> Change:
    """Name another class of tokenizer, with other changes."""
    changes = (stating("tokenizer_config.json", tokenizer_class=name), *changes)
    return lambda folder: [change(folder) for change in changes]


def index(**files: Any) -> Change:
    """Split weights over files with an index."""

    def change(folder: Path) -> None:
        (folder / WEIGHTS).rename(folder / "x.safetensors")
        stated = json.dumps({"metadata": {}, "weight_map": files})
        (folder / f"{WEIGHTS}.index.json").write_text(stated)

    return change


def nameless(folder: Path) -> None:
    stated = json.loads((folder / "config.json").read_text())
    del stated["model_type"]
    (folder / "config.json").write_text(json.dumps(stated))


def without_index(folder: Path) -> None:
    (folder / WEIGHTS).rename(folder / "model-00001-of-00001.safetensors")


A_LAYER_LESS = renaming(WEIGHTS, lambda name: [name] * ("layers.1.mlp" not in name))
DAMAGED: dict[str, tuple[Change, str]] = {
    "no config": (without("config.json"), "holds no config.json"),
    "no weights": (without(WEIGHTS), "holds no weights"),
    "no index": (without_index, "holds no model.safetensors.index.json"),
    "no tokenizer": (without("tokenizer.json", "tokenizer_config.json"), "holds no tokenizer"),
    "other shape": (CONFIG(intermediate_size=52), "the weights"),
    "missing layer": (A_LAYER_LESS, "(model.layers.1.mlp.down_proj.weight and 2"),
    "prefix": (prefixed("module."), "and module.lm_head.weight is unknown"),
    "broken config": (holding("config.json", b"{"), "config.json is damaged"),
    "uneven heads": (CONFIG(num_attention_heads=7), "(32) is not a multiple of the number of att"),
    "a wrong kind": (CONFIG(rms_norm_eps="no"), "'rms_norm_eps' expected float, got"),
    "words for numbers": (CONFIG(num_hidden_layers="two"), "num_"),
    "cut": (holding("generation_config.json", b'{"a": 1'), "generation_config.json is damaged"),
    "a list": (holding("generation_config.json", b"[]"), "generation_config.json is damaged"),
    "binary tokenizer": (holding("tokenizer.json", b"\xff\xfe\0"), "its tokenizer"),
    "older tokenizer": (tokenizer_is("tokenizer.model", b"{}"), "copy tokenizer.json beside"),
    "ranks": (tokenizer_is("x.tiktoken", b"aGk= 0\n"), "pip install tiktoken"),
    "empty tokenizer": (of_kind("GPT2Tokenizer", without("tokenizer.json")), "holds no tokenizer"),
    "tokenizer of questions": (of_kind("RagTokenizer"), "RagTokenizer"),
    "tokenizer of no kind": (of_kind(["a"]), "its tokenizer cannot be loaded"),
    "pointer for tokens": (holding("tokenizer.json", POINTER), "run git lfs pull"),
    "other tokenizer": (holding("tokenizer.json", b"{}"), "its tokenizer"),
    "unknown family": (holding("config.json", b'{"model_type": "new"}'), "model type `new`"),
    "encoder": (holding("config.json", b'{"model_type": "t5"}'), "'t5' are not supported"),
    "pickled": (pickled, "get safetensors instead"),
    "no name": (index(a=5), "names no files"),
    "a long name": (index(a="x" * 300), "0 of 1 files"),
    "heads": (CONFIG(num_key_value_heads=0), "num_key_value_heads is 0"),
    "nameless": (nameless, "model_type"),
    "layers": (CONFIG(num_hidden_layers=10**9), "num_hidden_layers is 1000000000"),
    "listed layers": (CONFIG(num_hidden_layers=[0]), "num_hidden_layers is [0]"),
    "unknown": (stating("tokenizer_config.json", unk_token=5), "tokenizer"),
    "activation": (CONFIG(hidden_act="silo"), "silo"),
    "type": (CONFIG(dtype="float31"), "float31"),
    "end": (CONFIG(eos_token_id="x"), "eos_token_id"),
}


@pytest.mark.parametrize("case", DAMAGED)
def test_folders_that_cannot_be_loaded(case: str, lade: Any, model_with: Any) -> None:
    change, message = DAMAGED[case]
    copy = model_with(change)
    assert message in lade("generate", copy, "-p", "a").refused(1)
    assert lade("doctor", copy).code == 1


def in_shards(folder: Path) -> None:
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    (folder / WEIGHTS).unlink()
    with contextlib.redirect_stderr(io.StringIO()):  # a progress bar
        model.save_pretrained(folder, max_shard_size="50KB")
    assert len([*folder.glob("*.safetensors")]) > 1


def in_a_pickle(folder: Path) -> None:
    torch.save(load_file(folder / WEIGHTS), folder / "pytorch_model.bin")
    (folder / WEIGHTS).unlink()


@pytest.mark.parametrize("change", [prefixed("model."), in_shards, in_a_pickle])
def test_other_forms_of_weights_are_read(
    change: Change, lade: Any, model_folder: str, model_with: Any
) -> None:
    options = ("-p", "the cat", "-n", "9", "-q")
    expected = lade("generate", model_folder, *options).out
    assert lade("generate", model_with(change), *options).out == expected


def in_a_vocabulary_and_merges(folder: Path) -> None:
    model = json.loads((folder / "tokenizer.json").read_text())["model"]
    of_kind("GPT2Tokenizer", without("tokenizer.json"))(folder)
    (folder / "vocab.json").write_text(json.dumps(model["vocab"]))
    (folder / "merges.txt").write_text("\n".join(" ".join(pair) for pair in model["merges"]))


def in_sentencepieces(folder: Path) -> None:
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["the cat sat on the mat"] * 9),
        model_writer=(model := io.BytesIO()),
        model_type="bpe",
        **{"vocab_size": 280, "byte_fallback": True, "minloglevel": 2},
    )
    tokenizer_is("tokenizer.model", model.getvalue())(folder)
    (folder / "tokenizer_config.json").unlink()


@pytest.mark.parametrize("form", [in_a_vocabulary_and_merges, in_sentencepieces])
def test_other_forms_of_tokenizers_are_read(form: Change, lade: Any, model_with: Any) -> None:
    copy, options = model_with(form), ("-n", "3", "--ignore-eos", "--json", "-q", "--raw")
    expected = transformers.AutoTokenizer.from_pretrained(copy)("the cat").input_ids
    answer = lade("generate", copy, "-p", "the cat", *options).json()
    assert answer["usage"]["prompt_tokens"] == len(expected) > 1


@pytest.mark.parametrize("command", [("generate", "-p", "a"), ("chat",), ("doctor",)])
def test_a_model_that_is_not_there(lade: Any, model_folder: str, command: tuple[str, ...]) -> None:
    name = model_folder.replace("tiny-llama", "tiny-lama")
    for model, line in (
        (name, f"there is no model folder {name}; did you mean: {model_folder}"),
        ("llama3:8b", "llama3:8b is not a model name; use OWNER/NAME, such as "),  # as Ollama's
    ):
        done = lade(*command, model)
        assert (done.code, line in done.out + done.err) == (1, True)


def test_debug_shows_the_traceback() -> None:
    for arguments in (["--debug", "generate"], ["generate", "--debug"]):
        with pytest.raises(Exception, match="window must be"):
            entry([*arguments, "-p", "a", "-W", "0"])


# The hub, and real processes.


class Hub(http.server.BaseHTTPRequestHandler):
    """A fake hub with some folders, gated models and unknown ones."""

    protocol_version = "HTTP/1.1"
    folders: ClassVar[dict[str, Path]] = {}

    def do_GET(self) -> None:
        path = self.path.split("?")[0]
        code, headers, body = 404, {"X-Error-Code": "RepoNotFound"}, b""
        name = next((folder for folder in self.folders if f"/{folder}/" in f"{path}/"), "")
        if path.startswith(f"/{name}/resolve/"):
            code, headers = 404, {"X-Error-Code": "EntryNotFound"}
            file = self.folders[name] / path.rsplit("/", 1)[1]
            if file.is_file():
                code, headers, body = 200, {"ETag": f'"{file.name}"'}, file.read_bytes()
            headers["X-Repo-Commit"] = "0" * 40
        elif name and path.startswith(f"/api/models/{name}"):
            names = sorted(file.name for file in self.folders[name].iterdir())
            about: Any = {"id": name, "sha": "0" * 40}
            about["siblings"] = [{"rfilename": name} for name in names]
            if "/tree/" in path:
                about = [{"type": "file", "path": n, "size": 1, "oid": "0"} for n in names]
            code, headers, body = 200, {}, json.dumps(about).encode()
        elif "gated" in path:
            code, headers = 401, {"X-Error-Code": "GatedRepo"}
        elif "owner/last" in path:  # the last thing that is asked of it
            self.server.shutdown()
            self.server.server_close()
        self.send_response(code)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    do_HEAD = do_GET

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@pytest.fixture
def hub(model_folder: str) -> Iterator[str]:
    Hub.folders.clear()
    Hub.folders["owner/tiny"] = Path(model_folder)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_batch_invariant_has_no_cost_if_it_is_impossible(lade: Any) -> None:
    options = ("-p", "def ", "-n", "2", "--batch-invariant")
    result = lade("generate", *options, "--device-map", "auto")
    assert result.code == 0
    assert "--batch-invariant does nothing here" in result.err
    assert "batch-invariant" not in lade("generate", *options).err


@pytest.mark.slow
def test_downloads_happen_once_and_missing_models_are_named(
    hub: str, lade: Any, model_folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HF_HUB_OFFLINE")
    adapter = make_adapter(model_folder, tmp_path / "adapter")
    options = ("-p", "the cat", "-n", "9")
    plain, adapted = (
        lade("generate", str(folder), *options, "-q").out for folder in (model_folder, adapter)
    )
    assert plain != adapted
    stating("adapter_config.json", base_model_name_or_path="owner/tiny")(adapter)
    Hub.folders["owner/lora"] = adapter
    # The second time needs no hub, and does not wait for one.
    names = ("gated", "missing", "lora", "tiny", "last", "name", "tiny --adapter owner/lora")
    asked = (("generate", *f"owner/{name}".split(), *options) for name in (*names, "tiny"))
    gated, missing, *downloaded, _, unknown, lora, tiny = new_python.calls(*asked, HF_ENDPOINT=hub)
    assert "owner/gated is gated" in gated.refused(1)
    words = "no model owner/missing on the hub.* on this machine: demo"
    assert re.search(words, missing.refused(1))
    assert "owner/name is not on this machine, and the hub cannot" in unknown.refused(1)
    for with_adapter, alone in (downloaded, (lora, tiny)):
        assert (with_adapter.code, with_adapter.out) == (0, adapted)
        assert (alone.code, alone.out) == (0, plain)
        line = "adapter owner/lora (LoRA of rank 4) is merged into owner/tiny, which takes "
        assert line in with_adapter.err


def in_a_terminal(*asked: str) -> processes.Spawn:
    command, size = ["-m", "ladecli", *asked], (24, 80)
    return processes.Spawn(sys.executable, command, encoding="utf-8", timeout=60, dimensions=size)


def test_a_terminal_gets_colours_but_no_control_characters_of_the_model(model_folder: str) -> None:
    options = ("-n", "100", "--ignore-eos", "-q", "--sources", "trajectory")
    child = in_a_terminal("generate", model_folder, "-p", "ab ab ab ab", *options)
    child.expect(pexpect.EOF)
    child.close()
    assert (child.exitstatus, "\x1b[3" in child.before) == (0, True)
    # Every escape is one of Rich's; those of the model are removed.
    rest = re.sub(r"\x1b\[((3[2-6]|0)m|1A|1G|J)|\r|\n", "", child.before)
    assert not [c for c in rest if ord(c) < 32 and c != "\t"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_an_answer_whose_text_is_kept(number: int, model_with: Any) -> None:
    slow = model_with(CONFIG(max_position_embeddings=10**6))
    options = ("-p", "ab ab ab ab", "--ignore-eos", "--sources", "trajectory")
    child = in_a_terminal("generate", slow, *options)
    child.expect("\x1b\\[3\\dm[^\u2800-\u28ff]")  # an accepted draft's colour, not the spinner's
    child.kill(number)
    child.expect("tokens in .* steps")
    child.expect(pexpect.EOF)
    child.close()
    assert child.exitstatus == 130
    assert "Traceback" not in (child.before or "")


def test_control_c_while_the_program_is_imported_is_quiet(tmp_path: Path) -> None:
    (tmp_path / "typer.py").write_text("raise KeyboardInterrupt")
    path = os.pathsep.join([str(tmp_path), *sys.path])
    command, env = [sys.executable, "-m", "ladecli"], os.environ | {"PYTHONPATH": path}
    done = subprocess.run(command, capture_output=True, env=env)
    assert (done.returncode, done.stdout, done.stderr) == (130, b"", b"")


@pytest.fixture
def beyond(tmp_path: Path) -> str:
    """Return a copy of the demo model whose tokenizer has a token without an embedding."""
    copy = copied(DEMO, tmp_path / "beyond")
    tokenizer = transformers.AutoTokenizer.from_pretrained(DEMO)
    tokenizer.add_tokens(["<tool>"], special_tokens=True)
    tokenizer.save_pretrained(copy)
    return copy


def test_a_token_without_an_embedding_is_named(lade: Any, beyond: str, tmp_path: Path) -> None:
    refusal = lade("generate", beyond, "-p", "a <tool> b", "-q").refused()
    assert re.search("no embedding for '<tool>'.*leave it out", refusal)
    template = Path(beyond) / "chat_template.jinja"
    template.write_text("<tool>{{ messages[-1].content }}")
    refusal = lade("generate", beyond, "-p", "a", "-q").refused()
    assert "use --raw if the chat template writes it" in refusal
    prompt = "def area(width, height):\n    return width"
    (tmp_path / "x.txt").write_text(f"{prompt} <tool> * height\n" * 9)
    asked = ("generate", beyond, "--raw", "-p", prompt, "-n", "20", "-q")
    assert lade(*asked, "--draft-text", str(tmp_path / "x.txt")).out == lade(*asked).out


@pytest.mark.parametrize(
    ("text", "code", "message"),
    [
        ("/udno\n", 2, "there is no command /udno; did you mean /undo?"),
        ("/load nowhere.json\n", 2, "there is no file nowhere.json; check the path"),
        ('"""\nnever closed', 2, 'standard input ends within """; close them'),
        ("Use a <tool>\n", 2, "no embedding for '<tool>'"),
        ("", 0, ""),
        ("/exit\nnever answered\n", 0, ""),
    ],
)
def test_mistakes_in_a_pipe(lade: Any, beyond: str, text: str, code: int, message: str) -> None:
    result = lade("chat", beyond, "-q", typed=text)
    assert (result.code, result.out) == (code, "")
    assert message in result.err
    assert result.err.count("\n") == (1 if message else 0)


def test_a_piped_chat_goes_on_after_such_a_message(lade: Any, beyond: str) -> None:
    chat, question = ("chat", beyond, "-n", "6", "-q"), "What is the pool?\n"
    after = lade(*chat, typed=f"Use a <tool>\n{question}")
    assert (after.code, after.out) == (2, lade(*chat, typed=question).out)


def test_traces_and_replays(lade: Any, model_folder: str, tmp_path: Path, rows_file: Any) -> None:
    rows = rows_file({"prompt": "the cat"}, {"prompt": "the mat"})
    options = ("-f", rows, "-n", "20", "--ignore-eos", "--json")
    answers = lade("generate", model_folder, *options, "--trace", f"{tmp_path}/a.trace")
    plain = lade("generate", model_folder, *options)
    texts = [row["token_ids"] for row in answers.rows()]
    assert texts == [row["token_ids"] for row in plain.rows()]
    trace = read_trace(tmp_path / "a-2.trace")
    assert [i for step in trace.steps for i in step.token_ids] == texts[1]
    assert all(step.detail is not None for step in trace.steps)
    replayed = lade("replay", str(tmp_path / "a.trace"))
    shown = lade("generate", model_folder, "-p", "the cat", "-n", "20", "--ignore-eos")
    assert replayed.out == shown.out


def test_an_error_about_the_context_names_one_that_fits(lade: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr("ladecli.models.device.free_memory", lambda _: 24e6)
    asked = ("generate", "demo", "-p", "def ", "-n", "5", "--no-stats", "--dtype", "float32")
    refusal = lade(*asked, "--max-context", "2048").refused()
    (fitting,) = re.findall(r"--max-context (\d+) fits", refusal)
    answer = lade(*asked, "--max-context", fitting)
    assert (answer.code, answer.err) == (0, "")
    cut = lade(*asked)
    assert (cut.code, cut.out) == (0, answer.out)
    assert f"texts end at {int(fitting):,} tokens" in cut.err
