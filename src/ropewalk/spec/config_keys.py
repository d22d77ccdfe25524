"""Gather what a config says about its rotations, whichever release of transformers wrote it.

The one place that knows the keys of a rope dictionary, where each may stand, and which of two
wins. :func:`gather` reads strictly, and refuses entries that contradict each other or reach no
layer; or it lets win what wins in transformers, and ``ropewalk.spec.diagnose`` names the rest.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ropewalk.errors import ConfigError, RopeConfigWarning
from ropewalk.spec import checks
from ropewalk.spec.parameters import is_carrier
from ropewalk.spec.unread_entries import warn_of_unread

if TYPE_CHECKING:
    from ropewalk.spec.family import Family

ALL = "all"
"""Label of the one rotation of a model whose layers do not differ."""
ORIGINAL = "original_max_position_embeddings"
_PARTIAL = "partial_rotary_factor"
_NEED_ORIGINAL = ("llama3", "yarn", "longrope")
KEYS_OF_TYPE = {
    "default": "",
    "linear": "factor",
    "ntk": "factor",
    "dynamic": "factor alpha",
    "yarn": f"factor {ORIGINAL} beta_fast beta_slow mscale mscale_all_dim attention_factor "
    "truncate",
    "llama3": f"factor {ORIGINAL} low_freq_factor high_freq_factor",
    "longrope": f"factor {ORIGINAL} short_factor long_factor attention_factor short_mscale "
    "long_mscale",
    "proportional": "factor",
}
"""Keys that every rope_type reads, beside those of :data:`_OF_EVERY_TYPE`."""
_OF_EVERY_TYPE = ("rope_type", "type", "rope_theta", _PARTIAL)
MROPE_KEYS = ("mrope_section", "mrope_interleaved", "interleaved")
"""Keys of classes with several position axes."""
QUERY_SCALING = "llama_4_scaling_beta"
"""Key of a factor on the queries that grows with the position, beside the rotation."""
ROPE_KEYS = frozenset(
    (*_OF_EVERY_TYPE, *" ".join(KEYS_OF_TYPE.values()).split(), *MROPE_KEYS[:2], QUERY_SCALING)
)
"""Keys that some reader of a rope dictionary uses."""


@dataclass(frozen=True)
class Merged:
    """One complete rope dictionary, and what was written of it.

    Example:
        >>> from ropewalk.spec.family import Family
        >>> gather(Family("C1"), {"rope_theta": 1e5})["all"].values
        {'rope_theta': 100000.0, 'rope_type': 'default'}
    """

    values: Mapping[str, Any]
    """Keys and values that the rotary module receives."""
    written: Mapping[str, Any]
    """The dictionary as the file has it, before defaults."""
    nested: bool
    """Whether the class reads it below a layer type."""
    label: str = ALL
    """The layer type that it is for."""
    original_inside: Any = None
    """Trained length in the dictionary, or in the one that the class documents in its place."""
    original_assumed: bool = False
    """Whether max_position_embeddings stands in for the trained length."""
    also: frozenset[str] = frozenset()
    """Keys that the class reads whatever the rule."""
    unused: frozenset[str] = frozenset()
    """Keys that the class stores and does not use."""

    @property
    def rope_type(self) -> str:
        """The rule's name."""
        return str(self.values.get("rope_type"))

    @property
    def used(self) -> tuple[str, ...]:
        """Keys that the rule and the class read."""
        known = {*_OF_EVERY_TYPE, *KEYS_OF_TYPE.get(self.rope_type, "").split(), *self.also}
        return tuple(key for key in self.values if key in known - self.unused)

    @property
    def ignored(self) -> tuple[str, ...]:
        """Keys that nothing reads."""
        used = self.used
        lost = (k for k, v in self.written.items() if v is not None and k not in _OF_EVERY_TYPE)
        return tuple(key for key in dict.fromkeys((*self.values, *lost)) if key not in used)


def entry(family: Family, config: Mapping[str, Any], key: str, label: str = ALL) -> Any:
    """Return an entry under the names that the family has for it, or None.

    Args:
        family: The family.
        config: The config.
        key: Its usual name.
        label: Layer type, where the name depends on it.
    """
    own = f"{family.keys.get(f'{key}/{label}', '')} {family.keys.get(key, '')}".split()
    if key != "rope_theta" or not own:  # of which no class reads two names
        own.append(key)
    values = (config.get(name) for name in own)
    return next((value for value in values if value is not None), None)


def gather(
    family: Family, config: Mapping[str, Any], *, strict: bool = True
) -> dict[str, Merged | None]:
    """Return the complete dictionary of every label; None for layers that do not turn.

    Args:
        family: The family.
        config: The config that holds the rotation.
        strict: Whether to refuse what contradicts itself or reaches no layer, and to warn of what
            is assumed or ignored; else what wins in transformers wins here.

    Raises:
        ConfigError: An entry is of the wrong kind; or if strict, as said there.

    References:
        ``RotaryEmbeddingConfigMixin`` and ``Gemma3TextConfig`` of transformers 5.24.
    """
    if strict:
        warn_of_unread(family, config)
    return _Gathering(family, config, strict).result()


class _Gathering:
    """One config while its entries are put together."""

    def __init__(self, family: Family, config: Mapping[str, Any], strict: bool) -> None:
        self.family, self.config, self.strict = family, config, strict

    def result(self) -> dict[str, Merged | None]:
        """Return the dictionaries by label."""
        old, new = (_dictionary(self.config, key) for key in ("rope_scaling", "rope_parameters"))
        if self.family.labels:
            return self.by_label(old, new)
        if old and new:
            self.compare(old, new)
        written = old or new
        below = sorted(key for key, value in written.items() if isinstance(value, Mapping))
        if below:
            self.refuse(
                "rope_parameters of this model_type must be one flat dictionary; "
                f"got {checks.abridged(written)}"
            )
        flat = {key: value for key, value in written.items() if key not in below}
        return {ALL: self.completed(flat, ALL)}

    def by_label(self, old: dict[str, Any], new: dict[str, Any]) -> dict[str, Merged | None]:
        """Return the dictionaries of a family whose layer types have rotations of their own."""
        family = self.family
        if family.old_name_only:  # rope_scaling completes rope_parameters, which must be nested
            written, flat = new, old
            if new and not set(new) & set(family.labels):
                self.refuse(f"rope_parameters of this model_type {self.one_each(new)}")
        else:
            if old and new:
                self.compare(old, new)
            written = old or new
            flat = {} if set(written) & set(family.labels) else written
        if flat.get("rope_theta") is not None and not family.old_name_only and family.scaled:
            raise ConfigError(
                "rope_theta must stand beside a flat dictionary of this model_type, under "
                f"{list(family.theta_keys.values())}; got {checks.abridged(flat['rope_theta'])}"
            )
        if flat and family.scaled is None:
            raise ConfigError(f"rope_parameters of this model_type {self.one_each(flat)}")
        outside = sorted(set(written) - set(family.labels) - {"rope_theta", "rope_type"})
        if outside and not flat:
            self.warn(f"rope_parameters has the key {checks.abridged(outside[0])} beside its types")
        result: dict[str, Merged | None] = {}
        for label in family.labels:
            own = written.get(label, {})
            if own is None and not family.old_name_only:
                result[label] = None
                continue
            own = {} if own is None else own
            if not isinstance(own, Mapping):
                raise ConfigError(f"rope_parameters {self.one_each(written)}")
            extra = self.flat_part(flat) if label in (family.scaled or ()) else {}
            if names_rule_too_late(family, extra, own):
                self.refuse(
                    "rope_scaling of this model_type must name its rule rope_type, since type is "
                    f"passed over; got {checks.abridged(extra)}"
                )
                own = {"rope_type": "default"}
            differing = {k: v for k, v in extra.items() if own.get(k, v) != v}
            if differing:
                self.refuse(
                    "rope_scaling and rope_parameters must agree where both are given; "
                    f"got {checks.abridged(differing)} in rope_scaling alone"
                )
            result[label] = self.completed({**own, **extra}, label)
        return result

    def flat_part(self, flat: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return a flat dictionary with what the class adds to its rule."""
        kind = flat.get("rope_type", flat.get("type"))
        added = self.family.completes.get(kind, {}) if isinstance(kind, str) else {}
        return {**added, **flat}

    def one_each(self, got: object) -> str:
        labels = list(self.family.labels)
        return f"must have one dictionary for each of {labels}; got {checks.abridged(got)}"

    def compare(self, old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
        """Refuse two dictionaries that say different things; transformers drops the new one."""
        one, other = self.plain(old), self.plain(new)
        differing = {
            key: one.get(key, other.get(key))
            for key in (*one, *other)
            if one.get(key) != other.get(key)
        }
        if differing:
            self.refuse(
                "rope_scaling and rope_parameters must agree where both are given; "
                f"got {checks.abridged(differing)} in one alone"
            )

    def plain(self, written: Mapping[str, Any]) -> dict[str, Any]:
        """Return a dictionary as far as its meaning goes, without the names it goes by."""
        values = {key: value for key, value in written.items() if value is not None}
        legacy = values.pop("type", "default")
        values.setdefault("rope_type", legacy)
        if not self.family.labels:
            values.setdefault("rope_theta", self.theta(ALL))
        return values

    def completed(self, written: Mapping[str, Any], label: str) -> Merged | None:
        """Return one dictionary with the entries beside it and the documented defaults."""
        family = self.family
        start: Any = written
        if not written:
            defaults: Any = family.defaults or {}
            start = defaults.get(label) if family.labels and defaults else defaults
            if start is None:
                return None
        values = {str(key): value for key, value in start.items() if value is not None}
        self.rename_type(values)
        self.complete_theta(values, label, bool(written))
        values.setdefault("rope_type", "default")
        if family.fixed:
            plain = {"rope_theta": family.base(label), "rope_type": "default"}
            if values != plain:
                self.refuse(
                    f"rope_parameters of this model_type must be {plain}, since it reads none; "
                    f"got {checks.abridged(values)}"
                )
            values = plain
        self.complete_partial(values, label)
        inside = values.get(ORIGINAL)
        assumed = self.complete_original(values)
        unused = family.unused & set(values)
        if "alpha" not in values:
            unused -= {"factor"}
        if self.strict:
            for key in sorted(unused):
                self.warn(f"rope_parameters has the key {key!r}, which this model_type ignores")
                del values[key]
        convention = family.convention_of(self.config)
        several = convention is not None and convention.has_sections
        also = frozenset(MROPE_KEYS) if several else frozenset()
        nested, unused = bool(family.labels), frozenset(unused)
        return Merged(values, dict(written), nested, label, inside, assumed, also, unused)

    def rename_type(self, values: dict[str, Any]) -> None:
        """Write the type under its new name, and as the class takes it."""
        family = self.family
        for key in ("rope_type", "type"):
            name = values.get(key)
            if isinstance(name, str):
                # the axial classes are named by what they are, and their ladder is a plain one
                axial = name == "axial" and family.convention[0] == "V"
                values[key] = "default" if axial else family.renamed.get(name, name)
        if "type" in values and (
            not self.strict or values.get("rope_type", values["type"]) == values["type"]
        ):
            values.setdefault("rope_type", values["type"])
            del values["type"]  # if strict, a differing one is left for the rules to refuse

    def beside_theta(self, label: str) -> Any:
        if self.family.labels:
            key = self.family.theta_keys.get(label)
            return None if key is None else self.config.get(key)
        return entry(self.family, self.config, "rope_theta")

    def complete_theta(self, values: dict[str, Any], label: str, written: bool) -> None:
        """Add the base from beside the dictionary, or the documented one."""
        family = self.family
        beside, inside = self.beside_theta(label), values.get("rope_theta")
        if family.own_base and not written:
            inside = family.base(label)
        if beside is not None and inside is not None and beside != inside:
            self.refuse(
                "rope_theta must be the same beside rope_parameters and inside; got "
                f"{checks.abridged(beside)} and {checks.abridged(inside)}"
            )
        values["rope_theta"] = self.theta(label, written) if inside is None else inside
        scaled = KEYS_OF_TYPE.get(str(values.get("rope_type")), "") != ""  # others are refused
        if inside is None and beside is None and written and scaled and not family.fixed:
            self.warn(
                "a scaling rule needs rope_theta; this model_type takes "
                f"{checks.abridged(values['rope_theta'])} without; write the trained base"
            )

    def theta(self, label: str, written: bool = True) -> Any:
        """Return the base of a dictionary without one."""
        beside, lost = self.beside_theta(label), self.family.lost_theta
        documented = lost if written and lost is not None else self.family.base(label)
        return documented if beside is None else beside

    def complete_partial(self, values: dict[str, Any], label: str) -> None:
        """Add the share of the head that turns, or take out one that is not read."""
        family, proportional = self.family, values.get("rope_type") == "proportional"
        beside = entry(family, self.config, _PARTIAL, label)
        if beside is not None:
            values.setdefault(_PARTIAL, beside)
        documented = family.partial_of(label)
        if documented is None:
            if values.get(_PARTIAL, 1.0) != 1.0:
                self.refuse(
                    f"{_PARTIAL} must be 1 or absent, since this model_type does not read it; "
                    f"got {checks.abridged(values[_PARTIAL])}"
                )
                del values[_PARTIAL]
            return
        absolute = "rotary_dim" in family.keys and entry(family, self.config, "rotary_dim")
        if not absolute:
            values.setdefault(_PARTIAL, documented)
        convention = family.convention_of(self.config)
        restates = convention is not None and convention.slice == "mla"  # qk_rope_head_dim
        if not proportional and (restates or values.get(_PARTIAL) == 1.0):
            values.pop(_PARTIAL, None)

    def complete_original(self, values: dict[str, Any]) -> bool:
        """Add the trained length from beside the dictionary; return whether it is assumed."""
        if values.get("rope_type") not in _NEED_ORIGINAL:
            return False
        inside, beside = values.get(ORIGINAL), self.config.get(ORIGINAL)
        if beside is not None and beside != inside:
            below = bool(self.family.labels)  # where transformers looks inside alone
            if inside is not None or below:
                self.refuse(
                    f"{ORIGINAL} must be the same beside rope_parameters and inside; got "
                    f"{checks.abridged(beside)} and {checks.abridged(inside)}"
                )
            if not below:
                values[ORIGINAL] = beside
        longest = entry(self.family, self.config, "max_position_embeddings")
        if ORIGINAL in values or longest is None:
            return False
        values[ORIGINAL] = longest
        if not is_carrier(values):
            self.warn(
                f"rope_parameters has no {ORIGINAL}; transformers takes max_position_embeddings, "
                f"{checks.abridged(longest)}"
            )
        return True

    def refuse(self, message: str) -> None:
        if self.strict:
            raise ConfigError(message)

    def warn(self, message: str) -> None:
        if self.strict:
            warnings.warn(message, RopeConfigWarning, stacklevel=3)


def names_rule_too_late(family: Family, old: Mapping[str, Any], own: Mapping[str, Any]) -> bool:
    """Return whether a type in rope_scaling comes after a rope_type that the class has set.

    Args:
        family: The family.
        old: What rope_scaling holds.
        own: What rope_parameters holds for the layer type.
    """
    legacy = old.get("type") not in (None, "default")
    return family.old_name_only and legacy and "rope_type" not in {**own, **old}


def _dictionary(config: Mapping[str, Any], name: str) -> dict[str, Any]:
    value = config.get(name)
    if value is not None and not isinstance(value, Mapping):
        raise ConfigError(f"{name} must be a dictionary or null; got {checks.abridged(value)}")
    return {str(key): item for key, item in (value or {}).items()}
