"""What a config says of single layers: how far each one looks, and how it turns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ropewalk.errors import ConfigError
from ropewalk.spec import RopeSpec, spec_from_rope_parameters
from ropewalk.spec.checks import abridged, boolean, integer

if TYPE_CHECKING:
    from ropewalk.models.config import RopewalkRoFormerConfig

FULL, SLIDING = "full_attention", "sliding_attention"
LAYER_TYPES = (FULL, SLIDING)
"""What ``layer_types`` may name: layers that see the whole row, and those that see a window."""

OWN_FIELDS: dict[str, Any] = {
    "layer_types": None,
    "sliding_window": None,
    "pre_norm": False,
    "gated_mlp": False,
    "attention_bias": True,
    "mlp_bias": True,
    "norm_bias": True,
    "classifier_bias": True,
}
"""Fields of today's encoders, with the values that make a RoFormer of the paper."""

_FLAGS = tuple(name for name, usual in OWN_FIELDS.items() if isinstance(usual, bool))
_PLAIN = {"rope_type": "default", "rope_theta": 10_000.0}


def is_per_layer_type(rope_parameters: object) -> bool:
    """Return whether a dictionary holds one rotation per layer type, as for transformers.

    Args:
        rope_parameters: The field.

    Example:
        >>> is_per_layer_type({"full_attention": {"rope_theta": 160_000.0}})
        True
    """
    return isinstance(rope_parameters, dict) and not rope_parameters.keys().isdisjoint(LAYER_TYPES)


def with_defaults(rope_parameters: Any) -> Any:
    """Fill in the plain ladder on base 10,000 for what a rotation does not say.

    Args:
        rope_parameters: Of all layers, or one dictionary per layer type, None in the place of one
            for layers that do not turn.
    """
    if is_per_layer_type(rope_parameters):
        return {kind: with_defaults(given) for kind, given in rope_parameters.items()}
    return _PLAIN | rope_parameters if isinstance(rope_parameters, dict) else rope_parameters


def replaced_rotation(saved: Any, given: Any) -> Any:
    """Put another rotation in the place of a saved one, keeping the base it was trained with.

    Args:
        saved: ``rope_parameters`` of a saved config.
        given: Those that replace it.

    Raises:
        ConfigError: One rotation for all layers is given where they were saved per layer type.
    """
    if not (isinstance(saved, dict) and isinstance(given, dict)):
        return given
    if is_per_layer_type(given):
        return {
            kind: replaced_rotation(saved.get(kind) if is_per_layer_type(saved) else saved, one)
            for kind, one in given.items()
        }
    if is_per_layer_type(saved):
        raise ConfigError(
            f"rope_parameters must be given per layer type ({', '.join(saved)}), as the saved "
            f"model has them; got {abridged(given)}"
        )
    # Another scaling rule is no reason to forget the base the model was trained with.
    return {k: saved[k] for k in ("rope_theta", "partial_rotary_factor") if k in saved} | given


def layer_kinds(config: RopewalkRoFormerConfig) -> list[str]:
    """Return the type of every layer, one of ``LAYER_TYPES``.

    Args:
        config: The model's configuration.
    """
    return list(config.layer_types or [FULL] * config.num_hidden_layers)


def rotations(config: RopewalkRoFormerConfig) -> dict[str, RopeSpec | None]:
    """Return the rotation of each layer type that the model has, None where nothing turns.

    Args:
        config: The model's configuration.

    Raises:
        ConfigError: A key or value of ``rope_parameters`` is refused.
    """
    kinds = [kind for kind in LAYER_TYPES if kind in layer_kinds(config)]
    given: dict[str, Any] = dict.fromkeys(kinds, config.rope_parameters)
    if is_per_layer_type(config.rope_parameters):
        given = config.rope_parameters  # type: ignore[assignment]
    if config.position_encoding != "rope":
        return dict.fromkeys(kinds)
    return {
        kind: None
        if given[kind] is None
        else spec_from_rope_parameters(
            given[kind],
            head_dim=config.head_dim,
            layout="interleaved",
            max_position_embeddings=config.max_position_embeddings,
        )
        for kind in kinds
    }


def check_layer_types(config: RopewalkRoFormerConfig) -> None:
    """Refuse a list that does not name the type of every layer.

    Args:
        config: The model's configuration.

    Raises:
        ConfigError: It names the rule and the value.
    """
    kinds: object = config.layer_types
    if kinds is not None:
        if not isinstance(kinds, list) or not all(kind in LAYER_TYPES for kind in kinds):
            raise ConfigError(
                f"layer_types must be a list of {' and '.join(map(repr, LAYER_TYPES))}; "
                f"got {abridged(kinds)}"
            )
        if len(kinds) != config.num_hidden_layers:
            raise ConfigError(
                f"layer_types must have num_hidden_layers={config.num_hidden_layers} entries; "
                f"got {len(kinds)}"
            )


def check_layers(config: RopewalkRoFormerConfig) -> None:
    """Refuse options of layers that contradict each other or have no effect.

    Args:
        config: The model's configuration.

    Raises:
        ConfigError: It names the field, the rule and the value.
    """
    for name in _FLAGS:
        boolean(name, getattr(config, name))
    check_layer_types(config)
    if SLIDING in layer_kinds(config):
        integer("sliding_window", config.sliding_window, at_least=1)
    elif config.sliding_window is not None:
        raise ConfigError(
            "sliding_window has no effect without 'sliding_attention' in layer_types; "
            f"got {abridged(config.sliding_window)}; remove it or name the layers"
        )
    if is_per_layer_type(config.rope_parameters):
        _check_per_type(config)


def _check_per_type(config: RopewalkRoFormerConfig) -> None:
    parameters: Any = config.rope_parameters
    needed = {kind for kind in LAYER_TYPES if kind in layer_kinds(config)}
    for kind in sorted(needed - parameters.keys()):
        raise ConfigError(
            f"rope_parameters must have an entry for {kind!r}, which layer_types names; "
            f"got {', '.join(map(str, parameters))}"
        )
    for key in sorted(parameters.keys() - needed, key=str):
        raise ConfigError(
            f"rope_parameters has the key {abridged(key)}, but layer_types has only "
            f"{', '.join(sorted(needed))}; got {abridged(parameters[key])}; remove it"
        )
    if all(one is None for one in parameters.values()):
        raise ConfigError(
            "rope_parameters must turn at least one layer type for position_encoding='rope'; "
            "got None for all; use position_encoding='none'"
        )
