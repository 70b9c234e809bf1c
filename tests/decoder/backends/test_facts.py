"""Known families: this fails if a new release of transformers has unknown ones."""

from __future__ import annotations

import pytest
from transformers import CONFIG_MAPPING
from transformers.models.auto import modeling_auto

from ladecli.decoder.backends.facts import UNTRIED, known_families, refusal

_NEWER = """
    apertus1p5_text bailing_hybrid beam dory dots3_note_text exaone flint granite_docling_text
    hy_v4_vl_text inkling2_loop_text inkling2_text internlm3 iquestcoder kolibri1 lara_mini lfm3
    mistral_large4_text molmo2_text muse_spark_text sarvam_mla sarvam_moe
"""
"""Families that transformers 5.17 does not have."""
FIX = (
    "python benchmarks/families.py --only {} says how it is decoded; then add it to FAMILIES"
    " (ladecli/decoder/model/families.py) or to a row of ladecli/decoder/backends/facts.py"
)


@pytest.mark.slow  # it imports some hundred configurations
def test_every_text_family_of_transformers_is_known() -> None:
    known = known_families() | {*UNTRIED.split()}
    assert known - {*CONFIG_MAPPING} <= {*_NEWER.split()}, "a name in the table is misspelt"
    types = {
        *modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
        *modeling_auto.MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES,
    }
    # The default configuration of this family fails its own checks.
    for name in sorted(types - known - {"gemma4_assistant"}):
        config = CONFIG_MAPPING[name]()
        family = config.get_text_config(decoder=True).model_type
        if family not in known and refusal(config) is None:
            pytest.fail(f"transformers has the family {family!r} now: {FIX.format(name)}")
