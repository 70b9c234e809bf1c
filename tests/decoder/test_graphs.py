"""Captured steps: the same text as steps that run one operation at a time, and ways to fail."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from ladecli.decoder import graphs, layout, static_step
from ladecli.decoder.capture import Captured, Work
from ladecli.decoder.config import LookaheadConfig, SamplingConfig, captured_width
from ladecli.decoder.engine import Decoder, Limits
from ladecli.decoder.events import Step
from ladecli.decoder.graphs import GraphRunner
from ladecli.decoder.kv_cache import KVCache
from ladecli.decoder.lean import fused
from ladecli.decoder.probe import try_capture
from ladecli.decoder.readout import Wanted
from ladecli.decoder.readout.choosing import draws_from_all
from ladecli.decoder.strategies import make_strategy
from ladecli.decoder.support import examine
from ladecli.decoder.tree import TokenTree

from ..decoding import ids_of, run
from ..families import FAMILIES, model_of, prompt_for
from ..oracle import OracleModel, scrambles, spells
from .tracing import Again, Repeated, Tracing

SIMILAR = {"llama3", "qwen3", "gemma", "phi", "olmo2", "granite", "cohere", "starcoder2"}
"""Families whose forward takes the same ways as another one's."""
CONFIG = LookaheadConfig(3, 3, 3, 12, widths=(1, 8, 12))
NEW = Limits(16)


@pytest.fixture(autouse=True)
def _trusting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Decoders capture without a trial; tests of the trial call it by its name."""
    monkeypatch.setattr("ladecli.decoder.engine.try_capture", lambda *_: None)


@pytest.mark.parametrize(
    ("family", "attention"),
    [("llama", "reference"), ("mistral", "sdpa"), ("gemma2", "sdpa"), ("gpt2", "sdpa")],
)
def test_captured_steps_give_the_same_text(family: str, attention: str) -> None:
    model, prompt = model_of(family), prompt_for(family, 17)
    expected = ids_of(run(Decoder(model, attention=attention), prompt, limits=NEW))
    capture = Tracing()
    decoder = Decoder(model, attention=attention, capture=capture)
    assert ids_of(run(decoder, prompt, limits=NEW)) == expected
    assert ids_of(run(decoder, prompt, "lookahead", CONFIG, limits=NEW)) == expected
    assert decoder.runner.trouble is None
    assert 2 <= capture.captures <= 8, "a few kinds of steps, and none of them twice"


@pytest.mark.parametrize("family", sorted({*FAMILIES} - SIMILAR))
def test_a_trial_finds_who_can_be_captured(family: str) -> None:
    decoder = Decoder(model_of(family))
    said = try_capture(model_of(family), decoder.facts, "auto", Tracing())
    if family == "llama_dynamic":
        assert said is not None
        assert "value out of a tracing tensor" in said
    elif family != "phi3_long":  # transformers 5.17 asks the device for the longest position
        assert said is None


class Baked(OracleModel):
    """Says something else by the length of the text, which its Python asks the cache for."""

    def forward(self, past_key_values: Any, input_ids: torch.Tensor, **step: Any) -> Any:
        keys = input_ids[0].float()[None, None, :, None]
        past_key_values.update(keys, keys, 0)
        rows = torch.nn.functional.one_hot(
            (input_ids[0] + past_key_values.get_seq_length()) % 100, 100
        )
        return SimpleNamespace(logits=rows.float()[None])


def test_a_model_that_counts_on_its_own_is_found_out() -> None:
    model: Any = Baked(lambda seen: 0)
    model.dtype = torch.float32
    said = try_capture(model, examine(model.config), "auto", Tracing())
    assert said is not None
    assert said.startswith("captured steps were off by")


def test_a_model_that_fails_the_trial_runs_as_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    model, prompt = model_of("llama_dynamic"), prompt_for("llama_dynamic", 9)
    expected = ids_of(run(Decoder(model), prompt, limits=Limits(12)))
    decoder = Decoder(model, capture=Tracing())
    assert ids_of(run(decoder, prompt, limits=Limits(12))) == expected
    assert decoder.runner.trouble is not None
    assert "\n" not in decoder.runner.trouble
    assert decoder.runner.widths(60) == ()


def test_every_token_sees_its_own_text_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    # The oracle asserts it for every token that is fed, padding included.
    monkeypatch.setattr(graphs, "LEAST_REACH", 64)
    monkeypatch.setattr(graphs, "FIRST_SLOTS", 128)
    model: Any = OracleModel(scrambles())
    expected = ids_of(run(Decoder(model), [5, 6, 7], limits=Limits(60)))
    capture = Again()
    decoder = Decoder(model, capture=capture)
    config = LookaheadConfig(3, 3, 3, 20)
    for strategy in ("lookahead", "jacobi", "prompt-lookup", "autoregressive"):
        before = capture.replays
        events = run(decoder, [5, 6, 7], strategy, config, limits=Limits(60))
        assert ids_of(events) == expected
        steps = [event for event in events if isinstance(event, Step)]
        # All but the first, which allocates the cache.
        assert capture.replays - before >= len(steps) - 1


def test_what_a_step_cannot_move_is_moved_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (graphs, static_step):
        monkeypatch.setattr(module, "MOVED", 1)
    text = [(7 * i) % 90 + 1 for i in range(200)]
    model: Any = OracleModel(spells(text))
    decoder = Decoder(model, capture=Again())
    strategy = make_strategy("lookahead", LookaheadConfig(3, 3, 3, 20))
    moved, keep = set(), decoder.cache.keep

    def watched(kept: Sequence[int]) -> int:
        length, moves = keep(kept), decoder.cache.moves
        moved.add(len(moves.slots) if moves is not None else 0)
        return length

    monkeypatch.setattr(decoder.cache, "keep", watched)
    events = [*decoder.generate(text[:4], strategy, None, Limits(150))]
    assert [*text[:4], *ids_of(events)] == text[:154]
    assert {0, 2} <= moved, "more than one, by the way"


def runner_of(decoder: Decoder) -> GraphRunner:
    runner = decoder.runner
    assert isinstance(runner, GraphRunner)
    return runner


def feed(runner: GraphRunner, *widths: int) -> None:
    """Steps of these widths behind what is cached; none of their tokens is kept."""
    for width in widths:
        tree = TokenTree()
        tree.add([*range(1, width)], "trial", limit=width)
        step = layout.build([1], runner.cache.length, layout.Draft(tree))
        runner.start(step, Wanted()).result()


def test_the_step_that_nobody_asked_for_longest_goes_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(graphs, "KEPT", 2)
    decoder = Decoder(model_of("llama"), capture=Again())
    run(decoder, [1, 2, 3], limits=Limits(1))
    runner = runner_of(decoder)
    runner.forget()
    feed(runner, 1, 4, 1, 8)
    assert [kind.width for kind in runner._steps] == [1, 8]


def test_who_reads_the_length_on_the_device_is_handed_all_slots(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(graphs, "LEAST_REACH", 64)
    decoder = Decoder(model_of("llama"), capture=Again())
    run(decoder, [1, 2, 3], limits=Limits(1))
    assert decoder.cache.slots == 512, "from the start, all that its context can need"
    for backends, reach in (({"reference"}, decoder.cache.slots), ({"triton"}, 64)):
        monkeypatch.setattr(graphs, "READS_LENGTH", backends)
        runner = GraphRunner(model_of("llama"), decoder.cache, "reference", Again())
        feed(runner, 1, 4)
        assert [kind.reach for kind in runner._steps] == [reach] * 2
        decoder.cache.length = 60
        runner.forget()
        feed(runner, 4, 5)
        assert [kind.reach for kind in runner._steps] == [reach, max(reach, 128)]
        decoder.cache.length = 3


def test_what_is_left_to_be_moved_is_moved_once() -> None:
    """A step that is being captured runs more often than that."""
    model: Any = OracleModel(scrambles())
    runner = GraphRunner(model, KVCache(1, 256), "reference", Again())
    runner.forward(layout.build_chunk([1, 2, 3], 0))
    runner.cache.keep(range(3))
    tree = TokenTree()
    tree.add([5], "trial", limit=2)
    tree.add([6], "trial", limit=2)
    runner.start(layout.build([4], 3, layout.Draft(tree)), Wanted()).result()
    runner.cache.keep([0, 2])
    assert runner.cache.moves is not None
    runner.start(layout.build([7], 5, layout.Draft()), Wanted()).result()
    assert model.steps[-1][0] == (1, 2, 3, 4, 6, 7)


def test_captured_steps_do_not_outlive_the_memory_that_they_write_to() -> None:
    model, first, second = model_of("llama"), prompt_for("llama", 9), [4, 5, 6]
    expected = ids_of(run(Decoder(model), second, limits=Limits(6)))
    decoder = Decoder(model, capture=Tracing())
    run(decoder, first, limits=Limits(6))
    slots = decoder.cache.slots
    decoder.cache.release()
    # As many slots as before, so that steps are of the same kind.
    decoder.cache.first = slots
    assert ids_of(run(decoder, second, limits=Limits(6))) == expected
    assert decoder.cache.slots == slots


def test_another_seed_needs_no_other_step() -> None:
    decoder = Decoder(model_of("llama"), capture=Again())
    for seed in (1, 2):
        run(decoder, prompt_for("llama", 9), sampling=SamplingConfig(0.9, seed=seed))
        assert len(runner_of(decoder)._steps) == 1


def test_logits_that_nobody_looks_at_are_not_kept() -> None:
    decoder = Decoder(model_of("llama"), capture=Again())
    run(decoder, prompt_for("llama", 9), "lookahead", CONFIG)
    assert runner_of(decoder)._steps
    assert not runner_of(decoder)._logits


SAMPLINGS = (
    SamplingConfig(0.9, seed=3),
    SamplingConfig(0.7, top_k=5, top_p=0.8, seed=4),
    SamplingConfig(1.3, min_p=0.1, repetition_penalty=1.2, seed=5),
    SamplingConfig(0.9, repetition_penalty=1.4, seed=6),
    SamplingConfig(repetition_penalty=1.3),
)


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_drawn_on_the_device_the_text_is_the_same(sampling: SamplingConfig) -> None:
    model, prompt = model_of("llama"), prompt_for("llama", 9)
    expected = ids_of(run(Decoder(model), prompt, sampling=sampling))
    # What somebody looks at row by row has to be where the graph leaves it.
    certain = sampling.greedy or draws_from_all(sampling)
    decoder = Decoder(model, capture=Tracing() if certain else Again())
    assert ids_of(run(decoder, prompt, sampling=sampling)) == expected
    assert ids_of(run(decoder, prompt, "lookahead", CONFIG, sampling)) == expected
    drawn = {kind.sampling is not None for kind in runner_of(decoder)._steps}
    assert drawn == {not sampling.greedy}


class BreaksOff(Again):
    """Every third step runs out of memory before anything of it is done."""

    def __init__(self) -> None:
        super().__init__()
        self.launches = 0

    def capture(self, work: Work) -> Captured:
        made: Any = super().capture(work)
        replay = made.replay

        def replayed() -> None:
            self.launches += 1
            if self.launches % 3 == 0:
                raise torch.OutOfMemoryError("out of memory")
            replay()

        made.replay = replayed
        return made


def test_what_joined_a_text_is_told_once_it_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    # Steps do not stay narrow.
    monkeypatch.setattr("ladecli.decoder.memory.Allowance.shrink", lambda *_: True)
    model, prompt, capture = model_of("llama"), prompt_for("llama", 9), BreaksOff()
    sampling = SamplingConfig(repetition_penalty=1.9)
    expected = ids_of(run(Decoder(model), prompt, sampling=sampling))
    decoder = Decoder(model, capture=capture)
    assert ids_of(run(decoder, prompt, "lookahead", CONFIG, sampling, Limits(40))) == expected
    assert capture.launches > 6
    seen = runner_of(decoder)._seen
    assert len(seen.joined(seen._text, most=99)) <= CONFIG.ngram, "the last step's tokens alone"


def test_a_text_grows_through_reaches_and_a_growing_cache(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(graphs, "LEAST_REACH", 64)
    monkeypatch.setattr(graphs, "FIRST_SLOTS", 0)
    monkeypatch.setattr("ladecli.decoder.kv_cache.GROWTH", 16)
    model, prompt = model_of("llama"), prompt_for("llama", 9)
    expected = ids_of(run(Decoder(model), prompt, limits=Limits(90)))
    capture = Tracing()
    decoder = Decoder(model, capture=capture)
    editions = set()
    config = replace(CONFIG, widths=(1, 12))
    strategy = make_strategy("lookahead", config)
    found = []
    for event in decoder.generate(prompt, strategy, None, Limits(90)):
        editions.add(decoder.cache.edition)
        found.append(event)
    assert ids_of(found) == expected
    assert len(editions) >= 3, "the cache was to grow"
    assert capture.captures >= 3


def test_what_fails_later_falls_back_with_a_notice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused, "available", lambda _: True)
    model, prompt = model_of("llama"), prompt_for("llama", 9)
    expected = ids_of(run(Decoder(model), prompt))
    # Whatever is given up of ours, it fails.
    why = "operation not permitted when stream is capturing"
    capture = Again(*[RuntimeError(f"{why}\nmore")] * 9)
    decoder = Decoder(model, capture=capture)
    assert decoder.runner.trouble is None
    assert ids_of(run(decoder, prompt, "lookahead", CONFIG)) == expected
    assert capture.replays == 0
    assert decoder.runner.trouble == why
    assert decoder.runner.given_up is None, "ours was not to blame"
    assert len(capture.fails) == 9 - 2, "with kernels, and without"
    assert decoder.runner.widths(60) == (1, 2, 4, 8, 16, 24, 32, 48, 60)
    assert not decoder.runner.captures


def test_without_memory_for_one_kind_of_step_the_others_are_captured() -> None:
    model, prompt = model_of("llama"), prompt_for("llama", 9)
    expected = ids_of(run(Decoder(model), prompt))
    capture = Again(torch.OutOfMemoryError("CUDA out of memory"))
    decoder = Decoder(model, capture=capture)
    assert ids_of(run(decoder, prompt, "lookahead", CONFIG)) == expected
    assert decoder.runner.trouble is None
    assert capture.replays > 0


def test_what_there_is_no_memory_for_is_tried_once() -> None:
    prompt = prompt_for("llama", 9)
    capture = Again(*[torch.OutOfMemoryError("CUDA out of memory")] * 99)
    decoder = Decoder(model_of("llama"), capture=capture)
    run(decoder, prompt, "lookahead", CONFIG)
    assert 99 - len(capture.fails) == len(runner_of(decoder)._no_memory) < 9
    decoder.forget()
    capture.fails.clear()
    run(decoder, prompt, "lookahead", CONFIG)
    assert capture.replays, "but again where all memory was given back"


@pytest.mark.parametrize("when", ["before", "behind"])
def test_ctrl_c_beside_a_replay_leaves_a_cache_that_holds_what_it_says(
    when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = [(7 * i) % 90 + 1 for i in range(120)]
    model: Any = OracleModel(spells(text))
    decoder = Decoder(model, capture=Again())
    strategy = make_strategy("lookahead", LookaheadConfig(3, 3, 3, 20))
    events = decoder.generate(text[:4], strategy, None, Limits(100))
    committed, real, starts = text[:4], Repeated.replay, []

    def broken(self: Repeated) -> None:
        moves = decoder.cache.moves
        if moves is None or when == "behind":
            real(self)
        if moves is not None:
            starts.append(moves.start)
            raise KeyboardInterrupt

    with monkeypatch.context() as patch, contextlib.suppress(KeyboardInterrupt):
        patch.setattr(Repeated, "replay", broken)
        for event in events:
            committed += [token.id for token in event.tokens] if isinstance(event, Step) else []
    # Accepted keys were to be moved, and nobody can tell whether they were.
    assert [decoder.cache.length] == starts
    again = ids_of(run(decoder, committed, limits=Limits(30)))
    assert again == text[len(committed) : len(committed) + 30]


def test_memory_goes_back_and_captured_steps_with_it() -> None:
    model, prompt = model_of("llama"), prompt_for("llama", 9)
    decoder = Decoder(model, capture=Again())
    run(decoder, prompt, "lookahead", CONFIG)
    runner = runner_of(decoder)
    kept = len(runner._steps)
    assert kept
    decoder.forget(keep_memory=True)
    assert len(runner._steps) == kept
    assert decoder.cache.tensors is not None
    decoder.forget()
    assert not runner._steps
    assert decoder.cache.tensors is None


@pytest.mark.parametrize(
    ("limit", "widths"),
    [(1, (1,)), (12, (1, 2, 4, 8, 12)), (60, (1, 2, 4, 8, 16, 24, 32, 48, 60))],
)
def test_widths_end_at_the_budget(limit: int, widths: tuple[int, ...]) -> None:
    assert Decoder(model_of("llama"), capture=Again()).runner.widths(limit) == widths


@pytest.mark.parametrize(
    ("tokens", "width"), [(1, 1), (3, 4), (60, 64), (128, 128), (129, 256), (300, 384)]
)
def test_any_step_has_a_width_that_holds_it(tokens: int, width: int) -> None:
    assert captured_width(tokens) == width


def test_the_step_that_ends_a_prompt_is_not_captured() -> None:
    model, capture = model_of("llama"), Again()
    decoder = Decoder(model, capture=capture)
    # There is a cache then, which a step cannot be captured without.
    run(decoder, [1, 2, 3], limits=Limits(1))
    for length, replays in ((60, 0), (20, 1)):
        decoder.forget(keep_memory=True)
        prompt = prompt_for("llama", length)
        events = run(decoder, prompt, "lookahead", CONFIG, limits=Limits(1))
        assert ids_of(events) == ids_of(run(Decoder(model), prompt, limits=Limits(1)))
        assert capture.replays == replays


def compiling(monkeypatch: pytest.MonkeyPatch, compiled: Any) -> None:
    """Let torch.compile of a model be something that takes no minutes."""
    monkeypatch.setattr(torch, "compile", lambda model, dynamic: compiled(model))


def test_a_compiled_forward_is_what_is_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    fed: list[int] = []

    def compiled(model: Any) -> Any:
        def feed(**inputs: Any) -> Any:
            fed.append(inputs["input_ids"].shape[1])
            return model(**inputs)

        return feed

    compiling(monkeypatch, compiled)
    model, prompt = model_of("llama"), prompt_for("llama", 9)
    expected = ids_of(run(Decoder(model), prompt))
    decoder = Decoder(model, capture=Again(), compiled=True)
    assert ids_of(run(decoder, prompt, "lookahead", CONFIG)) == expected
    assert ids_of(run(decoder, prompt)) == expected
    assert decoder.runner.compiles
    # Fewer widths than without: each of them has to be compiled.
    assert {*fed} == {1, 16}
    assert decoder.runner.widths(60) == (1, 16, 60)


def test_without_a_compiler_steps_are_captured_as_they_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(model: Any) -> Any:
        def feed(**_inputs: Any) -> Any:
            raise RuntimeError("no working C compiler was found\nmore")

        return feed

    compiling(monkeypatch, broken)
    model, prompt = model_of("llama"), prompt_for("llama", 9)
    expected = ids_of(run(Decoder(model), prompt))
    capture = Again()
    decoder = Decoder(model, capture=capture, compiled=True)
    assert ids_of(run(decoder, prompt, "lookahead", CONFIG)) == expected
    assert capture.replays > 0
    assert (decoder.runner.uncompiled, decoder.runner.trouble) == (
        "no working C compiler was found",
        None,
    )
    assert not decoder.runner.compiles
