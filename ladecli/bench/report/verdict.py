"""What a result comes to, in sentences."""

from __future__ import annotations

from ..figures import Figures
from ..wording import clean, decimal, factor, interval, listed, times
from .summary import Summary


def verdict(summary: Summary) -> list[str]:
    """The answer to "is it faster, and is the text the same?", a sentence for each."""
    hero = summary.hero
    if not summary.overall:
        return ["Nothing was measured: no contender has an answer."]
    said = [_alone(summary, each) for each in summary.overall[:1]] if hero is None else []
    if hero is not None:
        said = [_speed(summary, hero)]
        if len(_cells(summary)) > 1 and hero.contender in _cells(summary):
            said.append(
                f"It is the fastest of {len(_cells(summary))} settings; the best of many looks a"
                " little better than it is, so measure it once more by itself."
            )
    if (lengths := _over_contexts(summary)) is not None:
        said.append(lengths)
    if (equality := equality_sentence(summary)) is not None:
        said.append(equality)
    return said


def equality_sentence(summary: Summary) -> str | None:
    """Whether the answers are the same; None where none were compared."""
    compared = sum(each.compared for each in summary.overall)
    if not compared:
        return None
    reference = summary.label(summary.result.reference)
    differing = [each for each in summary.overall if each.equal < each.compared]
    if not differing:
        if compared == 1:
            return f"The answer is equal to that of {reference}, token for token."
        return f"All {compared:,} answers are equal to those of {reference}, token for token."
    parts = [
        f"{each.compared - each.equal:,} of {each.compared:,} of {summary.label(each.contender)}"
        for each in differing
    ]
    return (
        f"Answers differ from those of {reference}: {listed(parts)}; lade verify tells where, and"
        " whether arithmetic explains it."
    )


def _speed(summary: Summary, hero: Figures) -> str:
    name = summary.label(hero.contender)
    reference = summary.label(summary.result.reference)
    on = f"on these {hero.rows:,} {summary.noun}s" if hero.rows != 1 else f"on this {summary.noun}"
    found = hero.speedup
    hf = _over_hf(summary, "the tokens per second")
    if found is None:
        sentence = f"{_alone(summary, hero)[:-1]} {on}"
        return _sentence(f"{sentence}; it makes {hf}" if hf else sentence)
    if found.low <= 1.0 <= found.high:
        also = f"; it makes {hf}" if hf else ""
        return _sentence(
            f"there is no clear difference in speed between {name} and {reference} {on}:"
            f" {times(found.value)}, with 95 % confidence {interval(found)}{also}"
        )
    hf = _over_hf(summary, "those")
    also = f" and {hf}" if hf else ""
    slower = f"{name} is slower than {reference}: it" if found.high < 1.0 else name
    return _sentence(
        f"{slower} makes {factor(found)} the tokens per second of {reference} {on}{also}"
    )


def _over_contexts(summary: Summary) -> str | None:
    """How the speed-up changes from the shortest context to the longest."""
    if not summary.of_contexts or summary.hero is None:
        return None
    name = summary.hero.contender
    found = [
        (clean(length), each.speedup)
        for length, all_ in summary.by_category.items()
        for each in all_
        if each.contender == name and each.speedup is not None
    ]
    if len(found) < 2:
        return None
    (short, first), (long, last) = found[0], found[-1]
    beyond = {clean(each) for each in summary.beyond}
    caveat = ", beyond what the model was made for" if long in beyond else ""
    return (
        f"It is {factor(first)} at {short} tokens of context, and {factor(last)} at {long}{caveat}."
    )


def _over_hf(summary: Summary, what: str) -> str:
    found = summary.over_hf
    if found is None:
        return ""
    clear = "" if not found.low <= 1.0 <= found.high else ", which is no clear difference"
    return f"{factor(found)} {what} of {summary.label(summary.hf)}{clear}"


def _alone(summary: Summary, figures: Figures) -> str:
    if not figures.tokens_per_second:
        name = summary.label(figures.contender)
        return _sentence(f"{name} has no step behind the first, so there is no rate")
    return _sentence(
        f"{summary.label(figures.contender)} makes {decimal(figures.tokens_per_second)} tokens per"
        f" second, {figures.tokens_per_step:.2f} per step"
    )


def _sentence(text: str) -> str:
    return f"{capital(text)}."


def capital(text: str) -> str:
    """The first letter as a sentence has it; transformers is written small."""
    return text if text.startswith("transformers") else text[:1].upper() + text[1:]


def _cells(summary: Summary) -> set[str]:
    return {
        each.contender
        for each in summary.overall
        if summary.contender(each.contender).cell and each.contender != summary.result.reference
    }
