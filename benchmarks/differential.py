"""Does every entry point give the text of transformers' `generate`, for models of any kind?

    python benchmarks/differential.py --models 100 --json benchmarks/results/differential.json
    python benchmarks/differential.py --first 17 --models 1     # one model again
    python benchmarks/differential.py --models 100 --hybrids    # with recurrent layers alone

Small random models in float32, with all kinds of rotary frequencies, sliding windows, penalties and
stop strings.  Texts are interrupted (by their reader, by Ctrl-C or by a lack of memory), repeated,
continued, and get another end.  A number determines a model and its cases.  Answers come from
`custom_generate`, from `ladecli.Model` and, for the first case of a model, from the command line.
This needs the extra `test`.  The exit code is 1 if an answer differs.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import os
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any
from unittest import mock

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
from common import argument_parser, print_head, print_row, save
from transformers import StopStringCriteria

import ladecli
from ladecli.commands.cli import entry
from ladecli.decoder.decoder import Decoder
from tests.support.models import FAMILIES, HYBRIDS, new_model
from tests.support.tokenizers import CORPUS, byte_level

CHAINS = ("stablelm", "nemotron", "falcon", "bloom")
_OTHERS = {"gpt2", "opt", "llama_dynamic", "phi3_long", "mistral_long"}
NAMES = sorted({*FAMILIES, *HYBRIDS, *CHAINS} - _OTHERS)
ROPES = ("default", "linear", "dynamic", "yarn", "longrope", "llama3")
TURNS = 5
"""The number of cases of a model: prompts, each with its own settings."""
ORIGINAL = 40
"""The length from which rotary frequencies are scaled, reached by most texts."""
STOPS = ("D", "/", "t", "é", "at", " the", "\n", "a", "你")


@dataclass
class Outcome:
    """The results of the cases of a model.

    Attributes:
        compared: the number of answers.
        faults: descriptions of answers that differ.
    """

    number: int
    family: str = ""
    rope: str = "none"
    compared: int = 0
    faults: list[str] = field(default_factory=list)

    def check(self, door: str, answer: list[int], expected: list[int]) -> None:
        """Compare an answer with that of `generate`."""
        self.compared += 1
        if answer != expected:
            pairs = enumerate(zip(answer, expected, strict=False))
            at = next((i for i, (a, b) in pairs if a != b), min(len(answer), len(expected)))
            self.faults.append(f"{door}: token {at} of {len(expected)}, {len(answer)} came")


def run(number: int, folder: Path, families: Sequence[str]) -> Outcome:
    """Run the cases of a model of one of the families, which is saved in a folder."""
    draw, tokenizer = Random(number), byte_level()
    outcome = Outcome(number, families[number % len(families)])
    model, outcome.rope = _model(outcome.family, draw)
    config = model.generation_config
    if draw.random() < 0.4:
        config.repetition_penalty = draw.choice((0.9, 1.1, 1.5))
    if draw.random() < 0.2:
        config.no_repeat_ngram_size = draw.choice((2, 3))
    config.eos_token_id = 0
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    loaded = ladecli.load(folder, device="cpu", offline=True)
    text = _text(draw)
    for turn in range(TURNS):
        stop = draw.sample(STOPS, draw.choice((1, 2))) if draw.random() < 0.4 else None
        new, ids = draw.randint(1, 60), torch.tensor([tokenizer(text)["input_ids"]])
        told: dict[str, Any] = {"max_new_tokens": new, "attention_mask": torch.ones_like(ids)}
        told |= {"do_sample": False, "pad_token_id": 0}
        # transformers hands no tokenizer to functions
        own = told | {"stopping_criteria": [StopStringCriteria(tokenizer, stop)] if stop else None}
        if stop:
            told |= {"stop_strings": stop, "tokenizer": tokenizer}
        expected = _generated(model, ids, **told)
        own = _generated(model, ids, custom_generate=ladecli.lookahead, **own)
        outcome.check("custom_generate", own, expected)
        asked = {"max_new_tokens": new, "stop": stop or []}
        begun: list[int] = []
        with _failing(loaded.session.decoder, draw), contextlib.suppress(KeyboardInterrupt):
            events = loaded.stream(text, **asked)
            for event in itertools.islice(events, draw.choice((0, 3, 9, 99))):
                begun += _ids(event)
            events.close()  # type: ignore[attr-defined]
        outcome.check("Model, interrupted", begun, expected[: len(begun)])
        answer = [token for event in loaded.stream(text, **asked) for token in _ids(event)]
        outcome.check("Model", answer, expected)
        if turn == 0:
            flags = [part for text in stop or () for part in ("--stop", text)]
            outcome.check("lade generate", _by_command(folder, text, new, flags), expected)
        text += tokenizer.decode(expected, skip_special_tokens=True) + _text(draw)[:20]
        if draw.random() < 0.3:
            text = text[: -draw.randint(1, len(text) // 2)] + _text(draw)[:20]
        # Start another text, also because the shortest context is 160 tokens.
        most = (2 if outcome.rope in ROPES[1:] else 4) * ORIGINAL
        if draw.random() < 0.3 or len(tokenizer(text)["input_ids"]) > most:
            text = _text(draw)
    return outcome


def _generated(model: Any, ids: torch.Tensor, **told: Any) -> list[int]:
    model(ids[:, :1])  # dynamic frequencies remember the longest text until there is a short one
    return list(model.generate(ids, **told)[0, ids.shape[1] :].tolist())


@contextlib.contextmanager
def _failing(decoder: Decoder, draw: Random) -> Iterator[None]:
    """Let one call of a decoder's parts fail, or none."""
    parts = (decoder.executor.model, "forward"), (decoder.cache, "write"), (decoder.cache, "keep")
    (part, name), at, calls = draw.choice(parts), draw.randint(1, 12), itertools.count(1)
    error, work = (
        draw.choice((KeyboardInterrupt, torch.OutOfMemoryError, None)),
        getattr(part, name),
    )

    def call(*args: Any, **kwargs: Any) -> Any:
        if next(calls) == at and error is not None:
            raise error
        return work(*args, **kwargs)

    with mock.patch.object(part, name, call):
        yield


def _ids(event: object) -> tuple[int, ...]:
    return getattr(event, "token_ids", ())


def _by_command(folder: Path, text: str, new: int, flags: list[str]) -> list[int]:
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in range(2))
    arguments = ["generate", str(folder), "-p", text, "-n", str(new), "--raw", "--json", *flags]
    arguments += ["--no-stats", "--offline", "--device", "cpu"]
    with mock.patch.object(sys, "stdout", out), mock.patch.object(sys, "stderr", err):
        code = entry(arguments)
    if code:
        raise AssertionError(err.buffer.getvalue().decode())  # type: ignore[attr-defined]
    answer = json.loads(out.buffer.getvalue())  # type: ignore[attr-defined]
    return list(answer["token_ids"])


def _text(draw: Random) -> str:
    words = [draw.choice(CORPUS + list("/DÜé你 \n")) for _ in range(draw.randint(1, 6))]
    return "a" + " ".join(words)[draw.randint(0, 5) :]


def _model(family: str, draw: Random) -> tuple[Any, str]:
    """A model of a family with rotary frequencies of any kind, and the kind."""
    vocabulary: dict[str, Any] = {"vocab_size": len(byte_level()), "eos_token_id": 0}
    if family == "gemma4":
        vocabulary["vocab_size_per_layer_input"] = len(byte_level())
    if family == "falcon":
        vocabulary["alibi"] = False
    more: dict[str, Any] = {"max_position_embeddings": 512, **vocabulary}
    kind = draw.choice(ROPES)
    rope: dict[str, Any] = {"rope_type": kind, "rope_theta": draw.choice((1e3, 1e4, 1e6))}
    if kind != "default":
        rope |= {"factor": 4.0, "original_max_position_embeddings": ORIGINAL}
    if kind == "longrope":
        factors = [[draw.uniform(1, 6) for _ in range(4)] for _ in range(2)]
        rope |= {"short_factor": factors[0], "long_factor": factors[1]}
    if kind == "llama3":
        rope |= {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
    if kind in ("dynamic", "longrope"):
        more["max_position_embeddings"] = ORIGINAL if kind == "dynamic" else 4 * ORIGINAL
    scaled = more | {"rope_parameters": rope}
    if "phi" in family and kind == "longrope":
        scaled["original_max_position_embeddings"] = ORIGINAL
    own = _rope_of(family)
    if own is None or draw.random() < 0.2:
        return new_model(family, **vocabulary), "its own"
    try:
        if isinstance(own.get("full_attention"), dict):
            scaled["rope_parameters"] = own | {"full_attention": own["full_attention"] | rope}
        else:
            scaled["rope_parameters"] = {**own, **rope}
        model = new_model(family, **scaled)
        model(torch.tensor([[1, 2]]))
    except Exception:  # parts of a head that such frequencies are not for
        return new_model(family, **vocabulary), "its own"
    return model, kind


def _rope_of(family: str) -> dict[str, Any] | None:
    config = new_model(family).config
    parameters = getattr(config, "rope_parameters", None)
    return dict(parameters) if isinstance(parameters, dict) and parameters else None


@contextlib.contextmanager
def quietly() -> Iterator[None]:
    """Hide warnings of transformers about configurations, and ours about settings."""
    with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
        warnings.simplefilter("ignore")
        yield


def main() -> int:
    parser = argument_parser(__doc__)
    parser.add_argument("--models", type=int, default=100, help="with five cases each")
    parser.add_argument("--first", type=int, default=0, help="number of the first model")
    parser.add_argument("--hybrids", action="store_true", help="families with recurrent layers")
    args = parser.parse_args()
    among = sorted(HYBRIDS) if args.hybrids else NAMES
    torch.set_num_threads(1)
    began, families, ropes = time.monotonic(), set(), Counter[str]()
    answers = differences = 0
    with tempfile.TemporaryDirectory() as place:
        os.environ.update({f"XDG_{kind}_HOME": place for kind in ("CONFIG", "STATE", "CACHE")})
        for number in range(args.first, args.first + args.models):
            with quietly():
                outcome = run(number, Path(place) / "model", among)
            families.add(outcome.family)
            ropes[outcome.rope] += 1
            answers += outcome.compared
            differences += len(outcome.faults)
            for fault in outcome.faults:
                print(f"{number}, {outcome.family}, {outcome.rope}: {fault}", flush=True)
    figures = {
        "first": args.first,
        "models": args.models,
        "cases": args.models * TURNS,
        "families": sorted(families),
        "ropes": dict(sorted(ropes.items())),
        "answers": answers,
        "differences": differences,
        "seconds": round(time.monotonic() - began),
    }
    print_head("models", "cases", "families", "answers", "differences", "seconds")
    row = args.models, figures["cases"], len(families), answers, differences, figures["seconds"]
    print_row(*row)
    save(args, figures)
    return int(differences > 0)


if __name__ == "__main__":
    sys.exit(main())
