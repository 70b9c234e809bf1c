"""What a whole step costs by its width and by the length of the text, in plain steps.

    python benchmarks/step_cost.py --model MODEL --prompts FILE.jsonl

Steps are taken from real generations, so that drafting, verification and cold caches are in
the figures; widths take turns prompt by prompt.  The table goes into a profile as it stands.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Collection, Sequence

import torch
from common import arguments, conditions, prompts_of

from ladecli import models
from ladecli.decoder.config import Limits, LookaheadConfig
from ladecli.decoder.decoder import Decoder
from ladecli.decoder.events import Step
from ladecli.decoder.load import load_decoder
from ladecli.decoder.model.form_races import Races
from ladecli.decoder.strategies import make_strategy
from ladecli.models import extend_context
from ladecli.options.model import ModelOptions

WIDTHS = (1, 2, 4, 6, 8, 12, 16, 24, 32, 64)
NEAR = 96
"""Steps after texts that differ by less count for a context."""


def main() -> None:
    parser = arguments(__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--sources", default="context,recycled")
    parser.add_argument("--contexts", default="128,1024", help="may be beyond the model's own")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--quantize", default="none")
    parser.add_argument("--form", help="of all weights, by its name in cpu_formats; default: raced")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    contexts = [int(context) for context in args.contexts.split(",")]
    options = ModelOptions(dtype=args.dtype, quantize=args.quantize)
    planned = extend_context(models.plan(args.model, options), max(contexts) + 2 * NEAR)
    loaded = models.load(planned)
    decoder = load_decoder(loaded.model, races=Only(args.form) if args.form else None)
    prompts = prompts_of(args.prompts, loaded.tokenizer, args.limit)
    seconds: dict[tuple[int, int], list[float]] = defaultdict(list)
    for _ in range(args.rounds):
        for prompt in prompts:
            for context in contexts:
                # The prompt again and again, up to where the steps shall be measured.
                text = (prompt * (context // len(prompt) + 1))[: max(context - NEAR, 1)]
                for width in WIDTHS:
                    collect(decoder, text, width, tuple(args.sources.split(",")), context, seconds)
    print(f"{args.model}; {conditions(args.threads)}; median whole steps, in plain steps\n")
    print(f"widths = {list(WIDTHS)}\ncontexts = {contexts}\ncosts = [")
    for context in contexts:
        times = [statistics.median(seconds[context, width]) for width in WIDTHS]
        costs = [round(max(times[: end + 1]) / times[0], 2) for end in range(len(WIDTHS))]
        counts = [len(seconds[context, width]) for width in WIDTHS]
        print(f"  {costs},  # plain {times[0] * 1e3:.2f} ms, n {counts}")
    print("]")


class Only(Races):
    """No races: one form wins them all."""

    def __init__(self, form: str) -> None:
        super().__init__()
        self._form = form

    def choose(
        self, dtype: torch.dtype, shape: Sequence[int], forms: Collection[str]
    ) -> tuple[str, str]:
        if self._form not in forms:
            raise SystemExit(
                f"a weight of {list(shape)} has no form {self._form!r}; it has {forms}"
            )
        return self._form, self._form


def collect(
    decoder: Decoder,
    prompt: list[int],
    width: int,
    sources: tuple[str, ...],
    context: int,
    seconds: dict[tuple[int, int], list[float]],
) -> None:
    """Times of the steps of exactly `width` tokens after about `context` tokens."""
    name = "autoregressive" if width == 1 else "lookahead"
    strategy = make_strategy(name, LookaheadConfig(budget=width, sources=sources))
    length, steps = len(prompt), 0
    for event in decoder.generate(prompt, strategy, None, Limits(2 * NEAR)):
        if isinstance(event, Step):
            length += len(event.tokens)
            steps += 1
            if steps > 1 and event.width == width and abs(length - context) < NEAR:
                seconds[context, width].append(event.seconds)


if __name__ == "__main__":
    main()
