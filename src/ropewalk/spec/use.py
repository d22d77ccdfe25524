"""Where a model applies a rotation, which is no part of what the rotation is."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Literal, get_args

from ropewalk.errors import ConfigError
from ropewalk.spec import checks
from ropewalk.spec.rope_spec import RopeSpec

Stage = Literal["after_projection", "before_projection"]
"""Whether queries and keys are rotated, or the hidden states they are projected from."""


@dataclass(frozen=True)
class RopeUse:
    """Say which vectors of a layer a rotation turns, and what goes with it.

    Raises:
        ConfigError: A field is out of range; the message names it.

    Example:
        >>> use = RopeUse(RopeSpec(64, "half"), heads=(0,))
        >>> use.queries, use.values, use.heads
        (True, False, (0,))
    """

    spec: RopeSpec
    """The rotation."""
    _: KW_ONLY
    queries: bool = True
    """Whether queries are rotated."""
    keys: bool = True
    """Whether keys are rotated."""
    values: bool = False
    """Whether values are rotated, as RoFormer with ``rotary_value`` and CLVP do."""
    output_inverse: bool = False
    """Whether the attention output is turned back at the position of the query (DeepSeek-V4)."""
    heads: tuple[int, ...] | None = None
    """Indices of the heads that are rotated; None means all."""
    stage: Stage = "after_projection"
    """"before_projection": the hidden states are rotated head by head, then projected."""
    softmax_scale_factor: float = 1.0
    """Factor on the scores that the model applies beside the tables, greater than 0."""

    def __post_init__(self) -> None:
        spec: object = self.spec
        if not isinstance(spec, RopeSpec):
            raise ConfigError(f"spec must be a RopeSpec; got {checks.abridged(spec)}")
        for name in ("queries", "keys", "values", "output_inverse"):
            checks.boolean(name, getattr(self, name))
        checks.choice("stage", self.stage, get_args(Stage))
        if self.heads is not None:
            heads = tuple(checks.integer("heads", head, at_least=0) for head in self.heads)
            object.__setattr__(self, "heads", heads)
        factor = checks.real("softmax_scale_factor", self.softmax_scale_factor, above=0.0)
        object.__setattr__(self, "softmax_scale_factor", factor)
