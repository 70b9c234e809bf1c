"""The gain of trees of drafts over chains in models with recurrent layers, and their step times.

    python benchmarks/hybrids.py --json benchmarks/results/hybrids.json

A small model of one family per kind of layer is trained for a minute on the bytes of the project's
own code.  Trees and chains draft from the same sources, and try equally many tokens in a step.
Times are processor time, of a step in which three drafts of the first path are accepted.
"""

from __future__ import annotations

import itertools
import statistics
import sys
import time
from random import Random
from typing import Any

import torch
import transformers
from common import ROOT, argument_parser, print_head, print_row, save

from ladecli.decoder import layout
from ladecli.decoder.backends.load import decoder_of, load_decoder
from ladecli.decoder.backends.transformers_cache import OwnCacheModel
from ladecli.decoder.config import WITHOUT_WINDOW, Limits, LookaheadConfig, SamplingConfig
from ladecli.decoder.decoder import Decoder
from ladecli.decoder.drafting.store import DraftStore
from ladecli.decoder.events import Step
from ladecli.decoder.strategies import make_strategy
from ladecli.decoder.strategy import Draft
from ladecli.decoder.tree import ROOT as TOP
from ladecli.decoder.tree import TokenTree

LENGTH, PROMPT, TOKENS, BATCH = 128, 1200, 120, 8
WIDTHS = (1, 8, 16, 32)
SHAPE: dict[str, Any] = {
    "vocab_size": 256,
    "hidden_size": 192,
    "intermediate_size": 384,
    "num_hidden_layers": 4,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": True,
    "eos_token_id": None,
    "bos_token_id": None,
    "pad_token_id": 0,
}
_LINEAR = {"layer_types": ["linear_attention", "linear_attention", "full_attention"] * 2}
_DELTA = {"linear_num_value_heads": 6, "linear_num_key_heads": 3}
_SIZES = {"linear_key_head_dim": 32, "linear_value_head_dim": 32}
_MAMBA = {"mamba_n_heads": 12, "mamba_d_head": 32, "mamba_d_state": 32, "num_local_experts": 0}
FAMILIES: dict[str, dict[str, Any]] = {
    "qwen3_5_text": _DELTA | _SIZES | _LINEAR,
    "granitemoehybrid": _MAMBA | _LINEAR | {"shared_intermediate_size": 384},
    "lfm2": {"layer_types": ["conv", "conv", "full_attention"] * 2},
}


def trained(family: str, text: torch.Tensor, seconds: float) -> Any:
    """Return a model trained on parts of a text for some seconds of processor time."""
    torch.manual_seed(0)
    layers = len(FAMILIES[family]["layer_types"])
    shape = SHAPE | FAMILIES[family] | {"num_hidden_layers": layers}
    config = transformers.CONFIG_MAPPING[family](**shape)
    model = transformers.AutoModelForCausalLM.from_config(config).float().train()
    optimiser = torch.optim.AdamW(model.parameters(), lr=2e-3)
    began = time.process_time()
    while time.process_time() - began < seconds:
        starts = torch.randint(0, len(text) - LENGTH, (BATCH,))
        ids = torch.stack([text[start : start + LENGTH] for start in starts])
        model(input_ids=ids, labels=ids, use_cache=False).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        optimiser.zero_grad()
    return model.eval()


def per_step(decoder: Decoder, prompts: list[list[int]], width: int) -> tuple[float, list[int]]:
    """Return tokens per step over prompts, and all tokens."""
    config = LookaheadConfig(budget=width, sources=WITHOUT_WINDOW)
    sampling = SamplingConfig(temperature=0.8, seed=3)  # most probable texts would repeat
    steps: list[Step] = []
    for prompt in prompts:
        store = DraftStore()
        strategy = make_strategy("lookahead", config, store)
        events = decoder.generate(prompt, strategy, sampling, Limits(TOKENS))
        steps += [event for event in events if isinstance(event, Step)]
    ids = [token.id for step in steps for token in step.tokens]
    return len(ids) / len(steps), ids


def step_time(decoder: Decoder, prompt: list[int], width: int, branches: bool) -> float:
    """Return milliseconds of processor time that a step of some tokens takes."""
    executor, draw, taken = decoder.executor, Random(0), []
    executor.cache.truncate(0)
    executor.run(layout.build_chunk(prompt, 0))
    executor.cache.keep(range(len(prompt)))
    text = [*prompt, 1]
    for number in range(25):
        tree = TokenTree()
        for node in range(width - 1):
            parent = node - 1 if node < 4 or not branches else draw.randrange(-1, node)
            tree.grow(TOP if parent < 0 else parent, node, "")
        start = executor.cache.length
        began = time.process_time()
        executor.run(layout.build(text[start:], start, Draft(tree)))
        pending = len(text) - start
        executor.cache.keep([*range(pending), *[pending + n for n in range(min(3, width - 1))]])
        if number > 4:
            taken.append(time.process_time() - began)
        text += [*range(min(3, width - 1)), 1]
    return 1000 * statistics.median(taken)


def main() -> int:
    parser = argument_parser(__doc__)
    parser.add_argument("--seconds", type=float, default=60, help="of training")
    args = parser.parse_args()
    torch.set_num_threads(1)
    transformers.utils.logging.set_verbosity_error()
    code = "".join(path.read_text() for path in sorted((ROOT / "ladecli").rglob("*.py")))
    text = torch.tensor(list(code.encode()))
    cut = len(text) * 9 // 10
    prompts = [text[at : at + PROMPT].tolist() for at in range(cut, len(text) - PROMPT, 8000)]
    figures: dict[str, Any] = {}
    keys = ("trees", "chains", "trees_ms", "chains_ms")
    print_head("family", "tokens of a step", *keys)
    for family in FAMILIES:
        model = trained(family, text[:cut], args.seconds)
        trees = load_decoder(model, join=False)
        chains = decoder_of(OwnCacheModel(model), trees.facts, trees.max_context)
        assert (trees.executor.model.drafts, chains.executor.model.drafts) == ("trees", "chains")
        answers = []
        for width in WIDTHS:
            row = figures.setdefault(family, {}).setdefault(width, {})
            for name, decoder in (("trees", trees), ("chains", chains)):
                row[name], ids = per_step(decoder, prompts, width)
                answers.append(ids)
                row[f"{name}_ms"] = step_time(decoder, prompts[0], width, name == "trees")
            print_row(family, width, *[row[key] for key in keys])
        assert all(one == other for one, other in itertools.pairwise(answers))
    save(args, figures)
    return 0


if __name__ == "__main__":
    sys.exit(main())
