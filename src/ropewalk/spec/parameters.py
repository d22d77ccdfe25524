"""Read and write the ``rope_parameters`` dictionary of transformers 5."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from ropewalk.errors import ConfigError
from ropewalk.spec import checks
from ropewalk.spec.by_length import DynamicNTK, LongRope
from ropewalk.spec.by_pair import CustomFactors, PRope, Proportional, Resonance
from ropewalk.spec.by_parts import Llama3, Yarn
from ropewalk.spec.rope_spec import RopeSpec
from ropewalk.spec.scaling import NTK, Linear, ScalingRule

if TYPE_CHECKING:
    from collections.abc import Callable

    from ropewalk.spec.pairs import PairLayout

_ORIGINAL = "original_max_position_embeddings"
_OPTIONAL_OF_YARN = ("beta_fast", "beta_slow", "mscale", "mscale_all_dim", "attention_factor")
_OPTIONAL_OF_LONGROPE = ("attention_factor", "short_mscale", "long_mscale")


def spec_from_rope_parameters(
    parameters: Mapping[str, Any] | None,
    *,
    head_dim: int,
    layout: PairLayout,
    max_position_embeddings: int | None = None,
    original_max_position_embeddings: int | None = None,
    rope_theta: float = 10_000.0,
) -> RopeSpec:
    """Return the rotation that a ``rope_parameters`` dictionary means for one head.

    A key with the value None counts as absent. Every key must be one that the rope_type uses.

    Args:
        parameters: Keys ``rope_type`` (or ``type``; see :data:`ROPE_TYPES`), ``rope_theta``,
            ``partial_rotary_factor`` and those of the rule. None means the plain ladder.
        head_dim: Width of a head.
        layout: Pair layout of the model, which the dictionary does not hold.
        max_position_embeddings: The entry of the config beside the dictionary: the trained
            length of the type "dynamic", and the numerator of a missing ``factor`` for "yarn" and
            "longrope". None: not known.
        original_max_position_embeddings: The entry beside the dictionary where the config has
            one, as Phi-3 does. None: look in the dictionary alone.
        rope_theta: Base where the dictionary has none; transformers takes 10,000 for most models.

    Raises:
        ConfigError: A key is unknown, missing or contradicted, or a value is out of range.

    References:
        ``ROPE_INIT_FUNCTIONS`` and ``RotaryEmbeddingConfigMixin`` of transformers 5.24.

    Example:
        >>> p = {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}
        >>> spec_from_rope_parameters(p, head_dim=64, layout="half").scaling
        Linear(factor=2.0)
    """
    head_dim = checks.integer("head_dim", head_dim, at_least=1)
    keys = _Keys(parameters, max_position_embeddings, original_max_position_embeddings)
    theta = keys.take("rope_theta", rope_theta)
    rotary_dim = head_dim
    if keys.rope_type != "proportional":  # which covers the full head and stops pairs of it
        partial = checks.real(
            "partial_rotary_factor", keys.take("partial_rotary_factor", 1.0), above=0.0
        )
        if partial > 1.0:
            raise ConfigError(f"partial_rotary_factor must be at most 1; got {partial!r}")
        rotary_dim = int(head_dim * partial)
    scaling = _READERS[keys.rope_type](keys)
    keys.refuse_the_rest()
    return RopeSpec(head_dim, layout, theta=theta, rotary_dim=rotary_dim, scaling=scaling)


def is_carrier(values: Mapping[str, Any]) -> bool:
    """Return whether a longrope dictionary holds one fixed table, which needs no lengths.

    Args:
        values: The dictionary.
    """
    lists = values.get("short_factor"), values.get("long_factor")
    others = any(key in values for key in ("factor", "short_mscale", "long_mscale"))
    fixed = lists[0] is not None and lists[0] == lists[1] and "attention_factor" in values
    return fixed and not others


class _Keys:
    """A dictionary while it is read; what nobody has taken at the end is refused."""

    def __init__(self, parameters: object, longest: int | None, original: int | None) -> None:
        if parameters is not None and not isinstance(parameters, Mapping):
            raise ConfigError(
                f"rope_parameters must be a dictionary or None; got {checks.abridged(parameters)}"
            )
        self.rest = dict(parameters or {})
        self.longest, self.original = longest, original
        names = [self.rest.pop(key, None) for key in ("rope_type", "type")]
        if None not in names and names[0] != names[1]:
            raise ConfigError(
                "rope_type and type must be equal where both are given; "
                f"got rope_type={checks.abridged(names[0])}, type={checks.abridged(names[1])}"
            )
        given = next((name for name in names if name is not None), "default")
        checks.choice("rope_type", given, ROPE_TYPES)
        self.rope_type = str(given)

    def take(self, key: str, default: Any = None) -> Any:
        """Return the value of a key that may be absent."""
        value = self.rest.pop(key, None)
        return default if value is None else value

    def need(self, *names: str) -> dict[str, Any]:
        """Return the values of keys that must be there."""
        values = {key: self.take(key) for key in names}
        missing = [key for key, value in values.items() if value is None]
        if missing:
            raise ConfigError(
                f"rope_type {self.rope_type!r} needs the key {missing[0]!r}; got {self._shown()}"
            )
        return values

    def maybe(self, *names: str) -> dict[str, Any]:
        """Return the values of those keys that are there."""
        values = {key: self.take(key) for key in names}
        return {key: value for key, value in values.items() if value is not None}

    def trained_length(self, beside: int | None, name: str) -> int:
        """Return the trained length: that of the dictionary, or the one beside it."""
        inside = self.take(_ORIGINAL)
        if inside is None and beside is None:
            raise ConfigError(
                f"rope_type {self.rope_type!r} needs the key {_ORIGINAL!r}, the trained length, or "
                f"{name} as an argument; got {self._shown()}"
            )
        if inside is not None and beside is not None and inside != beside:
            raise ConfigError(
                f"{_ORIGINAL} in rope_parameters must be {name} beside it, which transformers "
                f"takes; got {checks.abridged(inside)} and {checks.abridged(beside)}"
            )
        return checks.length(_ORIGINAL, beside if inside is None else inside)

    def factor(self, trained: int) -> dict[str, Any]:
        """Return the factor, or where it is absent the ratio of the lengths, if known."""
        factor = self.take("factor")
        if factor is None and self.longest is not None:
            factor = checks.length("max_position_embeddings", self.longest) / trained
        return {} if factor is None else {"factor": factor}

    def refuse_the_rest(self) -> None:
        """Refuse keys that the rope_type does not use."""
        unused = sorted((k for k, v in self.rest.items() if v is not None), key=str)
        if unused:
            raise ConfigError(
                f"rope_parameters has the key {checks.abridged(unused[0])}, which rope_type "
                f"{self.rope_type!r} does not use; got {checks.abridged(self.rest[unused[0]])}; "
                "remove it"
            )

    def _shown(self) -> str:
        return checks.abridged({"rope_type": self.rope_type} | self.rest)


def _read_dynamic(keys: _Keys) -> ScalingRule:
    alpha = keys.take("alpha")
    if alpha is not None:
        return DynamicNTK(alpha=alpha)
    factor = keys.need("factor")["factor"]
    return DynamicNTK(factor, keys.trained_length(keys.longest, "max_position_embeddings"))


def _read_yarn(keys: _Keys) -> ScalingRule:
    trained = keys.trained_length(keys.original, _ORIGINAL)
    factor = keys.factor(trained) or keys.need("factor")
    optional = keys.maybe(*_OPTIONAL_OF_YARN, "truncate")
    return Yarn(original_max_position_embeddings=trained, **factor, **optional)


def _read_llama3(keys: _Keys) -> ScalingRule:
    trained = keys.trained_length(keys.original, _ORIGINAL)
    needed = keys.need("factor", "low_freq_factor", "high_freq_factor")
    return Llama3(original_max_position_embeddings=trained, **needed)


def _read_longrope(keys: _Keys) -> ScalingRule:
    lists = keys.need("short_factor", "long_factor")
    short, long = (checks.reals(name, values, above=0.0) for name, values in lists.items())
    optional = keys.maybe(*_OPTIONAL_OF_LONGROPE)
    no_length = keys.original is None and keys.rest.get(_ORIGINAL) is None
    if no_length and list(optional) == ["attention_factor"] and short == long:
        return CustomFactors(short, optional["attention_factor"])
    trained = keys.trained_length(keys.original, _ORIGINAL)
    return LongRope(short, long, trained, **keys.factor(trained), **optional)


def _read_proportional(keys: _Keys) -> ScalingRule:
    return Proportional(keys.take("partial_rotary_factor", 1.0), **keys.maybe("factor"))


_READERS: dict[str, Callable[[_Keys], ScalingRule | None]] = {
    "default": lambda _: None,
    "linear": lambda keys: Linear(**keys.need("factor")),
    "ntk": lambda keys: NTK(**keys.need("factor")),
    "dynamic": _read_dynamic,
    "yarn": _read_yarn,
    "llama3": _read_llama3,
    "longrope": _read_longrope,
    "proportional": _read_proportional,
}
ROPE_TYPES = tuple(_READERS)
"""Every rope_type that can be read: those of transformers 5.24, and "ntk"."""


def rope_parameters_from_spec(spec: RopeSpec) -> dict[str, Any]:
    """Return the dictionary of transformers 5 that means the same frequencies.

    Rules without a name there are written as what they are: NTK as a larger ``rope_theta``, p-RoPE
    as "proportional", and any other rule of fixed frequencies as "longrope" with two equal lists.
    The trained length of the dynamic rule is written as ``original_max_position_embeddings``;
    transformers reads ``max_position_embeddings`` of the config instead, which must agree.

    Args:
        spec: The rotation. Its layout belongs to the model class and is not written.

    Raises:
        ConfigError: A field of the spec has no key in the dictionary.
    """
    plain = RopeSpec(
        spec.head_dim,
        spec.layout,
        theta=spec.theta,
        rotary_dim=spec.rotary_dim,
        scaling=spec.scaling,
        angle_dtype=spec.angle_dtype,
    )
    if spec != plain:
        raise ConfigError(
            "rope_parameters can hold theta, a leading rotary_dim and the scaling rule only; "
            f"got {checks.abridged(spec)}"
        )
    parameters: dict[str, Any] = {"rope_type": "default", "rope_theta": spec.theta}
    if spec.rotary_dim != spec.head_dim:
        parameters["partial_rotary_factor"] = _fraction(spec.rotary_dim, spec.head_dim)
    return parameters | _written(spec)


def _written(spec: RopeSpec) -> dict[str, Any]:
    """Return the keys of the rule."""
    match spec.scaling:
        case None:
            return {}
        case Linear(factor=factor):
            return {"rope_type": "linear", "factor": factor}
        case NTK() as ntk:
            return {"rope_theta": ntk.theta(spec.ladder)}
        case DynamicNTK(alpha=None) as rule:
            return {"rope_type": "dynamic"} | _fields(rule, "factor", _ORIGINAL)
        case DynamicNTK(alpha=alpha):
            return {"rope_type": "dynamic", "alpha": alpha}
        case Yarn(ramp="code") as rule:
            return _written_yarn(rule)
        case Llama3() as rule:
            names = ("factor", _ORIGINAL, "low_freq_factor", "high_freq_factor")
            return {"rope_type": "llama3"} | _fields(rule, *names)
        case LongRope() as rule:
            lists = {"short_factor": [*rule.short_factor], "long_factor": [*rule.long_factor]}
            others = _fields(rule, _ORIGINAL, "factor", *_OPTIONAL_OF_LONGROPE)
            return {"rope_type": "longrope"} | lists | others
        case PRope(p=p):
            return _written_proportional(spec, Proportional(p))
        case Proportional() as rule:
            return _written_proportional(spec, rule)
        case CustomFactors() | Resonance() | Yarn() as rule if not rule.depends_on_length:
            return _written_carrier(spec)
        case rule:
            raise ConfigError(f"rope_parameters has no rope_type for {checks.abridged(rule)}")


def _fields(rule: ScalingRule, *names: str) -> dict[str, Any]:
    """Return those of the fields that are set."""
    values = {name: getattr(rule, name) for name in names}
    return {name: value for name, value in values.items() if value is not None}


def _written_yarn(rule: Yarn) -> dict[str, Any]:
    """Return YaRN's keys, with the attention factor where transformers computes another one."""
    parameters = {"rope_type": "yarn"} | _fields(rule, "factor", _ORIGINAL, *_OPTIONAL_OF_YARN)
    parameters["truncate"] = rule.truncate
    one_is_missing = not (rule.mscale and rule.mscale_all_dim)
    formula = Yarn(rule.factor, rule.original_max_position_embeddings)
    if one_is_missing and rule.amplitude(None) != formula.amplitude(None):
        parameters["attention_factor"] = rule.amplitude(None)
    return parameters


def _written_proportional(spec: RopeSpec, rule: Proportional) -> dict[str, Any]:
    """Return the keys of the rule, which transformers applies to the whole head."""
    if spec.rotary_dim != spec.head_dim:
        raise ConfigError(
            "rope_type 'proportional' covers the whole head; got "
            f"rotary_dim={spec.rotary_dim}, head_dim={spec.head_dim}"
        )
    return {"rope_type": "proportional"} | _fields(rule, "partial_rotary_factor", "factor")


def _written_carrier(spec: RopeSpec) -> dict[str, Any]:
    """Return "longrope" with two equal lists, which switches nothing at any length."""
    rule = spec.scaling
    if isinstance(rule, CustomFactors):
        factors = list(rule.factors)
    else:
        with np.errstate(divide="ignore", invalid="ignore"):
            factors = (spec.ladder.inv_freq() / spec.inv_freq()).tolist()
    if not all(map(math.isfinite, factors)):
        raise ConfigError(
            "rope_parameters cannot hold a pair that stands still, since JSON has no infinity; "
            f"got {checks.abridged(rule)}; use Proportional for the slow end"
        )
    return {
        "rope_type": "longrope",
        "short_factor": factors,
        "long_factor": list(factors),
        "attention_factor": spec.attention_factor(),
    }


def _fraction(part: int, whole: int) -> float:
    """Return the float from which ``int(whole * fraction)`` gives ``part`` back."""
    fraction = part / whole
    return fraction if int(whole * fraction) == part else math.nextafter(fraction, 1.0)
