"""The candidate tree of a step as lines: branches, sources, and how far the model agreed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from rich.text import Text

from ..cells import cropped, styled, visible
from ..decoder.events import Detail
from ..events import TextStep
from ..visualize import style_of

ROOT = -1
"""The parent of first-level nodes: the current token."""


@dataclass(frozen=True, slots=True)
class _Chain:
    """Nodes that are drawn on one line: each but the last has the next one as its only child."""

    nodes: tuple[int, ...]
    prefix: str


def tree_lines(
    step: TextStep, detail: Detail, spell: Callable[[int], str], width: int, height: int
) -> list[Text]:
    """The tree below the current token, the accepted path first.

    Args:
        step: for the token that the model chose where the path ends.
        detail: of the step.
        spell: the text of a token id.
        width: of a line, in cells.
        height: the most lines; what is left out is counted on the last one.
    """
    bonus = styled(" → ", "dim").append(
        visible(spell(step.token_ids[-1])), "bold " + style_of(step.pieces[-1].source)
    )
    end = detail.accepted[-1] if detail.accepted else ROOT
    first = styled(visible(spell(detail.current)), "bold")
    lines = [cropped(first + bonus if end == ROOT else first, width)]
    chains, left_out = _fitting(detail, height - 1)
    for chain in chains:
        line = _drawn(chain, detail, spell)
        if chain.nodes[-1] == end:
            line += bonus
        lines.append(cropped(line + _origins(chain, detail), width))
    if left_out:
        lines.append(styled(f"… and {left_out} more", "dim"))
    return lines


def _fitting(detail: Detail, height: int) -> tuple[list[_Chain], int]:
    """As many nodes as fit in `height` lines, those first that were proposed first.

    What was accepted is always there.

    Returns:
        The lines of these nodes, and how many are left out; the count has one of the lines.
    """
    whole = list(_chains(detail, len(detail.tree)))
    if len(whole) <= height:
        return whole, 0
    for count in range(len(detail.tree) - 1, -1, -1):
        chains = list(_chains(detail, count))
        if len(chains) < height:
            break
    return chains, len(detail.tree) - sum(len(chain.nodes) for chain in chains)


def _chains(detail: Detail, count: int) -> Iterator[_Chain]:
    """The lines of the tree's first `count` nodes and of the accepted ones, from the top."""
    accepted = set(detail.accepted)
    children: dict[int, list[int]] = {}
    for node, parent in enumerate(detail.parents):
        if node >= count and node not in accepted:
            continue
        children.setdefault(parent, []).append(node)
    for siblings in children.values():
        siblings.sort(key=lambda node: node not in accepted)  # stable: else as proposed
    # A stack of its own: a draft can be deeper than Python's.
    todo = [(node, "") for node in reversed(children.get(ROOT, []))]
    last = {siblings[-1] for siblings in children.values()}
    while todo:
        node, prefix = todo.pop()
        nodes = [node]
        while len(below := children.get(nodes[-1], [])) == 1 and (
            (below[0] in accepted) == (node in accepted)
        ):
            nodes.append(below[0])
        branch, deeper = ("└─ ", "   ") if node in last else ("├─ ", "│  ")
        yield _Chain(tuple(nodes), prefix + branch)
        todo += [(child, prefix + deeper) for child in reversed(below)]


def _drawn(chain: _Chain, detail: Detail, spell: Callable[[int], str]) -> Text:
    line = styled(chain.prefix, "dim")
    for place, node in enumerate(chain.nodes):
        line.append(" " if place else "")
        style = style_of(detail.sources[node])
        word = visible(spell(detail.tree[node]))
        if node in detail.accepted:
            line.append(word, f"bold {style}").append(" ✓", f"bold {style}")
        else:
            line.append(word, f"dim {style}")
    return line


def _origins(chain: _Chain, detail: Detail) -> Text:
    """The sources of a line's tokens in words, for those who see no colours."""
    line = Text("  ")
    for place, source in enumerate(dict.fromkeys(detail.sources[node] for node in chain.nodes)):
        line.append(", " if place else "", "dim").append(source, f"dim {style_of(source)}")
    return line
