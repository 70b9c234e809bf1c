"""Where an answer ends: by the configs, by the chat template, and by stop strings with tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from .scripted import CHATML, Scripted

RUNAWAY = ("Paris", ".", "<|im_end|>", "system", "<|im_start|>", " user", "Q")
SPECIAL = ("<|im_start|>", "<|im_end|>")


@pytest.fixture(scope="module")
def runaway(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A chat model whose configs name the base model's end token alone."""
    return Scripted(CHATML, RUNAWAY, SPECIAL).write(tmp_path_factory.mktemp("model"))


def answered(lade: Any, folder: str, *arguments: str) -> dict[str, Any]:
    done = lade("generate", folder, "-p", "Where?", "-n", "7", "--json", *arguments)
    found: dict[str, Any] = done.json()
    return found


def test_the_token_that_the_template_puts_after_an_answer_ends_it(lade: Any, runaway: str) -> None:
    found = answered(lade, runaway)
    assert (found["text"], found["finish_reason"]) == ("Paris.", "eos")
    assert len(found["token_ids"]) == 3
    for strategy in ("autoregressive", "jacobi"):
        assert answered(lade, runaway, "--strategy", strategy)["token_ids"] == found["token_ids"]
    done = lade("doctor", runaway, "--json")
    (line,) = [c["value"] for c in done.json()["checks"] if c["name"] == "end tokens"]
    assert line.index("<|end|>") < line.index("<|im_end|>")


@pytest.mark.parametrize("option", ["--ignore-eos", "--raw"])
def test_nothing_else_ends_an_answer(lade: Any, runaway: str, option: str) -> None:
    """A raw text is no conversation; it has the cue of one here."""
    prompt = "assistant\n" if option == "--raw" else "Where?"
    done = lade("generate", runaway, "-p", prompt, "-n", "7", "--json", option)
    assert done.json()["text"] == "Paris.system userQ"


@pytest.mark.parametrize(
    ("after", "ends"),
    [
        ("<|im_end|>\n", True),
        (" <|im_end|>", True),
        ("\n", False),
        ("<|im_end|><|im_start|>", False),
        (" and so on<|im_end|>", False),
    ],
)
def test_one_added_token_right_after_the_words(
    lade: Any, tmp_path: Path, after: str, ends: bool
) -> None:
    template = CHATML.replace("<|im_end|>\n", after)
    folder = Scripted(template, RUNAWAY, SPECIAL).write(tmp_path)
    assert (answered(lade, folder)["finish_reason"] == "eos") == ends


@pytest.mark.parametrize(
    ("stop", "text", "count"),
    [
        ("<|im_end|>", "Paris.", 3),
        (".<|im_end|>", "Paris", 3),
        ("<|im_end|>sys", "Paris.", 4),
        ("end|>system<|im_st", "Paris.", 5),
        ("system", "Paris.", 4),
        ("assistant\nPar", "", 1),
    ],
)
def test_stop_strings_hold_the_text_of_tokens(
    lade: Any, runaway: str, stop: str, text: str, count: int
) -> None:
    found = answered(lade, runaway, "--ignore-eos", "--stop", stop)
    assert (found["text"], found["finish_reason"]) == (text, "stop")
    assert len(found["token_ids"]) == count
