"""One rank of a group that decodes with models it holds a part of; for `test_tensor_parallel`.

Arguments: this rank, how many there are, a file to meet at, a file for the findings, folders of
models.
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist

from ladecli import models
from ladecli.decoder import layout
from ladecli.decoder.load import load_decoder
from ladecli.decoder.strategy import Draft
from ladecli.errors import LadeError
from ladecli.options import LoadOptions

from .decoding import three_texts


def findings(folder: str, ranks: int) -> dict[str, object]:
    """What this rank has to say of one model."""
    options = LoadOptions(device="cpu", dtype="float32", tensor_parallel=ranks)
    planned = models.plan(folder, options)
    try:
        model = models.load(planned).model
    except LadeError as error:
        return {"error": str(error)}
    held = 0
    for parameter in model.parameters():
        mine = parameter.to_local() if hasattr(parameter, "to_local") else parameter
        held += mine.nbytes
    decoder = load_decoder(model)
    said = three_texts(decoder)
    decoder.forget()
    step = layout.build([5, 7, 11, 13], 0, Draft())
    logits = decoder.runner.run(step)
    return {
        "texts": said,
        "split": (getattr(model, "tp_size", None) or 1) > 1,
        "held": held,
        "estimated": planned.part.weight_bytes,
        "heads": decoder.runner.model.layer_shapes[0].heads,
        "estimated_heads": planned.part.kv_heads,
        "logits": hashlib.sha256(logits.contiguous().numpy().tobytes()).hexdigest(),
    }


if __name__ == "__main__":
    rank, ranks, meeting, report, *folders = sys.argv[1:]
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{meeting}", rank=int(rank), world_size=int(ranks)
    )
    found = {Path(folder).name: findings(folder, int(ranks)) for folder in folders}
    Path(report).write_text(json.dumps(found), encoding="utf-8")
    dist.barrier()
    dist.destroy_process_group()
