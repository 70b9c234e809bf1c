"""`model.generate(..., custom_generate=ladecli.lookahead)`: the same ids, and clear refusals."""

from __future__ import annotations

import contextlib
import copy
import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers
from transformers import DynamicCache
from transformers.models.llama.modeling_llama import LlamaMLP

import ladecli
from ladecli.decoder.backends.compat import cache_argument, returned_cache
from ladecli.profiles import user
from tests.support.models import model_of, new_model, prompt_for

# Our warnings come from within transformers' `generate`.
OURS = "error:.*(transformers' |; left out):UserWarning"
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings(OURS)]

CONFIG = ladecli.LookaheadConfig(4, 4, 4)


def own_model(family: str) -> Any:
    """Return a model that no other test uses."""
    model = copy.deepcopy(model_of(family))
    model.set_attn_implementation("sdpa")
    return model


def ask(model: Any, prompt: list[int] | None = None, **options: Any) -> list[int]:
    """Return the ids of lookahead inside transformers, by default for a prompt for Llama."""
    ids = torch.tensor([prompt or prompt_for("llama")])
    out = model.generate(ids, **{"custom_generate": ladecli.lookahead} | options)
    return [int(token) for token in out[0]]


SHORT: dict[str, Any] = {"do_sample": False, "max_new_tokens": 12}


def same_text(model: Any, prompt: list[int] | None = None, **options: Any) -> list[int]:
    """Check that `generate` and lookahead give the same text for a prompt, and return it."""
    settings = SHORT | {"eos_token_id": None, "pad_token_id": 0, **options}
    own = ask(model, prompt, custom_generate=None, **settings)
    assert ask(model, prompt, lade_config=CONFIG, **settings) == own
    return own


@pytest.mark.parametrize(
    ("family", "options"),
    [
        ("llama", {"max_new_tokens": 30}),
        ("mistral", {"max_new_tokens": 30}),
        ("gpt2", {"max_new_tokens": 30}),
        ("llama", {"max_length": 40, "max_new_tokens": None}),
        ("llama", {"max_new_tokens": 1}),
        ("llama", {"max_new_tokens": 9, "output_hidden_states": True}),
    ],
)
def test_greedy_equals_generate(family: str, options: dict[str, Any]) -> None:
    prompt = prompt_for(family)
    assert same_text(own_model(family), prompt, attention_mask=torch.ones(1, 24), **options)


@pytest.mark.parametrize("family", ["llama", "mamba"])
def test_a_cache_with_tokens_is_refused(family: str) -> None:
    """transformers creates a cache, too; a recurrent state has no length."""
    model, prompt = new_model(family), prompt_for(family)
    name, empty = cache_argument(model.forward), DynamicCache(config=model.config)
    own = ask(model, prompt, custom_generate=None, **SHORT)
    assert ask(model, prompt, **SHORT, **{name: empty}) == own
    filled = returned_cache(model(torch.tensor([prompt]), use_cache=True))
    with pytest.raises(ValueError, match="a cache that holds tokens"):
        ask(model, prompt, **SHORT, **{name: filled})


def test_sampling_depends_on_the_seed() -> None:
    settings = SHORT | {"do_sample": True, "top_k": 10, "temperature": 0.9}
    text = functools.partial(ask, own_model("llama"), **settings)
    assert text(lade_seed=3) == text(lade_seed=3, lade_config=CONFIG) != text(lade_seed=4)
    torch.manual_seed(0)
    first = text()
    torch.manual_seed(0)
    assert first == text()


class Streamer(list[Any]):
    """Records its input, with None for the end."""

    def put(self, ids: torch.Tensor) -> None:
        self.append(ids.flatten().tolist())

    def end(self) -> None:
        self.append(None)


def test_the_streamer_gets_every_token_in_order() -> None:
    model, plain = own_model("llama"), Streamer()
    ask(model, custom_generate=None, streamer=plain, **SHORT)
    partial = functools.partial(ladecli.lookahead, lade_config=CONFIG)
    for function in (ladecli.lookahead, partial):
        streamer = Streamer()
        ask(model, custom_generate=function, lade_streamer=streamer, **SHORT)
        assert streamer == plain


def test_a_context_shorter_than_max_length_is_reported() -> None:
    model = own_model("gpt2")
    before = model.config._attn_implementation
    with pytest.warns(UserWarning, match="ends at the model's context of 128 tokens"):
        ids = ask(model, max_length=200, eos_token_id=None)
    assert len(ids) == 128
    assert model.config._attn_implementation == before, "the model gets its attention back"


def scale(module: Any, args: Any, out: Any) -> Any:
    """A hook that treats all positions alike."""
    return (1.5 * out[0], *out[1:]) if isinstance(out, tuple) else 1.5 * out


def steer_last(module: Any, args: Any, out: Any) -> Any:
    """A hook that changes only the newest position of every forward."""
    out[:, -1] *= 1.7
    return out


class OtherMLP(LlamaMLP):  # type: ignore[misc]
    """A replacement with all parts of the original MLP."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 1.5 * super().forward(x)  # type: ignore[no-any-return]


def patch(layer: Any) -> None:
    before = layer.mlp.forward

    @functools.wraps(before)
    def forward(x: torch.Tensor) -> torch.Tensor:
        return 1.5 * before(x)  # type: ignore[no-any-return]

    layer.mlp.forward = forward


def change_weights(layer: Any) -> None:
    with torch.no_grad():
        layer.input_layernorm.weight.mul_(1.7)


def flip(owner: Any, name: str) -> None:
    setattr(owner, name, torch.nn.Parameter(getattr(owner, name).detach().flip(0)))


CHANGES: dict[str, Callable[[Any], Any]] = {
    "layer": lambda layer: layer.register_forward_hook(scale),
    "attention": lambda layer: layer.self_attn.register_forward_hook(scale),
    "norm": lambda layer: layer.input_layernorm.register_forward_hook(scale),
    "mlp": lambda layer: layer.mlp.register_forward_hook(scale),
    "linear": lambda layer: layer.mlp.up_proj.register_forward_hook(scale),
    "input": lambda layer: layer.mlp.register_forward_pre_hook(lambda _, x: (2.0 * x[0],)),
    "newest": lambda layer: layer.register_forward_hook(steer_last),
    "patched": patch,
    "replaced": lambda layer: setattr(layer, "mlp", torch.nn.Sequential(layer.mlp, layer.mlp)),
    "of another class": lambda layer: setattr(layer.mlp, "__class__", OtherMLP),
    "weights": change_weights,
    "another weight": lambda layer: flip(layer.mlp.up_proj, "weight"),
    "another weight's data": lambda layer: flip(layer.mlp.down_proj.weight, "data"),
    "an activation": lambda layer: setattr(layer.mlp, "act_fn", torch.nn.ReLU()),
    "attribute: scaling": lambda layer: setattr(layer.self_attn, "scaling", 0.2),
    "attribute: epsilon": lambda layer: setattr(layer.input_layernorm, "variance_epsilon", 0.5),
    "attribute of the config": lambda x: setattr(x.self_attn.config, "num_hidden_layers", 1),
}
SLOWER = "transformers' (forward|own decoding)"
"""The text of a warning, except for weights."""


@pytest.mark.parametrize("change", CHANGES)
def test_changes_of_a_model_apply_from_the_next_call(change: str) -> None:
    model = own_model("llama")
    before = same_text(model)
    hook = CHANGES[change](model.model.layers[0])
    warned = pytest.warns(UserWarning, match=SLOWER)
    with contextlib.nullcontext() if "weight" in change or "attribute" in change else warned:
        assert same_text(model) != before
    assert same_text(model) != before  # said once; the tests take a second warning for an error
    if hook is not None:
        hook.remove()
        assert same_text(model) == before


def test_an_earlier_longer_text_does_not_change_frequencies() -> None:
    model, long = own_model("llama_dynamic"), {"max_new_tokens": 40}
    text = same_text(model, **long)
    ask(model, custom_generate=None, **long)  # which leaves those of its end
    assert same_text(model, prompt_for("llama", 30), **long) != text


def test_positions_are_those_of_generate() -> None:
    model = new_model("xlm-roberta", is_decoder=True)
    with pytest.warns(UserWarning, match="chains of drafts"):
        same_text(model)


@pytest.mark.filterwarnings("ignore:torch.ao.quantization")
def test_products_whose_rows_depend_on_each_other() -> None:
    model = torch.ao.quantization.quantize_dynamic(own_model("llama"), {torch.nn.Linear})
    with pytest.warns(UserWarning, match=SLOWER):
        same_text(model, max_new_tokens=24)


def test_hooks_may_change_their_behaviour_between_calls() -> None:
    model, strength = own_model("llama"), 0.0

    def steer(module: Any, args: Any, out: Any) -> Any:
        out[:, -1] += strength
        return out

    model.model.layers[0].register_forward_hook(steer)
    with pytest.warns(UserWarning, match="transformers' forward"):
        before = same_text(model)
    strength = 3.0
    with pytest.warns(UserWarning, match="transformers' own decoding"):
        assert same_text(model) != before


def test_adapters_are_switched() -> None:
    peft, model = pytest.importorskip("peft"), own_model("llama")
    before = same_text(model)
    settings = {"target_modules": ["q_proj", "down_proj"], "init_lora_weights": False}
    config = peft.LoraConfig(lora_alpha=32, **settings)
    adapted = peft.get_peft_model(model, config, "first")
    first = same_text(model)
    adapted.add_adapter("second", config)
    adapted.set_adapter("second")
    second = same_text(model)
    assert len({*map(tuple, (before, first, second))}) == 3
    adapted.merge_adapter()
    assert same_text(model) == second
    adapted.unmerge_adapter()
    adapted.set_adapter("first")
    assert same_text(model) == first
    with adapted.disable_adapter():
        assert same_text(model) == before


@pytest.mark.parametrize("kind", ["lora", "prompt_tuning", "prefix_tuning"])
def test_models_of_peft(kind: str) -> None:
    """Learned prompts are not tokens: peft adds them when inputs are prepared."""
    peft, model = pytest.importorskip("peft"), own_model("llama")
    before, settings = same_text(model), {"init_lora_weights": False, "target_modules": ["q_proj"]}
    torch.manual_seed(0)
    settings = settings if kind == "lora" else {"num_virtual_tokens": 4}
    settings |= {"peft_type": kind.upper(), "task_type": "CAUSAL_LM"}
    adapted = peft.get_peft_model(model, peft.get_peft_config(settings)).eval()
    if kind == "lora":
        assert same_text(adapted) != before
        return
    with pytest.warns(UserWarning, match="own decoding runs"):
        same_text(adapted)
    assert same_text(model) == before, "the model alone is as it was"


def test_hooks_of_libraries_and_compiled_forwards_keep_drafts() -> None:
    """transformers leaves hooks that record hidden states, which cause no warning."""
    model = own_model("llama")
    model(torch.tensor([[1, 2]]), output_hidden_states=True, output_attentions=True)
    model.forward = torch.compile(model.forward, backend="eager")
    ask(model, **SHORT)


def test_notices_about_settings_are_warnings() -> None:
    model = own_model("llama")
    user.folder().mkdir(parents=True)
    user.path_of("cpu").write_text("[", encoding="utf-8")
    with pytest.warns(UserWarning, match="profile cpu is not valid TOML.*; left out"):
        ask(model, **SHORT)
    ask(model, **SHORT)  # said once; the tests take a second warning for an error


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_beams": 2}, "num_beams=2; pass num_beams=1"),
        ({"attention_mask": torch.tensor([[0] + [1] * 23])}, "padding: "),
        ({"position_ids": torch.arange(24)[None] + 3}, "position_ids that do not count from 0"),
    ],
)
def test_unsupported_arguments_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ask(own_model("llama"), max_new_tokens=5, **options)


@pytest.mark.parametrize(
    ("ids", "options", "message"),
    [
        ([[1, 2]], {"pixel_values": torch.zeros(1)}, "does not support pixel_values"),
        ([[1, 2]], {"inputs_embeds": torch.zeros(1)}, "does not support inputs_embeds"),
        ([[1, 2]], {"assistant_model": torch.zeros(1)}, "does not support assistant_model"),
        ([[1, 2]], {"streamer": Streamer()}, "streamer; pass it as lade_streamer"),
        ([[1, 2], [3, 4]], {}, "a batch of 2 prompts"),
        ([[1, 2]], {"generation_config": None}, "call it through"),
    ],
)
def test_inputs_other_than_the_ids_of_one_text_are_refused(
    ids: list[list[int]], options: dict[str, Any], message: str
) -> None:
    """A model for images would answer without them."""
    options = {"generation_config": transformers.GenerationConfig(), **options}
    with pytest.raises(ValueError, match=message):
        ladecli.lookahead(own_model("llama"), torch.tensor(ids), **options)
