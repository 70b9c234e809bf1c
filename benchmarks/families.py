"""Which families of models decode like transformers' `generate`, and how: docs/models.md.

    python benchmarks/families.py --json benchmarks/results/families.json --page docs/models.md

Every family is built small and random from its configuration, saved with the demo's tokenizer,
and decoded greedily in float32 through three doors: `lade generate FOLDER`, `ladecli.load(FOLDER)`
and `model.generate(custom_generate=ladecli.lookahead)`.  The first two answer the first prompt
again after the others: by then they have learned it, so most of that text is accepted drafts.
The extra `test` is needed.  The exit code is 1 if any text differs.  (This transformers can build
no small dbrx, xlstm or qwen4_exp_text that its own `generate` would run.)
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers
from common import argument_parser, save

import ladecli
from ladecli.decoder.model.transformer import Transformer
from ladecli.models.find import resolve
from tests.support import processes

TOKENS = 40
PROMPTS = (
    "import os\n\ndef walk(path):\n    for name in os.listdir(path):\n        print(name, path)\n",
    "class Queue:\n    def __init__(self):\n        self.items = []\n\n    def push(self, item):\n",
)
ASKED = (*PROMPTS, PROMPTS[0])
DOORS = ("lade generate", "ladecli.load", "custom_generate")
# Windows are shorter than the prompts, and longer than the trial at load, which cannot see them.
_VALUES: tuple[tuple[Any, str], ...] = (
    (4096, "vocab_size"),
    (512, "max_position_embeddings"),
    (96, "intermediate_size"),
    (64, "hidden_size"),
    (32, "moe_intermediate_size shared_expert_intermediate_size"),
    (24, "head_dim query_pre_attn_scalar"),
    (16, "kv_lora_rank q_lora_rank v_head_dim"),
    (14, "sliding_window local_attention window_size"),
    (8, "qk_rope_head_dim qk_nope_head_dim rotary_dim"),
    (4, "num_attention_heads num_experts num_local_experts n_routed_experts moe_num_experts"),
    (3, "num_hidden_layers"),
    (2, "num_key_value_heads num_experts_per_tok moe_k pad_token_id"),
    (2.0, "logits_scaling embedding_multiplier"),
    (1, "eos_token_id max_window_layers n_group topk_group n_shared_experts first_k_dense_replace"),
    (0.5, "residual_multiplier attention_multiplier"),
    (0, "bos_token_id"),
    (True, "use_sliding_window attention_bias use_qk_norm"),
    (False, "tie_word_embeddings"),
)
SHAPE = {name: value for value, names in _VALUES for name in names.split()}
"""What a configuration gets, as far as it has such a field."""
_BEGINNINGS = ("hidden_", "intermediate_", "num_hidden_", "num_attention_")
_SMALL = {name: value for name, value in SHAPE.items() if name.startswith(_BEGINNINGS)}
_TEXT = ("vocab_size", "num_key_value_heads", "head_dim", "sliding_window")
_MIXED = {"layer_types": ["linear_attention", "full_attention", "linear_attention"]}
_PLAIN = """
    llama mistral ministral ministral3 qwen2 qwen3 phi3 gemma gemma3_text granite olmo2 olmo3
    smollm3 glm glm4 seed_oss cwm ernie4_5 iquestcoder mixtral qwen3_moe glm4_moe granitemoe
    granitemoeshared hunyuan_v1_dense hunyuan_v1_moe ernie4_5_moe exaone4 exaone_moe dots1
    apertus arcee minimax_m2 cohere cohere2 cohere2_moe starcoder2 bitnet diffllama nanochat
    solar_open mellum laguna afmoe deepseek_v2 deepseek_v3 axk1 youtu minicpm3 jetmoe aria_text
    hy_v3 kolibri1 jais2 hyperclovax olmo olmoe flex_olmo phi persimmon modernbert-decoder biogpt
    gpt2 gpt_bigcode gpt_neox opt ctrl gemma4_text gpt_oss granite_swa granitemoe_swa mimo_v2_flash
    flint llama4_text falcon bloom mpt gptj codegen openai-gpt gpt_neox_japanese xglm stablelm
    nemotron doge minimax_m3_vl_text deepseek_v4 hy_v4 moshi hrm_text inkling_text mamba
    falcon_mamba rwkv recurrent_gemma lfm2 lfm3 nemotron_h falcon_h1 olmo_hybrid minimax zamba
"""
FAMILIES: dict[str, dict[str, Any]] = {name: {} for name in _PLAIN.split()} | {
    "gemma2": {"attn_logit_softcapping": 2.0},
    "vaultgemma": {"attn_logit_softcapping": 2.0},
    "gemma3": {
        "text_config": _SMALL | {name: SHAPE[name] for name in _TEXT},
        "vision_config": _SMALL | {"image_size": 28, "patch_size": 14},
        "mm_tokens_per_image": 4,
    },
    "internlm3": {"mlp_bias": True},
    "helium": {"head_dim": 16},
    "qwen2_moe": {"use_sliding_window": False},
    "phimoe": {"sliding_window": SHAPE["max_position_embeddings"]},
    "glm4_moe_lite": {"head_dim": 8},
    "longcat_flash": {"num_layers": 2, "head_dim": 8},
    "deepseek_v32": {"num_key_value_heads": 4, "head_dim": 8, "index_topk": 8},
    "gpt_neo": {"attention_types": [[["global", "local", "global"], 1]]},
    "qwen3_next": {"num_hidden_layers": 4},
    "qwen3_5_text": {"num_hidden_layers": 4},
    "granitemoehybrid": _MIXED,
    "kimi_linear": _MIXED,
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
}
INTRODUCTION = (
    "Any decoder-only model that transformers can generate with is decoded, in a folder, in the"
    " Hugging Face cache, or in a GGUF file.  How depends on its family; where it is not trees of"
    " drafts, a line says so when the model is loaded, and why:"
)
KINDS = {
    "lookahead": "trees of drafts, verified in one pass by our own forward or by transformers'.",
    "chains": "one continuation at a time, through the model's own forward and its own cache, which"
    " is put back where the chain is not accepted whole.",
    "plain": "one token at a time, through the model's own forward and its own cache.",
    "refused": "no text: encoder-decoders too.",
}
Answers = list[list[int]]


def build(family: str, folder: Path) -> None:
    """Save a random model of a family, and the demo's tokenizer.

    Weights are drawn wide, and norms and biases off their neutral values: with what transformers
    initialises, texts repeat one token, and a norm that is left out shows in nothing.
    """
    kind = transformers.CONFIG_MAPPING[family]
    fields = {*kind.__dataclass_fields__, *kind.attribute_map}
    shape = {name: value for name, value in SHAPE.items() if name in fields}
    torch.manual_seed(sum(map(ord, family)))
    config = kind(**{**shape, **FAMILIES[family]})
    model = transformers.AutoModelForCausalLM.from_config(config).float()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.ndim == 1:
                weight.add_(0.2 * torch.randn_like(weight))
            else:
                fan_in = 1 if "emb" in name or "wte" in name else weight.shape[-1]
                weight.normal_(std=1.5 * fan_in**-0.5)
    model.save_pretrained(folder)
    for file in Path(resolve("demo")).glob("tokenizer*"):
        shutil.copy(file, folder)


def transformers_model(folder: Path) -> tuple[Any, list[Any]]:
    """The model as transformers loads it, and the prompts' ids."""
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    model.eval().generation_config.eos_token_id = None
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    return model, [tokenizer(text, return_tensors="pt")["input_ids"] for text in PROMPTS]


def generate(model: Any, prompts: list[Any], **options: Any) -> Answers:
    """New tokens of transformers' `generate`."""
    options |= {"do_sample": False, "max_new_tokens": TOKENS}
    texts = [model.generate(p, attention_mask=torch.ones_like(p), **options)[0] for p in prompts]
    return [ids[p.shape[1] :].tolist() for ids, p in zip(texts, prompts, strict=True)]


def command(folder: Path) -> Answers:
    """Answers of `lade generate`."""
    asked = folder / "prompts.jsonl"
    asked.write_text("\n".join(json.dumps({"prompt": text}) for text in ASKED), encoding="utf-8")
    given = ("generate", str(folder), "-f", str(asked), "--dtype", "float32")
    done = processes.lade(*given, "--raw", "--json", "--ignore-eos", "-n", str(TOKENS))
    if done.returncode:
        raise ladecli.LadeError(done.stderr)
    return [json.loads(line)["token_ids"] for line in done.stdout.splitlines()]


def loaded(folder: Path, row: dict[str, Any]) -> Answers:
    """Answers of `ladecli.load`; notes the forward, and tokens per step of the last answer."""
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


def verdict(door: Callable[[], Answers], expected: Answers, family: str) -> str:
    """How the answers of a door compare, or why there are none."""
    try:
        answers = door()
    except Exception as error:
        line = " ".join(str(error).split())
        _, named, why = line.partition(f"the family {family!r} are not supported: ")
        return f"refused: {why}" if named else f"failed: {line}"
    expected = [*expected, expected[0]][: len(answers)]
    wrong = [n for n, ids in enumerate(expected) if answers[n] != ids]
    return f"differs: answer {wrong[0] + 1}" if wrong else "equal"


def try_family(family: str) -> dict[str, Any]:
    """The row of a family."""
    row: dict[str, Any] = {"family": family, "forward": "", "decoding": "refused", "why": ""}
    with tempfile.TemporaryDirectory() as home:
        folder = Path(home) / "model"
        build(family, folder)
        model, prompts = transformers_model(folder)
        expected = generate(model, prompts)
        # A text of few tokens would say little.
        row["distinct tokens"] = min(len(set(ids)) for ids in expected)
        doors: tuple[Callable[[], Answers], ...] = (
            lambda: command(folder),
            lambda: loaded(folder, row),
            lambda: generate(model, prompts, custom_generate=ladecli.lookahead),
        )
        for name, door in zip(DOORS, doors, strict=True):
            row[name] = verdict(door, expected, model.config.model_type)
    return row


def page(rows: list[dict[str, Any]]) -> str:
    """A page of Markdown: what the kinds of decoding are, their counts, and the rows."""
    counts = Counter(row["decoding"] for row in rows)
    lines = ["# Models", "", INTRODUCTION, ""]
    lines += [f"- **{kind}** ({counts[kind]}): {what}" for kind, what in KINDS.items()]
    libraries = f"torch {torch.__version__}, transformers {transformers.__version__}"
    lines += ["", f"Built small and random, decoded greedily in float32 by {libraries}:", ""]
    for door in DOORS:
        counts = Counter(row[door].split(":")[0] for row in rows)
        lines.append(f"- {door}: " + ", ".join(f"{n} {what}" for what, n in counts.most_common()))
    lines += ["", f"| family | decoding | forward | {' | '.join(DOORS)} | why |", "|---" * 7 + "|"]
    for row in rows:
        found = [row[door].partition(": ") for door in DOORS]
        whys = dict.fromkeys(why for why in (row["why"], *(why for _, _, why in found)) if why)
        cells = [row[name] for name in ("family", "decoding", "forward")]
        cells += [*(what for what, _, _ in found), "; ".join(whys)]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


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
        # What is below the next heading was written by people.
        _, mark, kept = args.page.read_text(encoding="utf-8").partition("\n## ")
        args.page.write_text(page(rows) + mark + kept, encoding="utf-8")
    return int(any(row[door].startswith("differs") for row in rows for door in DOORS))


if __name__ == "__main__":
    sys.exit(main())
