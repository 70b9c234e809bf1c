"""Test families of models against transformers' `generate`, and write docs/models.md.

    python benchmarks/families.py --json benchmarks/results/families.json --page docs/models.md

Every family is built small and random from its configuration, saved with a byte-level tokenizer,
and decoded greedily in float32 through three entry points: `lade generate FOLDER`,
`ladecli.load(FOLDER)` and `model.generate(custom_generate=ladecli.lookahead)`.  The first two
answer the first prompt again after the others: by then they have learned it, so most of that text
is accepted drafts.
This needs the extra `test`.  The exit code is 1 if any text differs.
"""

from __future__ import annotations

import json
import sys
import tempfile
import textwrap
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
import transformers
from common import argument_parser, save
from transformers.models.auto import modeling_auto

import ladecli
from ladecli.decoder.backends.facts import known_families
from ladecli.decoder.model.transformer import Transformer
from tests.support import every, processes
from tests.support.tokenizers import byte_level

TOKENS = 40
PROMPTS = (
    "import os\n\ndef walk(path):\n    for name in os.listdir(path):\n        print(name, path)\n",
    "class Queue:\n    def __init__(self):\n        self.items = []\n\n    def push(self, item):\n",
)
ASKED = (*PROMPTS, PROMPTS[0])
DOORS = ("lade generate", "ladecli.load", "custom_generate")
_WHOLE = """
    chameleon cohere_compass cosmos3_edge deepseek_ocr2 ernie4_5_vl_moe glm4v glm4v_moe glm_ocr
    hunyuan_vl hy_v4_vl llava mistral_large4 molmo2 muse_glimmer paddleocr_vl
    qwen3_omni_moe_thinker step3p7
"""
"""Models for images or audio, in addition to those of `every.ROWS`."""
_TEXTS = {*modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES} & known_families()
FAMILIES = [*every.ROWS, *_WHOLE.split(), *sorted(_TEXTS - {*every.ROWS})]
INTRODUCTION = (
    "After reading this page you know whether a model runs, how it is decoded, and which of its"
    " files and settings count.",
    "`lade` decodes every decoder-only model that transformers can generate with: a folder, a model"
    " in the Hugging Face cache, or a GGUF file.  Of a model that also takes images, audio or"
    " video, only the text decoder is loaded.  The model's family decides which of these methods is"
    " used; if it is not trees of drafts, a notice at load gives the reason:",
)
KINDS = {
    "lookahead": "trees of drafts, verified in one pass by our own forward or by transformers'.",
    "chains": "one continuation at a time, by the model's own forward and cache; the cache is"
    " restored if only a part of the chain is accepted.",
    "plain": "one token at a time, by the model's own forward and cache.",
    "refused": "models that cannot continue a text, such as encoder-decoders.",
}
Answers = list[list[int]]


def generate(model: Any, prompts: list[Any], **options: Any) -> Answers:
    """Return the new tokens of transformers' `generate`."""
    options |= {"do_sample": False, "max_new_tokens": TOKENS}
    texts = [model.generate(p, attention_mask=torch.ones_like(p), **options)[0] for p in prompts]
    return [ids[p.shape[1] :].tolist() for ids, p in zip(texts, prompts, strict=True)]


def command(folder: Path) -> Answers:
    """Return the answers of `lade generate`."""
    prompts = folder / "prompts.jsonl"
    prompts.write_text("\n".join(json.dumps({"prompt": text}) for text in ASKED), encoding="utf-8")
    arguments = ("generate", str(folder), "-f", str(prompts), "--dtype", "float32")
    done = processes.lade(*arguments, "--raw", "--json", "--ignore-eos", "-n", str(TOKENS))
    if done.returncode:
        raise ladecli.LadeError(done.stderr)
    return [json.loads(line)["token_ids"] for line in done.stdout.splitlines()]


def loaded(folder: Path, row: dict[str, Any]) -> Answers:
    """Return the answers of `ladecli.load`, and record the forward and the last tokens per step."""
    model = ladecli.load(folder, dtype="float32")
    forward = model.session.decoder.executor.model
    row["forward"] = "own" if isinstance(forward, Transformer) else "transformers'"
    row["decoding"] = {"trees": "lookahead", "chains": "chains", "none": "plain"}[forward.drafts]
    row["why"] = "; ".join(
        line.partition(": ")[2] for line in model.session.decoder.executor.notices
    )
    answers = []
    for text in ASKED:
        events = model.stream(text, max_new_tokens=TOKENS, ignore_eos=True)
        steps = [event.token_ids for event in events if isinstance(event, ladecli.TextStep)]
        answers.append([token for step in steps for token in step])
        row["tokens per step, again"] = round(TOKENS / len(steps), 1)
    return answers


def verdict(entry_point: Callable[[], Answers], expected: Answers, family: str) -> str:
    """Return the comparison of an entry point's answers, or the reason of its refusal."""
    try:
        answers = entry_point()
    except Exception as error:
        line = " ".join(str(error).split())
        _, named, why = line.partition(f"the family {family!r} are not supported: ")
        return f"refused: {why}" if named else f"failed: {line}"
    expected = [*expected, expected[0]][: len(answers)]
    wrong = [n for n, ids in enumerate(expected) if answers[n] != ids]
    return f"differs: answer {wrong[0] + 1}" if wrong else "equal"


def try_family(family: str) -> dict[str, Any]:
    """Return the row of a family."""
    row: dict[str, Any] = {"family": family, "forward": "", "decoding": "refused", "why": ""}
    with tempfile.TemporaryDirectory() as home:
        folder = Path(home) / "model"
        model = every.saved(folder, family)
        model.generation_config.eos_token_id = None
        tokenizer = byte_level()
        prompts = [tokenizer(text, return_tensors="pt")["input_ids"] for text in PROMPTS]
        expected = generate(model, prompts)
        # A text with few different tokens would be a weak test.
        row["distinct tokens"] = min(len(set(ids)) for ids in expected)
        doors: tuple[Callable[[], Answers], ...] = (
            lambda: command(folder),
            lambda: loaded(folder, row),
            lambda: generate(model, prompts, custom_generate=ladecli.lookahead),
        )
        for name, entry_point in zip(DOORS, doors, strict=True):
            row[name] = verdict(entry_point, expected, model.config.model_type)
    return row


def page(rows: list[dict[str, Any]]) -> str:
    """Return a page of Markdown: the kinds of decoding, verdicts, and the families by kind."""
    counts = Counter(row["decoding"] for row in rows)
    lines = ["# Models", *wrapped(INTRODUCTION), ""]
    for kind, what in KINDS.items():
        lines.append(f"- **{kind}**{f' ({counts[kind]})' if counts[kind] else ''}: {what}")
    libraries = f"torch {torch.__version__}, transformers {transformers.__version__}"
    built = f"{len(rows)} families, built small with random weights"
    how = f"{built}, decoded greedily in float32 ({libraries})"
    script = "`python benchmarks/families.py`"
    lines += [*wrapped([f"{script} compares their texts with those of `generate`: {how}."])]
    lines += ["", "| entry point | result |", "|---|---|"]
    for entry_point in DOORS:
        counts = Counter(row[entry_point].partition(":")[0] for row in rows)
        lines.append(
            f"| {entry_point} | {', '.join(f'{n} {v}' for v, n in counts.most_common())} |"
        )
    lines += ["", "| decoding | forward | families | why no trees |", "|---|---|---|---|"]
    groups = defaultdict(list)
    for row in sorted(rows, key=lambda row: [*KINDS].index(row["decoding"])):
        reasons = [row["why"]]
        for entry_point in DOORS:
            kind, _, reason = row[entry_point].partition(": ")
            if kind != "equal":
                reasons.append(reason if kind == "refused" else f"{entry_point} {row[entry_point]}")
        why = "; ".join(dict.fromkeys(filter(None, reasons)))
        groups[row["decoding"], row["forward"], why].append(row["family"])
    for (decoding, forward, why), families in groups.items():
        lines.append(f"| {decoding} | {forward} | {', '.join(families)} | {why} |")
    return "\n".join(lines) + "\n"


def wrapped(paragraphs: Iterable[str]) -> Iterator[str]:
    """Yield the lines of paragraphs, each after an empty line."""
    for text in paragraphs:
        yield ""
        yield from textwrap.wrap(text, 120, break_on_hyphens=False)


def main() -> int:
    parser = argument_parser(__doc__)
    parser.add_argument("--only", help="names of families, with commas between them")
    parser.add_argument("--page", type=Path, help="write the page here")
    args = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    transformers.utils.logging.set_verbosity_error()
    rows = [try_family(name) for name in (args.only.split(",") if args.only else FAMILIES)]
    print(page(rows))
    save(args, rows)
    if args.page:
        # The text below the next heading is not generated.
        _, mark, kept = args.page.read_text(encoding="utf-8").partition("\n## ")
        args.page.write_text(page(rows) + mark + kept, encoding="utf-8")
    return int(any(row[entry_point].startswith("differs") for row in rows for entry_point in DOORS))


if __name__ == "__main__":
    sys.exit(main())
