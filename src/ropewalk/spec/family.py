"""What the code of a model family adds to its config: pair layout, slice, axes, defaults."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from ropewalk.spec.pairs import PairLayout
    from ropewalk.spec.use import Stage

Slice = Literal["leading", "trailing", "mla", "rotary_dim"]
"""Which coordinates turn: the first or last share of the head, the rope part of [nope | rope],
or an absolute number of leading ones."""
Axis = Literal["contiguous", "strided", "ernie", "alternating"]


@dataclass(frozen=True)
class Convention:
    """One way of applying a table of cos and sin, shared by the families that name its id."""

    layout: PairLayout
    output_layout: PairLayout | None = None
    direction: Literal[1, -1] = 1
    slice: Slice = "leading"
    axes: Axis | None = None
    output_inverse: bool = False
    heads: tuple[int, ...] | None = None
    stage: Stage = "after_projection"

    @property
    def has_sections(self) -> bool:
        """Whether mrope_section says which axis drives which pairs."""
        return self.axes in ("contiguous", "strided", "ernie")


CONVENTIONS: dict[str, Convention] = {
    # half-split pairs; C1 to C4 differ in the arithmetic alone, not in the rotation
    "C1": Convention("half"),
    "C2": Convention("half"),
    "C3": Convention("half"),
    "C4": Convention("half"),
    "C5": Convention("half"),
    "C6": Convention("half"),
    "C7": Convention("half"),
    # adjacent pairs
    "C8": Convention("interleaved"),
    "C9": Convention("interleaved"),
    "C10": Convention("interleaved"),
    "C11": Convention("interleaved"),
    "C12": Convention("interleaved"),
    "C13": Convention("interleaved", slice="rotary_dim"),
    "C14": Convention("interleaved"),
    "C15": Convention("interleaved"),
    "C15-MLA": Convention("interleaved", slice="mla"),
    # read adjacent pairs, write halves: scores equal C15, cached vectors do not
    "C16": Convention("interleaved", "half", slice="mla"),
    "C17": Convention("half", slice="mla"),
    # indexers of sparse attention
    "C18": Convention("half"),
    "C19": Convention("interleaved", "half"),
    "C20": Convention("half", slice="trailing"),
    "C20-VL": Convention("interleaved", slice="trailing", axes="strided"),
    # the rest
    "C21": Convention("interleaved", slice="trailing", output_inverse=True),
    "C22": Convention("half", direction=-1),
    "C23": Convention("half", stage="before_projection"),
    "C25": Convention("interleaved", "half", heads=(0,)),
    # time, height and width
    "M1": Convention("half", axes="contiguous"),
    "M2": Convention("interleaved", axes="contiguous"),
    "M3": Convention("half", axes="strided"),
    "M4": Convention("interleaved", slice="mla", axes="strided"),
    "M5": Convention("interleaved", axes="ernie"),
    "M7": Convention("half", axes="alternating"),
}
"""Conventions whose ladder has one rung per pair. The others have a builder in ``towers``."""


@dataclass(frozen=True)
class Indexer:
    """The second rotation of a layer with sparse attention."""

    convention: str
    head_dim_key: str = "index_head_dim"
    optional: bool = False
    """Whether configs without the key mean a model without indexers."""

    def is_in(self, config: Mapping[str, Any]) -> bool:
        """Return whether a model has indexers.

        Args:
            config: The config that holds the rotation.
        """
        return not self.optional or config.get(self.head_dim_key) is not None


@dataclass(frozen=True)
class Family:
    """How one model_type reads its config."""

    convention: str
    """A key of :data:`CONVENTIONS`, or of the builders in ``towers``."""
    theta: float | Mapping[str, float] = 10_000.0
    """Documented base where the config has none; by label where layer types differ."""
    head_dim: int | None = None
    """Documented width of a head where the config has none; None: hidden size / heads."""
    partial: float | Mapping[str, float] | None = None
    """Documented share of the head that turns; None: the class does not read the key."""
    keys: Mapping[str, str] = field(default_factory=dict)
    """Names that this family has for hidden_size, num_attention_heads, head_dim, rope_theta, ...;
    of several, with spaces between them, the first that is there counts."""
    defaults: Mapping[str, Any] | None = None
    """Documented rope_parameters of a config without any (by label where they differ)."""
    theta_keys: Mapping[str, str] = field(default_factory=dict)
    """Label to the key beside the dictionary that holds its base, in configs of transformers 4."""
    scaled: tuple[str, ...] | None = None
    """Labels that a flat dictionary applies to; None: a flat dictionary is refused."""
    lost_theta: float | None = None
    """Base of a dictionary without one, where it is not the documented one."""
    own_base: bool = False
    """Whether a config without a dictionary has the documented base, whatever stands beside."""
    fixed: bool = False
    """Whether the class turns with the documented base and no rule, whatever the config says."""
    old_name_only: bool = False
    """Whether a flat dictionary counts as rope_scaling alone; as rope_parameters it is lost."""
    completes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Keys that the class adds to a flat dictionary, by rope_type."""
    renamed: Mapping[str, str] = field(default_factory=dict)
    """rope_types that this class takes for another."""
    unused: frozenset[str] = frozenset()
    """Keys of the dictionary that this class stores and does not use."""
    rope_types: tuple[str, ...] | None = None
    """rope_types that the class accepts; None: all that read a trained length it has."""
    sections: tuple[int, int, int] | None = None
    """Documented mrope_section."""
    layers: str = "all"
    """Which layers turn: a key of the rules in ``layers``."""
    every: tuple[str, int] | None = None
    """Key and default of the period with which layer types repeat, where they are not listed."""
    label_of: Mapping[str, str] = field(default_factory=dict)
    """Layer type to label, where the two differ."""
    indexer: Indexer | None = None
    scaled_softmax: bool = False
    """Whether scores are multiplied by the softmax factor of the rule, as DeepSeek does."""
    rotates_if: tuple[str, object, object] | None = None
    """Key, value and default: the model turns only where the config has the value."""
    switch: tuple[str, str] | None = None
    """Key, and the convention that it selects where it is False."""
    short_only: bool = False
    """Whether longrope reads the short factors at every length (Phi-3.5-MoE)."""

    @property
    def labels(self) -> tuple[str, ...]:
        """The layer types that have rotations of their own; empty where all are the same."""
        return tuple(self.theta) if isinstance(self.theta, Mapping) else ()

    def base(self, label: str) -> float:
        """Return the documented base.

        Args:
            label: Layer type, for classes with several bases.
        """
        if isinstance(self.theta, Mapping):
            return self.theta.get(label, next(iter(self.theta.values())))
        return self.theta

    def partial_of(self, label: str) -> float | None:
        """Return the documented share of the head that turns, or None where none is read.

        Args:
            label: Layer type, for classes with several shares.
        """
        return self.partial[label] if isinstance(self.partial, Mapping) else self.partial

    def convention_of(self, config: Mapping[str, Any]) -> Convention | None:
        """Return how the table is applied, or None where a builder of ``towers`` knows.

        Args:
            config: The config that holds the rotation.
        """
        if self.switch is not None and config.get(self.switch[0]) is False:
            return CONVENTIONS[self.switch[1]]
        return CONVENTIONS.get(self.convention)
