"""Models that are split over ranks: the same text, the part of each rank, and refusals."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import save_file

from ladecli.decoder import layout
from ladecli.decoder.backends.load import load_decoder
from ladecli.decoder.config import Limits, LookaheadConfig, SamplingConfig
from ladecli.decoder.decoder import Decoder
from ladecli.decoder.strategy import Draft
from ladecli.errors import LadeError, UsageError
from ladecli.models import placement
from ladecli.models.device import Device
from ladecli.models.load import load
from ladecli.options.model import ModelOptions, PlacementOptions
from tests.support import processes
from tests.support.decoding import ids_of, run
from tests.support.hub import plan
from tests.support.models import model_of, prompt_for, saved

pytestmark = pytest.mark.slow

ON_CPU = PlacementOptions(device="cpu")
PROMPT = prompt_for("llama")
FAMILIES = ("llama", "mixtral", "phi3")
"""Plain, with experts, and one whose ranks gather what they have computed."""
TIED = "llama-tied"
BROKEN = "cohere"
"""A family whose norms of heads are not split with the heads."""


def three_texts(decoder: Decoder) -> list[list[int]]:
    """Return texts that ranks and one process must agree on: plain, with lookahead, and sampled."""
    config = LookaheadConfig(window=4, ngram=4, guesses=4, budget=20)
    sampled = SamplingConfig(temperature=1.0, seed=3)
    settings = (("autoregressive", None), ("lookahead", None), ("lookahead", sampled))
    return [ids_of(run(decoder, PROMPT, x, config, y, Limits(16))) for x, y in settings]


def report(folder: str, ranks: int = 1) -> dict[str, Any]:
    """Return a rank's results for one model."""
    planned = plan(folder, ModelOptions(dtype="float32"), ON_CPU, split=ranks)
    try:
        model = load(planned).model
    except LadeError as error:
        return {"error": str(error)}
    parts = [x.to_local() if hasattr(x, "to_local") else x for x in model.parameters()]
    decoder = load_decoder(model)
    texts = three_texts(decoder)
    decoder.forget()
    return {
        "texts": texts,
        "split": (getattr(model, "tp_size", None) or 1) > 1,
        "held": sum(part.nbytes for part in parts),
        "estimated": planned.part.weight_bytes,
        "heads": decoder.executor.model.layer_shapes[0].heads,
        "estimated_heads": planned.part.kv_heads,
        "logits": decoder.executor.run(layout.build([5, 7, 11, 13], 0, Draft())).tolist(),
    }


def rank_of_two(rank: int, home: str, folders: list[str]) -> None:
    """A process that decodes with models of which it holds a part."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"file://{home}/meeting", rank=rank, world_size=2)
    reports = {Path(folder).name: report(folder, 2) for folder in folders}
    Path(home, f"{rank}.json").write_text(json.dumps(reports))
    dist.barrier()
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Return the results of two ranks and, for the last family, of one process, by family."""
    home = tmp_path_factory.mktemp("ranks")
    ids = {"vocab_size": 98}  # which two ranks can share equally
    folders = [saved(home / family, family, **ids) for family in (*FAMILIES, BROKEN)]
    folders.append(saved(home / TIED, "llama", tie_word_embeddings=True, **ids))
    ranks = [
        processes.SERVER.Process(target=rank_of_two, args=(n, str(home), folders), daemon=True)
        for n in (0, 1)
    ]
    for rank in ranks:
        rank.start()
    one = {Path(folder).name: report(folder) for folder in folders}
    for rank in ranks:
        rank.join()
    return [*(json.loads((home / f"{n}.json").read_text()) for n in (0, 1)), one]


@pytest.mark.parametrize("family", [*FAMILIES, TIED])
def test_ranks_that_share_a_model_say_what_one_process_says(
    family: str, reports: list[dict[str, Any]]
) -> None:
    """The size of each rank's part is known before loading."""
    first, second, one = (report[family] for report in reports)
    assert first["texts"] == second["texts"] == one["texts"]
    assert first["logits"] == second["logits"], "to the last bit"
    for rank in (first, second):
        assert rank["split"]
        assert rank["held"] == pytest.approx(rank["estimated"])
        assert rank["heads"] == rank["estimated_heads"]
        assert rank["heads"] == 1 or family != "llama", "of two"


def test_ranks_with_different_parts_all_refuse(reports: list[dict[str, Any]]) -> None:
    for rank in reports[:2]:
        assert "cannot be computed over 2 ranks: " in rank[BROKEN]["error"]
        assert "use --device-map auto or --parallel-mode lookahead" in rank[BROKEN]["error"]


WIDE = {"num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 8}


@pytest.mark.parametrize(
    ("family", "changes", "ranks", "named"),
    [
        ("gpt2", {}, 2, ["'gpt2'", "--parallel-mode lookahead"]),
        ("llama", WIDE, 3, ["8 key/value heads", "--parallel 2 or 4 or 8"]),
        ("llama", {"num_key_value_heads": 1}, 2, ["1 key/value head ", "--device-map auto"]),
        ("mixtral", {"intermediate_size": 47}, 2, ["47 feed-forward columns", "--device-map auto"]),
    ],
)
def test_models_that_cannot_be_split_are_refused_early(
    family: str, changes: dict[str, Any], ranks: int, named: list[str], tmp_path: Path
) -> None:
    config = model_of(family).config
    type(config)(**config.to_dict() | changes).save_pretrained(tmp_path)
    save_file({"unread": torch.zeros(1)}, tmp_path / "model.safetensors")
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(UsageError) as caught:
        plan(str(tmp_path), place=ON_CPU, split=ranks)
    assert all(part in str(caught.value) for part in named)


def test_packed_weights_do_not_go_with_ranks() -> None:
    with pytest.raises(UsageError, match=r"8bit .* --parallel-mode tensor.*leave"):
        plan("demo", ModelOptions(quantize="8bit"), ON_CPU, split=2)


def test_apple_gpus_hold_whole_models() -> None:
    apple = Device("mps", "mps", "Apple M4", 8 << 30)
    with pytest.raises(UsageError, match="use --parallel-mode lookahead"):
        placement.check("m", placement.Placement(apple, split=2), None)
