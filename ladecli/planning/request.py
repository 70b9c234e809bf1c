"""What is asked of the planner: a model, a kind of GPU, how many, and how they are joined."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import UsageError
from ..settings import Request

MOST = 1024
"""GPUs that are planned for."""
PER_NODE = 8
"""GPUs of a node, where nobody says how many."""
CONTEXT = 1024
"""Tokens of text behind which steps are estimated, as `lade profiles show` has them."""
LONGEST = 10_000_000
"""Tokens of context: more than any model has."""
FEWEST_ROWS = 8
"""The table reaches up to so many GPUs at least."""


@dataclass(frozen=True, slots=True)
class PlanRequest(Request):
    """The options of one call of `lade plan`.

    Attributes:
        gpus: in all; None for a table alone.
        gpu: their kind; None for that of this machine.
        model_size: of a typical model, where none is named.
        context_tokens: of text before a step; None for `CONTEXT`.
        nodes: machines that the GPUs are spread over.
        gpus_per_node: that a machine has.
        link: what joins them, as typed.
        text: the kind of text whose tokens per step are taken.
    """

    gpus: int | None = None
    gpu: str | None = None
    model_size: str | None = None
    context_tokens: int | None = None
    nodes: int | None = None
    gpus_per_node: int | None = None
    link: str | None = None
    text: str | None = None
    json: bool = False

    def _check(self) -> None:
        Request._check(self)
        for name in ("gpus", "nodes", "gpus_per_node"):
            value = getattr(self, name)
            if value is not None and not 1 <= value <= MOST:
                flag = name.replace("_", "-")
                raise UsageError(f"{flag} must be from 1 to {MOST}, not {value}")
        if not 1 <= self.context <= LONGEST:
            raise UsageError(f"context must be from 1 to {LONGEST} tokens, not {self.context}")
        if self.budget == 1:
            raise UsageError(
                "with --budget 1 lookahead is plain decoding, which the tables have anyway; use at"
                " least 2"
            )
        if self.model_size is not None and self.origins.get("model") == "argument":
            raise UsageError(f"{self.model} has a size of its own; leave --model-size out")
        if None not in (self.gpus, self.nodes):
            self._check_nodes(self.gpus or 0, self.nodes or 0)

    def _check_nodes(self, gpus: int, nodes: int) -> None:
        if self.gpus_per_node is not None and gpus > nodes * self.gpus_per_node:
            raise UsageError(
                f"{gpus} GPUs do not fit in {nodes} nodes of {self.gpus_per_node}; raise --nodes"
                " or --gpus-per-node"
            )
        if self.gpus_per_node is None and gpus % nodes:
            raise UsageError(
                f"{gpus} GPUs cannot be spread evenly over {nodes} nodes; say --gpus-per-node"
            )

    @property
    def context(self) -> int:
        """Tokens of text before a step."""
        return CONTEXT if self.context_tokens is None else self.context_tokens

    @property
    def per_node(self) -> int:
        """GPUs of a node."""
        if self.gpus_per_node is not None:
            return self.gpus_per_node
        return self.gpus // self.nodes if self.gpus and self.nodes else PER_NODE

    @property
    def counts(self) -> list[int]:
        """Numbers of GPUs to estimate: powers of two, and what was asked for."""
        last = max(FEWEST_ROWS, self.gpus or 0, (self.nodes or 0) * self.per_node)
        found = {1 << power for power in range(last.bit_length()) if 1 << power <= last}
        return sorted(found | ({self.gpus} if self.gpus else set()))
