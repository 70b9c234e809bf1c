"""LoRA adapters that tests make."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import peft
import torch
import transformers


def make(base: str, folder: Path, seed: int = 0, rows: int | None = None, **form: Any) -> Path:
    """An adapter for a model, as peft saves one, with random weights that change the text; the
    model gets other `rows` of embeddings first."""
    model = transformers.AutoModelForCausalLM.from_pretrained(base)
    if rows is not None:
        model.resize_token_embeddings(rows, mean_resizing=False)
    stated = {"r": 4, "target_modules": ["q_proj", "v_proj", "down_proj"], **form}
    torch.manual_seed(seed)  # the same weights, whatever other tests have drawn
    tuned = peft.get_peft_model(model, peft.LoraConfig(task_type="CAUSAL_LM", **stated))
    for name, parameter in tuned.named_parameters():
        if "lora_B" in name or "modules_to_save" in name or "delta" in name:
            torch.nn.init.normal_(parameter, std=0.3)
    tuned.save_pretrained(folder)
    return folder
