"""Errors that need no torch are reported before its import, which takes seconds."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import pytest

import ladecli
from ladecli.options import COMMANDS
from tests.support import new_python
from tests.support.hub import DEMO, POINTER, copied, holding, without


def test_refusals_and_what_needs_no_model_import_no_torch(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "whole", "w") as archive:
        archive.writestr("data.pkl", b"0" * 999)
    pickled = (tmp_path / "whole").read_bytes()[:-30]
    (tmp_path / "broken").write_text("{% for %}")
    model, template = "model.safetensors", holding("chat_template.jinja", "{% if %}")
    unzipped = without(model), holding("pytorch_model.bin", pickled)
    cut = holding(model, (DEMO / model).read_bytes()[:-9])
    cases = {
        ("owner/absent",): "owner/absent is not on this machine, and HF_HUB_OFFLINE forbids",
        ("owner/absent", "--offline"): "owner/absent is not on this machine, and --offline forbids",
        ("What is up?",): "What is up? is not a model name",
        ("my model",): "a prompt stands behind it in lade chat, behind --prompt in lade generate",
        ("demo", "--device", "cuda"): "no CUDA device",
        ("demo", "--device", "mps"): "no Apple GPU",
        ("demo", "--attention", "flash"): "attention 'flash' needs",
        ("demo", "--attention", "triton"): "attention 'triton' needs",
        ("demo", "--cuda-graphs"): "no CUDA graphs",
        ("demo", "--max-context", "2"): "max-context must be at least 16, not 2",
        (copied(DEMO, tmp_path / "cut", cut),): "model.safetensors is damaged or cut off",
        (copied(DEMO, tmp_path / "zip", *unzipped),): "pytorch_model.bin is damaged or cut off",
        (copied(DEMO, tmp_path / "lfs", holding(model, POINTER)),): "run git lfs pull",
        (copied(DEMO, tmp_path / "template", template),): "the model's chat template is broken",
        ("demo", "--chat-template", str(tmp_path / "broken")): "broken is broken",
    }
    helped = ([], *([name] for name in COMMANDS if " " not in name))
    without_model = [
        *([*name, "--help"] for name in helped),
        *(["--version"], []),
        *([name, "./nowhere"] for name in ("generate", "chat", "doctor", "serve")),
    ]
    refused = (("generate", *arguments, "-p", "a") for arguments in cases)
    called = iter(new_python.calls(*without_model, ["models"], *refused))
    for arguments in without_model:
        assert not next(called).imported & {"torch", "transformers", "numpy"}, arguments
    assert not next(called).imported & {"torch", "transformers"}, "models"
    for call, line in zip(called, cases.values(), strict=True):
        assert line in call.refused(call.code)
        assert call.code in (1, 2)
        assert not call.imported & {"torch", "transformers"}


@pytest.mark.slow
def test_a_broken_template_is_ignored_if_unused(lade: Any, tmp_path: Path) -> None:
    folder = copied(DEMO, tmp_path / "model", holding("chat_template.jinja", "{% if %}"))
    assert lade("generate", folder, "--raw", "-p", "def ", "-n", "4").code == 0
    assert ladecli.load(folder).generate("def ", max_new_tokens=4)


@pytest.mark.slow
def test_a_template_may_have_generation_tags(lade: Any, tmp_path: Path) -> None:
    template = "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}"
    template += "{% if not loop.first %}{% break %}{% endif %}{% endfor %}"
    folder = copied(DEMO, tmp_path / "model", holding("chat_template.jinja", template))
    assert lade("generate", folder, "-p", "def ", "-n", "4").code == 0
