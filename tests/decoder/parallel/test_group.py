"""Groups: several ranks say, token for token, what one says; and notice when they cannot."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from ladecli.decoder.config import SOURCES, LookaheadConfig, SamplingConfig
from ladecli.decoder.draft_state import DraftState
from ladecli.decoder.engine import Decoder, Limits
from ladecli.decoder.errors import ConfigError, NoMemoryError, RankError
from ladecli.decoder.events import Event, Finished, Prefill, Squeezed, Started, Step, Token
from ladecli.decoder.layout import Draft, StepLayout
from ladecli.decoder.parallel.deal import Share
from ladecli.decoder.parallel.group import Finding, Shortage
from ladecli.decoder.parallel.threads import Threads, simulate
from ladecli.decoder.parallel.together import Branches, Copies
from ladecli.decoder.step_cost import StepCost
from ladecli.decoder.strategies import make_strategy
from ladecli.decoder.successors import Successors
from ladecli.decoder.tree import ROOT, TokenTree
from ladecli.decoder.verify import Verdict

from ...decoding import ids_of
from ...families import FAMILIES, model_of, prompt_for
from ...oracle import OracleModel, scrambles, spells
from ..tracing import Again

PAPER = ("trajectory",)
CONFIGS = {
    "paper": LookaheadConfig(5, 4, 5, sources=PAPER),
    "two rows": LookaheadConfig(9, 3, 6, sources=PAPER),
    "wide": LookaheadConfig(20, 2, 9, sources=PAPER),
    "all": LookaheadConfig(5, 4, 5, 30),
    "narrow": LookaheadConfig(2, 3, 2, 8),
    "no window": LookaheadConfig(5, 4, 5, 30, sources=("context", "recycled")),
    "static": LookaheadConfig(4, 4, 4, 40, widths=(1, 6, 14, 20, 40)),
    "costly": LookaheadConfig(4, 4, 4, 40, step_cost=StepCost((1, 64), (0,), ((1.0, 3.0),))),
}
SAMPLINGS = {
    "greedy": SamplingConfig(),
    "sampled": SamplingConfig(temperature=0.8, top_k=20, top_p=0.95, seed=5),
    "penalized": SamplingConfig(repetition_penalty=1.3),
}
GREEDY = SamplingConfig()


def plain(model: Any, prompt: Sequence[int], sampling: SamplingConfig, new: int = 50) -> list[int]:
    strategy = make_strategy("autoregressive", LookaheadConfig())
    return ids_of([*Decoder(model).generate(prompt, strategy, sampling, Limits(new))])


def together(
    size: int,
    model: Any,
    prompt: Sequence[int],
    config: LookaheadConfig = CONFIGS["all"],
    sampling: SamplingConfig = GREEDY,
    limits: Limits | None = None,
) -> list[list[Event]]:
    """The events of every rank."""

    def one(transport: Threads) -> list[Event]:
        chosen = make_strategy("lookahead", config, DraftState())
        decoder = Decoder(model)
        events = decoder.generate(
            prompt, chosen, sampling, limits or Limits(50), group=Branches(transport)
        )
        return [*events]

    return simulate(size, one)


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("config", CONFIGS)
def test_branches_say_the_same(config: str, sampling: str) -> None:
    """Two ranks and three here; `scripts/check_ranks.py` tries more, as real processes."""
    size = 3 if sampling == "greedy" else 2
    model, prompt = model_of("llama"), prompt_for("llama")
    expected = plain(model, prompt, SAMPLINGS[sampling])
    ranks = together(size, model, prompt, CONFIGS[config], SAMPLINGS[sampling])
    assert [ids_of(events) for events in ranks] == [expected] * size


@pytest.mark.parametrize("strategy", ["autoregressive", "lookahead", "jacobi", "prompt-lookup"])
@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_copies_say_the_same(strategy: str, sampling: str) -> None:
    model, prompt = model_of("llama"), prompt_for("llama")
    expected = plain(model, prompt, SAMPLINGS[sampling])

    def one(transport: Threads) -> list[int]:
        decoder = Decoder(model)
        split(decoder, transport)
        chosen = make_strategy(strategy, CONFIGS["all"], DraftState())
        how, group = SAMPLINGS[sampling], Copies(transport)
        return ids_of([*decoder.generate(prompt, chosen, how, Limits(50), group=group)])

    assert simulate(3, one) == [expected] * 3


def test_ranks_that_share_each_step_capture_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step that is captured on one of them alone would leave the others waiting."""
    model, prompt = model_of("llama"), prompt_for("llama")
    monkeypatch.setattr("ladecli.decoder.engine.try_capture", lambda *_: None)
    together = "the ranks of a model that is split wait for one another within every step"

    def one(transport: Threads) -> list[Event]:
        decoder, ranks = Decoder(model, capture=Again()), Branches(transport)
        strategy = make_strategy("autoregressive", LookaheadConfig())
        with pytest.raises(ConfigError, match=f"{together}; make the decoder without capture"):
            decoder.generate(prompt, strategy, group=Copies(transport))
        return [*decoder.generate(prompt, strategy, None, Limits(3), group=ranks)]

    assert [ids_of(events) for events in simulate(2, one)] == [plain(model, prompt, GREEDY, 3)] * 2
    # Where transformers has split the model, there is no need to ask for it.
    monkeypatch.setattr(model, "_tp_size", 2)
    runner = Decoder(model, capture=Again()).runner
    assert (runner.captures, runner.trouble) == (False, together)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family(family: str) -> None:
    """Re-fed tokens, sliding windows and boundaries of rotary frequencies go together."""
    model, prompt = model_of(family), prompt_for(family)
    new = min(50, Decoder(model).max_context - len(prompt))
    for sources in (PAPER, SOURCES):
        config = dataclasses.replace(CONFIGS["all"], sources=sources)
        ranks = together(2, model, prompt, config, limits=Limits(new))
        assert [ids_of(events) for events in ranks] == [plain(model, prompt, GREEDY, new)] * 2


@pytest.mark.parametrize("size", [1, 2, 4, 7])
def test_the_papers_steps_are_dealt_and_stay_the_same(size: int) -> None:
    """The same drafts are accepted, in steps that are narrower the more ranks there are."""
    model, prompt = model_of("llama"), prompt_for("llama")
    config = LookaheadConfig(9, 4, 9, sources=PAPER)
    alone = together(1, model, prompt, config)[0]
    ranks = together(size, model, prompt, config)
    said = [[e.tokens for e in events if isinstance(e, Step)] for events in ranks]
    assert said == [[e.tokens for e in alone if isinstance(e, Step)]] * size
    widest = [max(e.width for e in events[2:] if isinstance(e, Step)) for events in ranks]
    whole = max(e.width for e in alone[2:] if isinstance(e, Step))
    # Beside an even share, what columns far ahead need of row 0, and the current token.
    assert max(widest) <= whole / size + config.window


@pytest.mark.parametrize("size", [2, 3])
def test_more_ranks_accept_more(size: int) -> None:
    model, prompt = OracleModel(scrambles(12, memory=1), 12), [(5 * i) % 12 for i in range(30)]
    steps = [
        sum(isinstance(e, Step) for e in together(k, model, prompt, CONFIGS["narrow"])[0])
        for k in (1, size)
    ]
    assert steps[1] < steps[0]


def test_only_ranks_that_lack_keys_feed_accepted_tokens_again() -> None:
    """Every rank's cache ends with the same text, whoever computed what."""
    text = [n % 90 for n in range(300)]
    prompt = text[:20]
    model = OracleModel(spells(text))
    pending: list[list[int]] = [[], [], []]
    caches: list[list[int]] = [[], [], []]

    def one(transport: Threads) -> None:
        decoder = Decoder(model)
        forward, mine = decoder.runner.forward, pending[transport.rank]

        def noted(layout: StepLayout) -> Any:
            mine.append(layout.pending)
            return forward(layout)

        decoder.runner.forward = noted
        strategy = make_strategy("lookahead", CONFIGS["paper"], DraftState())
        steps = decoder.generate(prompt, strategy, GREEDY, Limits(60), group=Branches(transport))
        assert ids_of([*steps]) == text[20:80]
        keys = decoder.cache.keys
        assert keys is not None
        caches[transport.rank] = keys[0, 0, 0, : decoder.cache.length, 0].int().tolist()

    simulate(3, one)
    # After a step in which drafts were accepted, at least one rank has all keys, some have not.
    behind = [tuple(count - 1 for count in counts) for counts in zip(*pending, strict=True)][1:]
    assert any(max(counts) > 0 for counts in behind)
    assert all(min(counts) == 0 for counts in behind)
    for cached in caches:
        assert cached == text[: len(cached)]
        assert len(cached) > 70


def test_what_is_cached_is_used_by_all_in_the_next_generation() -> None:
    model, prompt = model_of("llama"), prompt_for("llama")
    first = plain(model, prompt, GREEDY, 20)
    longer = [*prompt, *first, 5, 6]
    expected = plain(model, longer, GREEDY, 20)

    def one(transport: Threads) -> tuple[list[int], Started]:
        decoder, drafts = Decoder(model), DraftState()
        for text in (prompt, longer):
            strategy = make_strategy("lookahead", CONFIGS["all"], drafts)
            events = [
                *decoder.generate(text, strategy, GREEDY, Limits(20), group=Branches(transport))
            ]
        started = events[0]
        assert isinstance(started, Started)
        return ids_of(events), started

    ranks = simulate(3, one)
    assert [ids for ids, _ in ranks] == [expected] * 3
    # A rank may lack what the last step accepted; all read on from the same place.
    assert len({started for _, started in ranks}) == 1
    assert len(prompt) + 10 < ranks[0][1].cached < len(longer)


def test_one_rank_that_has_cached_more_waits_for_no_other() -> None:
    """After plain decoding on the leader alone, followers have an older text."""
    model, prompt = model_of("llama"), prompt_for("llama")
    expected = plain(model, prompt, GREEDY, 30)

    def one(transport: Threads) -> list[int]:
        decoder = Decoder(model)
        if transport.rank == 0:
            alone = make_strategy("autoregressive", LookaheadConfig())
            assert ids_of([*decoder.generate(prompt, alone, GREEDY, Limits(30))]) == expected
        strategy = make_strategy("lookahead", CONFIGS["all"], DraftState())
        group = Branches(transport)
        return ids_of([*decoder.generate(prompt, strategy, GREEDY, Limits(30), group=group)])

    assert simulate(2, one) == [expected] * 2


def test_of_what_two_ranks_tell_the_first_ranks_word_counts() -> None:
    tree = TokenTree([5, 6, 7], [ROOT, 0, 0], [1, 2, 2], ["context"] * 3)

    def one(transport: Threads) -> tuple[Finding | Shortage, list[Share]]:
        group, rank = Branches(transport), transport.rank
        group.begin(0, 3, 1, ())
        dealt = group.deal(Draft(tree, successors=1), [0, 0])
        best = [10 * rank + output for output in range(3)]
        ranked = Successors.of([{token: 0.5} for token in best])
        mine = Finding(Verdict((), (Token(9),)), best, ranked)
        return group.agree(dealt, mine, 1, lambda: 0), [*dealt.shares]

    for found, shares in simulate(2, one):
        # Both tell of the root, and of the node that their branches have in common.
        assert [share.nodes for share in shares] == [[0, 1], [0, 2]]
        assert isinstance(found, Finding)
        assert found.best == [0, 1, 2, 12]
        assert found.ranked.rows() == [{token: 0.5} for token in found.best]


def split(decoder: Decoder, transport: Threads) -> None:
    """Let ranks wait for one another in every forward, as parts of one model do."""
    forward = decoder.runner.forward

    def joint(layout: StepLayout) -> Any:
        assert len({*map(tuple, transport.gather([len(layout.tokens), layout.pending]))}) == 1
        return forward(layout)

    decoder.runner.forward = joint


@pytest.mark.parametrize("group", [Branches, Copies])
@pytest.mark.parametrize("after", [1, 2, 3, 4, 5, 6, 9])
def test_closing_on_one_rank_ends_all_and_the_next_generation_is_right(
    group: Callable[[Threads], Any], after: int
) -> None:
    """Wherever it is closed: at the start, while the prompt is read in chunks, between steps."""
    model, prompt = model_of("llama"), [*prompt_for("llama")] * 2
    expected = plain(model, prompt, GREEDY, 40)

    def one(transport: Threads) -> tuple[bool, list[int]]:
        decoder, drafts = Decoder(model, prefill_chunk=8), DraftState()
        if group is Copies:
            split(decoder, transport)
        chosen = make_strategy("lookahead", CONFIGS["all"], drafts)
        ranks = group(transport)
        events = decoder.generate(prompt, chosen, GREEDY, Limits(40), group=ranks)
        seen: list[Event] = []
        for event in events:
            seen.append(event)
            if transport.rank == 0 and len(seen) == after:
                events.close()
        finished = any(isinstance(event, Finished) for event in seen)
        again = make_strategy("lookahead", CONFIGS["all"], drafts)
        second = decoder.generate(prompt, again, GREEDY, Limits(40), group=ranks)
        return finished, ids_of([*second])

    for finished, ids in simulate(3, one):
        assert not finished
        assert ids == expected


def test_closing_while_the_prompt_is_read_waits_for_one_chunk_at_most() -> None:
    model, prompt = model_of("llama"), [*prompt_for("llama")] * 3
    fed = [0, 0]

    def one(transport: Threads) -> None:
        decoder = Decoder(model, prefill_chunk=4)
        forward = decoder.runner.forward

        def counted(layout: StepLayout) -> Any:
            fed[transport.rank] += 1
            return forward(layout)

        decoder.runner.forward = counted
        strategy = make_strategy("lookahead", CONFIGS["all"], DraftState())
        events = decoder.generate(prompt, strategy, None, Limits(9), group=Branches(transport))
        for event in events:
            if transport.rank == 0 and isinstance(event, Prefill):
                events.close()

    simulate(2, one)
    assert fed == [1, 1]


@pytest.mark.parametrize("family", ["llama", "phi3_long"])
@pytest.mark.parametrize("most", [7, 3, 1])
def test_ranks_meet_before_every_chunk_however_small_theirs_are(family: str, most: int) -> None:
    """One rank has no memory for a whole chunk, and reads it in several."""
    model, prompt = model_of(family), prompt_for(family)
    expected = plain(model, prompt, GREEDY)

    def one(transport: Threads) -> list[int]:
        decoder = Decoder(model, prefill_chunk=8)
        forward = decoder.runner.forward

        def short(layout: StepLayout) -> Any:
            if transport.rank == 1 and len(layout.tokens) > most + (family != "llama"):
                raise torch.OutOfMemoryError
            return forward(layout)

        decoder.runner.forward = short
        strategy = make_strategy("lookahead", CONFIGS["all"], DraftState())
        group = Branches(transport)
        return ids_of([*decoder.generate(prompt, strategy, GREEDY, Limits(50), group=group)])

    assert simulate(2, one) == [expected] * 2


@pytest.mark.parametrize("group", [Branches, Copies])
def test_an_interrupt_while_ranks_begin_ends_the_generation_on_all(
    group: Callable[[Threads], Any],
) -> None:
    model, prompt = model_of("llama"), prompt_for("llama")
    expected = plain(model, prompt, GREEDY, 20)

    def one(transport: Threads) -> list[int]:
        decoder, ranks, gather = Decoder(model), group(transport), transport.gather
        if group is Copies:
            split(decoder, transport)

        def generate() -> list[int]:
            strategy = make_strategy("lookahead", CONFIGS["all"], DraftState())
            return ids_of([*decoder.generate(prompt, strategy, GREEDY, Limits(20), group=ranks)])

        def interrupted(numbers: Sequence[int]) -> list[list[int]]:
            gather(numbers)
            transport.gather = gather
            raise KeyboardInterrupt

        if transport.rank == 0:
            transport.gather = interrupted
        with contextlib.suppress(KeyboardInterrupt):
            generate()
        return generate()

    assert simulate(2, one) == [expected] * 2


def test_closing_behind_the_last_step_leaves_nobody_waiting() -> None:
    model, prompt = model_of("llama"), prompt_for("llama")

    def one(transport: Threads) -> int:
        strategy = make_strategy("lookahead", CONFIGS["all"], DraftState())
        events = Decoder(model).generate(
            prompt, strategy, GREEDY, Limits(12), group=Branches(transport)
        )
        count = 0
        for event in events:
            count += len(event.tokens) if isinstance(event, Step) else 0
            if transport.rank == 0 and count == 12:
                events.close()
        return transport.gathered

    assert len({*simulate(2, one)}) == 1


@pytest.mark.parametrize("reason", ["eos", "stop", "length"])
def test_the_text_ends_alike_on_all_ranks(reason: str) -> None:
    text = [n % 90 for n in range(300)]
    limits = {
        "eos": Limits(80, frozenset({41})),
        "stop": Limits(80, should_stop=lambda token: token == 41),
        "length": Limits(22),
    }[reason]
    model = OracleModel(spells(text))
    for events in together(3, model, text[:20], CONFIGS["paper"], limits=limits):
        assert ids_of(events) == text[20:42]
        assert events[-1] == Finished(reason)


@pytest.mark.parametrize("bad", [[0], [1], [0, 1]])
def test_want_of_memory_on_one_rank_narrows_the_steps_of_all(
    bad: list[int],
) -> None:
    model, prompt = model_of("llama"), prompt_for("llama")
    expected = plain(model, prompt, GREEDY)

    def one(transport: Threads) -> list[Event]:
        decoder = Decoder(model)
        forward = decoder.runner.forward

        def short(layout: StepLayout) -> Any:
            if transport.rank in bad and len(layout.tokens) - layout.pending > 9:
                raise torch.OutOfMemoryError
            return forward(layout)

        decoder.runner.forward = short
        strategy = make_strategy("lookahead", CONFIGS["all"], DraftState())
        events = decoder.generate(prompt, strategy, GREEDY, Limits(50), group=Branches(transport))
        return [*events]

    ranks = simulate(2, one)
    assert [ids_of(events) for events in ranks] == [expected] * 2
    told = [[e.width for e in events if isinstance(e, Squeezed)] for events in ranks]
    assert told[0] == told[1] != []


@pytest.mark.parametrize("at", [1, 4])
def test_parts_of_a_model_cannot_try_again_by_themselves(at: int) -> None:
    """The others wait within the forward, so that a smaller one would meet theirs half-way."""
    model, prompt = model_of("llama"), [*prompt_for("llama")] * 3
    told: dict[int, str] = {}

    def one(transport: Threads) -> None:
        decoder = Decoder(model, prefill_chunk=16)
        forward, count = decoder.runner.forward, [0]

        def short(layout: StepLayout) -> Any:
            count[0] += 1
            if transport.rank == 1 and count[0] == at:
                raise torch.OutOfMemoryError
            return forward(layout)

        decoder.runner.forward = short
        strategy = make_strategy("lookahead", CONFIGS["all"], DraftState())
        [*decoder.generate(prompt, strategy, None, Limits(9), group=Copies(transport))]

    def noted(transport: Threads) -> None:
        try:
            one(transport)
        except (NoMemoryError, RankError) as error:
            told[transport.rank] = f"{type(error).__name__}: {error}"
            raise

    with pytest.raises(NoMemoryError):
        simulate(2, noted)
    assert told[1].startswith("NoMemoryError: no memory for a step on all ranks at once; a smaller")
    assert told[0] == "RankError: another rank has ended"


@pytest.mark.parametrize("at", [0, 2])
def test_where_a_rank_has_no_memory_at_all_the_text_ends_on_all(at: int) -> None:
    model, prompt = model_of("llama"), prompt_for("llama")
    expected = plain(model, prompt, GREEDY)

    def one(transport: Threads) -> list[Event]:
        decoder = Decoder(model)
        forward, count = decoder.runner.forward, [0]

        def short(layout: StepLayout) -> Any:
            count[0] += 1
            if transport.rank == 1 and count[0] > at:
                raise torch.OutOfMemoryError
            return forward(layout)

        decoder.runner.forward = short
        strategy = make_strategy("lookahead", CONFIGS["all"], DraftState())
        return [*decoder.generate(prompt, strategy, GREEDY, Limits(50), group=Branches(transport))]

    for events in simulate(3, one):
        assert events[-1] == Finished("memory")
        assert ids_of(events) == expected[: len(ids_of(events))]
        assert bool(ids_of(events)) == (at > 0)


def differing(rank: int, transport: Threads, ours: Any, theirs: Any) -> Any:
    return theirs if transport.rank == rank else ours


@pytest.mark.parametrize("group", [Branches, Copies])
@pytest.mark.parametrize(
    ("sampling", "prompt", "words"),
    [
        (SamplingConfig(temperature=1.0, seed=4), None, "rank 2 was asked for another text"),
        (None, [1, 2, 3], "rank 2 was asked for another text"),
    ],
    ids=["seed", "prompt"],
)
def test_ranks_that_were_asked_for_something_else(
    group: Callable[[Threads], Any],
    sampling: SamplingConfig | None,
    prompt: list[int] | None,
    words: str,
) -> None:
    model, own = model_of("llama"), prompt_for("llama")
    usual = SamplingConfig(temperature=1.0, seed=3)

    def one(transport: Threads) -> None:
        strategy = make_strategy("lookahead", CONFIGS["all"], DraftState())
        text = differing(2, transport, own, prompt or own)
        chosen = differing(2, transport, usual, sampling or usual)
        [*Decoder(model).generate(text, strategy, chosen, Limits(20), group=group(transport))]

    with pytest.raises(RankError, match=words):
        simulate(3, one)


def test_another_window_is_noticed_in_the_first_step_that_differs() -> None:
    model, prompt = model_of("llama"), prompt_for("llama")

    def one(transport: Threads) -> None:
        config = differing(1, transport, CONFIGS["paper"], LookaheadConfig(4, 4, 5, 31))
        config = dataclasses.replace(config, budget=30, sources=PAPER)
        strategy = make_strategy("lookahead", config, DraftState())
        [*Decoder(model).generate(prompt, strategy, None, Limits(20), group=Branches(transport))]

    with pytest.raises(RankError, match="rank 1 drafted something else than rank 0 in step 1"):
        simulate(2, one)


def test_other_drafts_are_noticed_before_they_tell() -> None:
    """What was learned differs, though the step's draft does not yet."""
    model, prompt = model_of("llama"), prompt_for("llama")

    def one(transport: Threads) -> None:
        drafts = DraftState()
        if transport.rank == 1:
            drafts.context.load([95, 96, 95, 96, 94])
        strategy = make_strategy("lookahead", CONFIGS["all"], drafts)
        [*Decoder(model).generate(prompt, strategy, None, Limits(20), group=Branches(transport))]

    with pytest.raises(RankError, match="rank 1 has learned something else than rank 0 by step 1"):
        simulate(2, one)


def test_a_change_in_the_middle_is_noticed_within_some_steps() -> None:
    model, prompt = model_of("llama"), prompt_for("llama")
    steps = [0, 0]

    def one(transport: Threads) -> None:
        drafts = DraftState()
        strategy = make_strategy("lookahead", CONFIGS["paper"], drafts)
        events = Decoder(model).generate(
            prompt, strategy, None, Limits(150), group=Branches(transport)
        )
        for event in events:
            steps[transport.rank] += isinstance(event, Step)
            if transport.rank == 1 and steps[1] == 20:
                drafts.ledger.balance += 1e-9

    with pytest.raises(RankError, match="rank 1 has learned something else than rank 0 by step 33"):
        simulate(2, one)
    assert steps[0] == 32


@pytest.mark.parametrize("group", [Branches, Copies])
def test_a_second_ctrl_c_in_the_middle_of_a_step(group: Callable[[Threads], Any]) -> None:
    """Shares are computed apart, so the next generation works; parts of a model are not."""
    model, prompt = model_of("llama"), prompt_for("llama")
    expected = plain(model, prompt, GREEDY, 20)
    later: dict[int, Any] = {}

    def one(transport: Threads) -> None:
        decoder, ranks = Decoder(model), group(transport)
        forward, count = decoder.runner.forward, [0]

        def pressed(layout: StepLayout) -> Any:
            count[0] += 1
            if transport.rank == 0 and count[0] == 3:
                raise KeyboardInterrupt
            return forward(layout)

        decoder.runner.forward = pressed

        def again() -> list[int]:
            strategy = make_strategy("lookahead", CONFIGS["all"], DraftState())
            return ids_of([*decoder.generate(prompt, strategy, GREEDY, Limits(20), group=ranks)])

        with contextlib.suppress(KeyboardInterrupt):
            again()
        try:
            later[transport.rank] = again()
        except RankError as error:
            later[transport.rank] = str(error)
            raise

    if group is Branches:
        simulate(2, one)
        assert later == {0: expected, 1: expected}
        return
    with pytest.raises(RankError):
        simulate(2, one)
    assert later[0] == "the ranks were torn apart in the middle of a step; start them again"


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_fails_is_named_on_the_others(rank: int) -> None:
    model, prompt = model_of("llama"), prompt_for("llama")
    heard: dict[int, str] = {}

    def one(transport: Threads) -> None:
        decoder = Decoder(model)
        forward, count = decoder.runner.forward, [0]

        def broken(layout: StepLayout) -> Any:
            count[0] += 1
            if transport.rank == rank and count[0] == 3:
                raise ValueError("the cable is loose")
            return forward(layout)

        decoder.runner.forward = broken
        strategy = make_strategy("lookahead", CONFIGS["all"], DraftState())
        try:
            [*decoder.generate(prompt, strategy, None, Limits(50), group=Branches(transport))]
        except (RankError, ValueError) as error:
            heard[transport.rank] = str(error)

    simulate(3, one)
    others = {0, 1, 2} - {rank}
    assert heard == {rank: "the cable is loose", **dict.fromkeys(others, f"rank {rank} failed")}


def test_a_rank_that_is_gone_ends_the_others() -> None:
    model, prompt = model_of("llama"), prompt_for("llama")

    def one(transport: Threads) -> None:
        if transport.rank == 1:
            raise KeyError("gone")
        strategy = make_strategy("lookahead", CONFIGS["all"], DraftState())
        with pytest.raises(RankError, match="another rank has ended"):
            [*Decoder(model).generate(prompt, strategy, None, Limits(9), group=Branches(transport))]

    with pytest.raises(KeyError, match="gone"):
        simulate(2, one)


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_bytes_per_step_do_not_depend_on_the_model(family: str) -> None:
    model, prompt = model_of(family), prompt_for(family)

    def one(transport: Threads) -> tuple[int, int]:
        strategy = make_strategy("lookahead", CONFIGS["all"], DraftState())
        group = Branches(transport)
        events = [*Decoder(model).generate(prompt, strategy, None, Limits(30), group=group)]
        return transport.sent, sum(isinstance(event, Step) for event in events)

    for sent, steps in simulate(2, one):
        # One message at the start, and one for each step: of a head of 6, and for each of at most
        # 31 outputs its token, the walk's, and four successors with their probabilities.
        assert sent == (1 + steps) * (6 + 31 * (2 + 2 * 4))
