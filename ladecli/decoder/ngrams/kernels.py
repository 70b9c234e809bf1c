"""What takes time in drafting, compiled: look up, count, rank, and grow a tree.

These functions work on arrays that `Table` and `NgramModel` own.  A table is a tuple of

- entries, records [ORDER + 1, capacity]: by length of context, in the order they were met;
- index, int32 [ORDER + 1, slots]: where a context's hash leads, with -1 where nothing is;
- sizes, int64 [ORDER + 1]: how many entries there are of each length.

A context is the last four tokens as two numbers of 40 bits: `low` holds the last two of them,
`high` the two before.  Shorter contexts have zeros in their place.

Everything that these functions use is in this file, which makes it a long one: see `compiled`.
Nothing looks whether an index is within its array, so whoever calls them makes room first.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ..compiled import compiled, inlined

Tokens: TypeAlias = NDArray[np.int32]
Weights: TypeAlias = NDArray[np.float32]
Floats: TypeAlias = NDArray[np.float64]
Context: TypeAlias = tuple[int, int]
Table: TypeAlias = tuple[NDArray[Any], ...]
"""Entries, index and sizes."""
Known: TypeAlias = tuple[Table, Table, Floats]
"""What was counted, what the model said, and by kind of evidence how far it is trusted."""
Record: TypeAlias = Any
"""One of `COUNTED`, `RANKED` or `NODE`."""
Nodes: TypeAlias = NDArray[Any]
Found: TypeAlias = tuple[Floats, NDArray[np.int64], NDArray[np.int64]]
"""Successors of a context: probabilities, tokens and kinds of evidence."""
Queue: TypeAlias = tuple[Floats, NDArray[np.int64]]
"""Values in ascending order, and what they are of."""

ORDER = 4
"""Longest context, in tokens."""
BITS = 20
"""Of a token in a context: vocabularies have up to a million ids."""
WINDOW_ORDER = 2
"""A window cell stands on guesses: no longer context of what the model says there is kept."""
DOUBT = (0.0, 8.0, 4.0, 2.0, 1.0)
"""By length of context: weight of counted evidence at which it gets half of what is left."""
ANSWERED = (0.0, 0.65, 0.7, 0.8, 0.95)
"""By length of context: what the model's own successors get of what is left."""
DECAY = 0.7
"""What is left of older evidence under a context when new evidence comes."""
SUCCESSORS = 4
"""Successors kept under a context; more of them cost time and are hardly ever right."""
CHILDREN = 5
"""Children of a node."""
MEMORY = 0.98
"""What is left, after a trial, of how often a kind of evidence was right before."""
PRIOR = 2.0
"""Expected hits at which a record counts as much as the faith in the evidence."""
ENOUGH = 0.2
"""Probability left to shorter contexts at which they are not asked any more."""
TRUST = 3.0
"""The most by which a record of kept promises raises probabilities."""
HOPE = 0.5
"""What the best child of a node is taken to have of its probability until somebody looks.
At 1.0 trees took a third more time to grow, and accepted no more."""
KINDS = 1 + 3 * (ORDER + 1)
"""A kind of evidence is 1 + 3 * length of context + index of the source, or `COPIED`."""
COPIED = 0
"""The text's own continuation of a long repeated passage."""
GUESSED, ASKED = 1, 2
"""Indices of the sources of what the model said, see `model.SOURCES`: behind tokens of the window,
which stand on guesses, or behind a text or a candidate."""


def _record(**fields: str) -> np.dtype[Any]:
    return np.dtype([*fields.items()])


_INTS, _FLOATS, _SHARES = f"{SUCCESSORS}i4", f"{SUCCESSORS}f8", f"{SUCCESSORS}f4"
COUNTED = _record(
    high="i8", low="i8", total="f8", weights=_FLOATS, tokens=_INTS, sources=_INTS, count="i8"
)
"""What followed a context: weight of all of it, then for `count` tokens their own, and the index of
the source that saw each last.  The newest token is the last."""
RANKED = _record(high="i8", low="i8", weights=_SHARES, tokens=_INTS, source="i4", count="i4")
"""What the model said of a context: `count` tokens and their probabilities, the best first, and
whether it was asked or guessed."""
_PLACES = {"token": "i4", "parent": "i4", "depth": "i4", "kind": "i4", "place": "i4"}
_CHILDREN = {"shares": f"{CHILDREN}f8", "tokens": f"{CHILDREN}i4", "kinds": f"{CHILDREN}i4"}
NODE = _record(high="i8", low="i8", value="f8", **_CHILDREN, count="i4", **_PLACES)
"""A node while a tree grows, or the current token: its context, the probability that it is reached,
`count` successors with their share of that and their kinds of evidence; then its token, parent,
depth, kind, and where it stands in a passage.  Parents are numbered as those of a `TokenTree`, so
that row 0 is parent -1."""

ONE, TWO = (1 << BITS) - 1, (1 << (2 * BITS)) - 1
"""Bits of one token, and of two."""
MIX = 0x2545F4914F6CDD1D
"""Spreads bits; from Marsaglia's xorshift* generators."""
MOST = ORDER * 2 * SUCCESSORS + 1
"""Successors of one context in all tables and a passage, at most."""


@inlined
def after(high: int, low: int, token: int) -> Context:
    """The context one token on."""
    return ((high << BITS) | (low >> BITS)) & TWO, ((low << BITS) | token) & TWO


@inlined
def behind(tokens: Tokens) -> Context:
    """The context behind a text, given its last tokens."""
    high = low = 0
    for token in tokens:
        high, low = after(high, low, np.int64(token))
    return high, low


@inlined
def shortened(order: int, high: int, low: int) -> Context:
    """The last `order` tokens of a context."""
    if order == 1:
        return 0, low & ONE
    if order == 2:
        return 0, low
    return (high & ONE if order == 3 else high), low


@inlined
def slot_of(table: Table, order: int, high: int, low: int) -> int:
    """Where the index leads for a context, or where it would be entered."""
    entries, index, _ = table
    last = int(index.shape[1]) - 1
    mixed = (high * 3 + low) * MIX
    mixed ^= mixed >> 31
    slot = (mixed * MIX >> BITS) & last
    while True:
        number = index[order, slot]
        if number < 0:
            return slot
        entry = entries[order, number]
        if entry.low == low and entry.high == high:
            return slot
        slot = (slot + 1) & last


@inlined
def find(table: Table, order: int, high: int, low: int) -> int:
    """The number of a context's entry, or -1."""
    return int(table[1][order, slot_of(table, order, high, low)])


@inlined
def enter(table: Table, order: int, high: int, low: int) -> int:
    """The number of a context's entry; a new one, if need be, has a count of 0."""
    entries, index, sizes = table
    slot = slot_of(table, order, high, low)
    if index[order, slot] < 0:
        entry = entries[order, sizes[order]]
        entry.high, entry.low, entry.count = high, low, 0
        index[order, slot] = sizes[order]
        sizes[order] += 1
    return int(index[order, slot])


@compiled
def forget(table: Table, order: int, number: int) -> None:
    """Forget the oldest entries of one length, and enter those that are left anew."""
    entries, index, sizes = table
    left = sizes[order] - number
    for i in range(left):
        entries[order, i] = entries[order, i + number]
    sizes[order] = left
    index[order] = -1
    for i in range(left):
        entry = entries[order, i]
        index[order, slot_of(table, order, entry.high, entry.low)] = i


@inlined
def count_one(entry: Record, token: int, weight: float, source: int) -> None:
    """Count one more token under a context, and everything before a little less."""
    if entry.count == 0:
        entry.total = 0.0
    at = -1
    for i in range(entry.count):
        entry.weights[i] *= DECAY
        if entry.tokens[i] == token:
            at = i
    entry.total = entry.total * DECAY + weight
    if at >= 0:
        entry.weights[at] += weight
        entry.sources[at] = source
        return
    if entry.count == SUCCESSORS:
        rarest = 0
        for i in range(1, SUCCESSORS):
            if entry.weights[i] < entry.weights[rarest]:
                rarest = i
        entry.total -= entry.weights[rarest]
        for i in range(rarest, SUCCESSORS - 1):
            entry.weights[i] = entry.weights[i + 1]
            entry.tokens[i] = entry.tokens[i + 1]
            entry.sources[i] = entry.sources[i + 1]
        entry.count -= 1
    at = entry.count
    entry.weights[at], entry.tokens[at], entry.sources[at] = weight, token, source
    entry.count += 1


@compiled
def count(counted: Table, rows: Tokens, first: int, weight: float, source: int) -> None:
    """Count the tokens of each row, int32 [rows, n], from `first` on, under up to four tokens
    before them in the row."""
    for row in rows:
        high, low = behind(row[:first])
        for i in range(first, len(row)):
            token = np.int64(row[i])
            for order in range(1, min(i, ORDER) + 1):
                high_part, low_part = shortened(order, high, low)
                number = enter(counted, order, high_part, low_part)
                count_one(counted[0][order, number], token, weight, source)
            high, low = after(high, low, token)


@inlined
def answer(
    ranked: Table, order: int, high: int, low: int, tokens: Tokens, weights: Weights, source: int
) -> None:
    """Keep what the model said of a context, if anything; a guess does not replace an answer."""
    if not len(tokens) or tokens[0] < 0:
        return
    entry = ranked[0][order, enter(ranked, order, high, low)]
    if entry.count and entry.source > source:
        return
    entry.source, entry.count = source, 0
    for i in range(min(len(tokens), SUCCESSORS)):
        if tokens[i] < 0:
            break
        entry.tokens[i], entry.weights[i] = tokens[i], weights[i]
        entry.count = i + 1


@inlined
def root(nodes: Nodes, text: Tokens) -> None:
    """Let the first node have the context of the current token, the end of a text."""
    nodes[0].high, nodes[0].low = behind(text)


@inlined
def descend(nodes: Nodes, row: int) -> None:
    """Let a node have its context, given that of its parent."""
    node, parent = nodes[row], nodes[nodes[row].parent + 1]
    node.high, node.low = after(parent.high, parent.low, np.int64(node.token))


@compiled
def answers(
    ranked: Table, nodes: Nodes, text: Tokens, known: int, tokens: Tokens, weights: Weights
) -> None:
    """Keep what the model said behind a text, and behind each node of a tree.

    Args:
        nodes: of which the first is the text; their tokens and parents count.
        text: its last tokens.
        known: how many tokens it has in all.
        tokens, weights: [1 + nodes of the tree, n].
    """
    root(nodes, text)
    for row in range(min(len(tokens), len(nodes))):
        if row:
            descend(nodes, row)
        node = nodes[row]
        for order in range(1, min(known, ORDER) + 1):
            high, low = shortened(order, node.high, node.low)
            answer(ranked, order, high, low, tokens[row], weights[row], ASKED)


@compiled
def guesses(ranked: Table, pairs: Tokens, tokens: Tokens, weights: Weights) -> None:
    """Keep what the model said behind pairs of tokens, int32 [n, 2], which are guesses."""
    for i in range(min(len(pairs), len(tokens))):
        high, low = behind(pairs[i])
        for order in range(1, WINDOW_ORDER + 1):
            part = shortened(order, high, low)
            answer(ranked, order, part[0], part[1], tokens[i], weights[i], GUESSED)


@inlined
def add(found: Found, known: int, size: int, token: int, share: float, kind: int) -> int:
    """Raise the probability of one of the first `known` successors, or append another one;
    returns how many there are."""
    shares, tokens, kinds = found
    for i in range(known):
        if tokens[i] == token:
            shares[i] += share
            return size
    shares[size], tokens[size], kinds[size] = share, token, kind
    return size + 1


@inlined
def rank(node: Record, found: Found, size: int, trust: Floats, floor: float) -> None:
    """Give a node the most probable ones of its successors, by probability and then by token."""
    shares, tokens, kinds = found
    node.count = 0
    for i in range(size):
        share = shares[i] * trust[kinds[i]]
        if share <= floor:
            continue
        at = node.count
        while at and (
            node.shares[at - 1] < share
            or (node.shares[at - 1] == share and node.tokens[at - 1] < tokens[i])
        ):
            at -= 1
        if at == CHILDREN:
            continue
        for j in range(min(node.count, CHILDREN - 1), at, -1):
            node.shares[j], node.tokens[j] = node.shares[j - 1], node.tokens[j - 1]
            node.kinds[j] = node.kinds[j - 1]
        node.shares[at], node.tokens[at], node.kinds[at] = share, tokens[i], kinds[i]
        node.count = min(node.count + 1, CHILDREN)


@inlined
def successors(known: Known, node: Record, floor: float, copied: int, copying: float) -> None:
    """Find the most probable successors of a node; those of at most `floor` may be left out.

    Args:
        copied: the token that follows if the text goes on to repeat a passage; -1 for none.
        copying: the probability that it does.
    """
    counted, ranked, trust = known
    found = np.empty(MOST, np.float64), np.empty(MOST, np.int64), np.empty(MOST, np.int64)
    left, size = 1.0, 0
    if copied >= 0:
        size = add(found, 0, 0, copied, copying, COPIED)
        left -= copying
    longest = ORDER
    if find(counted, 2, 0, node.low) < 0:
        pair = find(ranked, 2, 0, node.low)
        # What is known of a longer context is known of a pair, too.
        if pair < 0 or ranked[0][2, pair].source < ASKED:
            longest = 2
    for order in range(longest, 0, -1):
        high, low = shortened(order, node.high, node.low)
        number = find(ranked, order, high, low)
        if number >= 0:
            said = ranked[0][order, number]
            unit, before = left * ANSWERED[order], size
            kind = 1 + 3 * order + said.source
            left -= unit
            for i in range(said.count):
                share = unit * np.float64(said.weights[i])
                size = add(found, before, size, said.tokens[i], share, kind)
            if left <= ENOUGH and not before:
                # The common case: the model's own answer is nearly all there is.
                break
        number = find(counted, order, high, low)
        if number >= 0:
            entry = counted[0][order, number]
            unit, before = left / (entry.total + DOUBT[order]), size
            for i in range(entry.count):
                share, kind = unit * entry.weights[i], 1 + 3 * order + entry.sources[i]
                size = add(found, before, size, entry.tokens[i], share, kind)
            left -= unit * entry.total
        if left <= ENOUGH or left <= floor:
            break
    rank(node, found, size, trust, floor)


@inlined
def wait(queue: Queue, waiting: int, value: float, item: int) -> int:
    """Let an item wait where its value belongs, the best one last; of equal ones, those that came
    first are taken first.  Returns how many wait."""
    values, items = queue
    at = waiting
    while at and values[at - 1] >= value:
        values[at], items[at] = values[at - 1], items[at - 1]
        at -= 1
    values[at], items[at] = value, item
    return waiting + 1


@inlined
def look(
    known: Known, nodes: Nodes, row: int, passage: Tokens, copying: float, floor: float
) -> None:
    """Find the successors of a node, which gets its context only now."""
    node, end = nodes[row], len(passage)
    least = 0.0
    if row:
        descend(nodes, row)
        parent = nodes[node.parent + 1]
        follows = parent.place < end and passage[parent.place] == node.token
        node.place = parent.place + 1 if follows else end
        # The root's are all wanted: `judge` tries them whether they pay or not.
        least = floor / node.value
    copied = passage[node.place] if node.place < end else -1
    successors(known, node, least, copied, copying)


@compiled
def grow(
    known: Known,
    nodes: Nodes,
    text: Tokens,
    depth: int,
    cost: Floats,
    slope: Floats,
    passage: Tokens,
    copying: float,
    lesson: float,
) -> tuple[int, int]:
    """Grow the tree of the most probable prefixes; see `NgramModel.tree`.

    Nodes come about in order of their probability to be reached, so that the tree of any size is
    a part of every larger one.

    Args:
        nodes: [room + 1], of which the first is the current token.
        text: its last tokens.
        depth: the deepest node.
        cost, slope: float64 [room + 1], see `CostCurve`.
        passage: what follows if the text goes on to repeat a passage.
        copying, lesson: see `successors` and `NgramModel.tree`.

    Returns:
        How many nodes have grown, and the number of them with the most expected tokens per cost.
    """
    room = len(cost) - 1
    root(nodes, text)
    start = nodes[0]
    start.value, start.count, start.depth, start.place, start.kind = 1.0, 0, 0, 0, COPIED
    # What waits is a successor of a node, or a node whose successors nobody has looked for (-1),
    # at what the best of them may have.
    most = (room + 1) * (CHILDREN + 1)
    queue = values, items = np.empty(most, np.float64), np.empty(most, np.int64)
    rows, children = np.empty(most, np.int64), np.empty(most, np.int64)
    rows[0], children[0] = 0, -1
    waiting = wait(queue, 0, 1.0, 0)
    made, size = 1, 0
    expected, best, best_size = 1.0, 1.0 / cost[0], 0
    while waiting and size < room:
        waiting -= 1
        value, row, child = values[waiting], rows[items[waiting]], children[items[waiting]]
        # Below this no number of further nodes pays.
        floor = best * slope[size] / lesson
        if value <= floor:
            break
        if waiting >= room - size:
            # There is no room for what is worse than all that wait.
            floor = max(floor, values[waiting - (room - size)])
        if child < 0:
            look(known, nodes, row, passage, copying, floor)
            node = nodes[row]
            for i in range(node.count):
                rows[made], children[made] = row, i
                share = min(node.shares[i], 1.0)
                waiting = wait(queue, waiting, share * node.value, made)
                made += 1
            continue
        size += 1
        node, parent = nodes[size], nodes[row]
        node.token, node.kind = parent.tokens[child], parent.kinds[child]
        node.parent, node.depth = row - 1, parent.depth + 1
        node.value, node.count = value, 0
        expected += lesson * value
        if expected >= best * cost[size]:
            best, best_size = expected / cost[size], size
        if node.depth < depth and value * HOPE > floor:
            rows[made], children[made] = size, -1
            waiting = wait(queue, waiting, value * HOPE, made)
            made += 1
    return size, best_size


@compiled
def judge(
    nodes: Nodes, tokens: Tokens, accepted: Tokens, promised: Floats, hits: Floats, trust: Floats
) -> None:
    """Compare what a tree promised with what the text became; see `NgramModel.judge`.

    Args:
        nodes: as `grow` left them, those that have grown.
        tokens: committed, int32.
        accepted: nodes, from 0 on for the first behind the current token, int32.
        promised, hits, trust: float64 [KINDS], which change.
    """
    for i in range(min(len(tokens), len(accepted) + 1)):
        row = accepted[i - 1] + 1 if i else 0
        if row >= len(nodes):
            break
        node = nodes[row]
        for j in range(node.count):
            kind = node.kinds[j]
            if kind != COPIED:  # Its source keeps a record of its own.
                promised[kind] = promised[kind] * MEMORY + node.shares[j] / trust[kind]
                hits[kind] = hits[kind] * MEMORY + (node.tokens[j] == tokens[i])
    for kind in range(1, KINDS):
        trust[kind] = min((hits[kind] + PRIOR) / (promised[kind] + PRIOR), TRUST)
