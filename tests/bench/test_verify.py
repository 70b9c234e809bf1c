"""`lade verify` at the command line: exit codes, output for users, and output for programs."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from ladecli.decoder.model.forward import StepInputs
from ladecli.session.session import Session
from tests.support.decoding import ALIKE_BFLOAT16
from tests.support.oracle import change_decoders, change_logits, during_forward, run_out

pytestmark = pytest.mark.slow

Lade = Any
QUICK = ("verify", "-q", "--limit", "2", "-n", "24")


def talks(*turns: Sequence[str]) -> list[dict[str, object]]:
    return [{"id": f"row-{n}", "turns": [*texts]} for n, texts in enumerate(turns, start=1)]


def plant_fault(patch: pytest.MonkeyPatch, by: float = 2.0) -> None:
    """Change the logits of steps of more than four tokens by `by`."""

    def wrong(step: StepInputs, logits: Tensor) -> Tensor:
        if len(step.tokens) <= 4:
            return logits
        generator = torch.Generator().manual_seed(len(step.tokens))
        signs = torch.randint(0, 2, (logits.shape[-1],), generator=generator) * 2 - 1
        return logits + by * signs.to(logits.dtype)

    change_decoders(patch, lambda decoder: change_logits(decoder, wrong))


def test_equal_answers(lade: Lade) -> None:
    done = lade(*QUICK)
    assert (done.code, done.err, "\x1b" in done.out) == (0, "", False)
    first, *_, last = done.out.splitlines()
    assert ("lookahead" in first, last) == (True, "equal: all 48 tokens of 2 answers")


@pytest.mark.parametrize("strategy", ["jacobi", "prompt-lookup", "lookahead"])
def test_sampled_answers_are_equal(lade: Lade, strategy: str) -> None:
    sampling = ("-t", "0.8", "--top-p", "0.95", "--repetition-penalty", "1.2", "--seed", "7")
    read = lade(*QUICK, "--strategy", strategy, *sampling, "--json").json()
    assert read["settings"]["strategy"] == strategy
    assert read["sampling"]["seed"] == 7
    assert (read["tokens"], read["divergences"]) == (48, 0)


def test_a_fault_of_wide_steps_is_reported(lade: Lade, monkeypatch: pytest.MonkeyPatch) -> None:
    plant_fault(monkeypatch)
    options = ("-n", "48", "--sources", "context,recycled", "--budget", "16")
    read = lade("verify", "-q", "--limit", "4", *options, "--json").json(1)
    assert read["passed"] is False
    faults = [a["divergence"] for a in read["answers"] if a["divergence"] is not None]
    assert len(faults) == read["divergences"] >= read["unexplained"] > 0
    fault = next(fault for fault in faults if not fault["explained"])
    names = "row turn position plain other width gap distance noise allowed explained"
    assert set(fault) == {*names.split()}
    assert fault["width"] > 4
    assert fault["plain"]["id"] != fault["other"]["id"]
    # The difference of two logits changes by at most twice as much.
    assert 0 < fault["allowed"] < fault["distance"] <= 4.0 + 1e-3
    # The position is that of the first difference.
    answer = next(answer for answer in read["answers"] if answer["divergence"] == fault)
    assert answer["tokens"] == fault["position"]


@ALIKE_BFLOAT16
def test_rounding_explains_nothing_in_batch_invariant_steps(lade: Lade, monkeypatch: Any) -> None:
    options = ("--dtype", "bfloat16", "--batch-invariant", "-t", "1", "--seed", "1")
    assert lade(*QUICK, *options).out.splitlines()[-1] == "equal: all 48 tokens of 2 answers"
    plant_fault(monkeypatch, 0.5)
    options += ("-W", "3", "-G", "3", "--sources", "trajectory", "--json")
    read = lade(*QUICK, *options).json(1)
    assert read["unexplained"] == read["divergences"] > 0
    faults = [answer["divergence"] for answer in read["answers"]]
    assert {fault["allowed"] for fault in faults if fault is not None} == {0.0}


@pytest.mark.parametrize("shorter", ["lookahead", "autoregressive"])
def test_early_ends_are_faults(lade: Lade, monkeypatch: Any, rows_file: Any, shorter: str) -> None:
    stream = Session.stream

    def ends_early(session: Session, prompt: Any, settings: Any, *others: Any) -> Any:
        if settings.strategy == shorter:
            settings = replace(settings, max_new_tokens=5)
        return stream(session, prompt, settings, *others)

    monkeypatch.setattr(Session, "stream", ends_early)
    prompts = rows_file(*talks(("def ", "more")))
    done = lade(*QUICK, "--raw", "--ignore-eos", "--prompts", prompts, "--json")
    (answer,) = done.json(1)["answers"]  # the prompt of turn 2 would differ
    fault = answer["divergence"]
    assert (fault["position"], fault["gap"], fault["explained"]) == (6, None, False)
    assert (fault["other"] is None) is (shorter == "lookahead")
    assert (fault["plain"] is None) is (shorter == "autoregressive")


def test_json_has_its_keys(lade: Lade, rows_file: Any) -> None:
    prompts = rows_file(*talks(("def ", "and now?")))
    options = ("--raw", "--sources", "context,recycled", "--budget", "16")
    read = lade(*QUICK, *options, "--prompts", prompts, "--json").json()
    assert read["schema"] == "lade-verify/1"
    names = "schema created seconds interrupted command machine model prompts max_new_tokens"
    names += " template passed verdict settings sampling rows tokens answers skipped divergences"
    assert set(read) == {*names.split(), "unexplained"}
    assert read["settings"] == {
        **{"strategy": "lookahead", "budget": 16, "sources": "context+recycled"},
        **{"weights": "float32", "compute": "float32", "attention": "sdpa"},
    }
    assert read["model"]["name"] == "demo"
    assert read["machine"]["versions"]["torch"]
    assert (read["prompts"], read["template"]) == ("rows.jsonl", False)
    assert [answer["turn"] for answer in read["answers"]] == [1, 2]
    assert read["tokens"] == sum(answer["tokens"] for answer in read["answers"])
    assert (read["passed"], read["interrupted"]) == (True, False)


def test_prompts_that_are_too_long_are_skipped(lade: Lade, rows_file: Any) -> None:
    prompts = rows_file(*talks(("word " * 500,), ("a word",), ("a", "word " * 500)))
    options = ("-q", "--raw", "-n", "4", "--max-context", "100", "--prompts", prompts)
    read = lade("verify", *options, "--json").json()
    assert [row["row"] for row in read["skipped"]] == ["row-1", "row-3"]
    assert [answer["row"] for answer in read["answers"]] == ["row-2", "row-3"]
    assert "skipped row-1: " in lade("verify", *options).out


def test_without_prompts_or_memory_it_fails(lade: Lade, monkeypatch: Any, rows_file: Any) -> None:
    prompts = rows_file(*talks(("word " * 500,)))
    done = lade("verify", "-q", "--raw", "--max-context", "100", "--prompts", prompts)
    assert "row-1" in done.refused()
    change_decoders(monkeypatch, lambda decoder: run_out(decoder, lambda _: True))
    done = lade(*QUICK)
    assert done.code == 1
    assert "out of memory" in done.out + done.err


@pytest.mark.parametrize("presses", [1, 2])
def test_ctrl_c_keeps_what_was_compared(lade: Lade, monkeypatch: Any, presses: int) -> None:
    def press() -> None:
        for _ in range(presses):
            signal.raise_signal(signal.SIGINT)

    during_forward(monkeypatch, 70, press)
    done = lade(*QUICK, "--strategy", "autoregressive", "--ignore-eos")
    assert done.code == 130
    assert done.out.splitlines()[-1] == "equal: all 24 tokens of 1 answer"
