"""The JSON files of a model's folder: which of them is damaged."""

from __future__ import annotations

import json
from pathlib import Path

GENERATION = "generation_config.json"
_WHOLE, _INDEX = "model.safetensors", "model.safetensors.index.json"
NAMES = (
    *("config.json", GENERATION, "tokenizer_config.json", "special_tokens_map.json"),
    *(_INDEX, "tokenizer.json"),
)
"""Those that transformers reads, which all hold objects."""


def damage(folder: Path, names: tuple[str, ...] = NAMES) -> str | None:
    """What is wrong with the first of these files that is there and is no JSON object.

    Returns:
        The file's name and a reason, to be read behind the model's name; None if all are whole.
    """
    for name in names:
        if name == _INDEX and (folder / _WHOLE).is_file():
            continue  # nobody looks at it
        try:
            found = json.loads((folder / name).read_text(encoding="utf-8"))
        except FileNotFoundError:
            continue
        except OSError as error:
            return f"{name} cannot be read ({error.strerror})"
        except (ValueError, RecursionError) as error:
            return f"{name} is damaged ({error})"
        if not isinstance(found, dict):
            return f"{name} is damaged (it is no JSON object)"
    return None
