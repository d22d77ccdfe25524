"""Read and write the ``rope_parameters`` dictionary of transformers 5."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ropewalk.errors import ConfigError
from ropewalk.spec import checks
from ropewalk.spec.rope_spec import PairLayout, RopeSpec
from ropewalk.spec.scaling import NTK, Linear, ScalingRule

if TYPE_CHECKING:
    from collections.abc import Mapping

_FACTOR_RULES: dict[str, type[Linear | NTK]] = {"linear": Linear, "ntk": NTK}
ROPE_TYPES = ("default", *_FACTOR_RULES)


def spec_from_rope_parameters(
    parameters: Mapping[str, Any] | None, *, head_dim: int, layout: PairLayout
) -> RopeSpec:
    """Return the rotation that a ``rope_parameters`` dictionary means for one head.

    Args:
        parameters: Keys ``rope_type`` ("default", "linear" or "ntk"), ``rope_theta``,
            ``partial_rotary_factor`` and, for the scaling rules, ``factor``. None means the
            plain ladder on base 10,000.
        head_dim: Width of a head.
        layout: Pair layout of the model, which the dictionary does not hold.

    Raises:
        ConfigError: A key is unknown or missing, or a value is out of range.

    Example:
        >>> p = {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}
        >>> spec_from_rope_parameters(p, head_dim=64, layout="half").scaling
        Linear(factor=2.0)
    """
    rest = dict(parameters) if parameters is not None else {}
    rope_type = rest.pop("rope_type", "default")
    checks.choice("rope_type", rope_type, ROPE_TYPES)
    theta = rest.pop("rope_theta", 10_000.0)
    partial = checks.real(
        "partial_rotary_factor", rest.pop("partial_rotary_factor", 1.0), above=0.0
    )
    if partial > 1.0:
        raise ConfigError(f"partial_rotary_factor must be at most 1; got {partial!r}")
    scaling: ScalingRule | None = None
    if rope_type in _FACTOR_RULES:
        if "factor" not in rest:
            raise ConfigError(f"rope_type {rope_type!r} needs the key 'factor'; got {parameters!r}")
        scaling = _FACTOR_RULES[rope_type](factor=rest.pop("factor"))
    if rest:
        key = sorted(rest)[0]
        raise ConfigError(
            f"rope_parameters has the key {key!r}, which rope_type {rope_type!r} does not use; "
            f"got {rest[key]!r}; remove it"
        )
    return RopeSpec(
        head_dim, layout, theta=theta, rotary_dim=int(head_dim * partial), scaling=scaling
    )


def rope_parameters_from_spec(spec: RopeSpec) -> dict[str, Any]:
    """Return the dictionary of transformers 5 that means the same frequencies.

    The NTK rule has no name there; it is written as what it is, a larger ``rope_theta``.

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
            f"got {spec!r}"
        )
    parameters: dict[str, Any] = {"rope_type": "default", "rope_theta": spec.theta}
    if isinstance(spec.scaling, NTK):
        parameters["rope_theta"] = spec.scaling.theta(spec.ladder)
    elif isinstance(spec.scaling, Linear):
        parameters |= {"rope_type": "linear", "factor": spec.scaling.factor}
    elif spec.scaling is not None:
        raise ConfigError(f"rope_parameters has no rope_type for {spec.scaling!r}")
    if spec.rotary_dim != spec.head_dim:
        parameters["partial_rotary_factor"] = spec.rotary_dim / spec.head_dim
    return parameters
