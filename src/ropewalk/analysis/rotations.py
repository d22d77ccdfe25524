"""Which rotations a figure compares: those of configurations, without scaling, and stretched."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ropewalk.analysis.rotation import unscaled
from ropewalk.errors import ConfigError
from ropewalk.spec import RopeSpec, checks
from ropewalk.spec.facts import ModelFacts, load_config
from ropewalk.spec.inspection import trained_length
from ropewalk.spec.merged import merge, spec_of
from ropewalk.spec.widths import bounded

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


@dataclass(frozen=True)
class Rotation:
    """A rotation with what is known about its use."""

    name: str
    """What to call it."""
    spec: RopeSpec
    trained: int | None = None
    """Trained length, in positions; None where it is not known."""
    longest: int | None = None
    """Longest row that is asked for, in positions."""


@dataclass(frozen=True)
class Selection:
    """The rotations of one figure."""

    title: str
    """Name of the only model; "" for several."""
    specs: Mapping[str, RopeSpec]
    trained: int | None
    """Trained length; None where it is not known or not the same for all."""
    longest: int | None
    """Longest row that is asked for; None where nobody says."""
    seq_len: int | None
    """Length of the row for rules that depend on it; None where none does."""


def rotations_of(sources: Sequence[str], layer_types: Sequence[str] = ()) -> list[Rotation]:
    """Read the rotations of some models from their configurations.

    Args:
        sources: Files config.json, folders of models, or GGUF files.
        layer_types: Whose rotations; needed where the layers of a model differ.

    Raises:
        ConfigError: A configuration cannot be read, has several rotations and none is chosen, or
            has no layers of the types.
    """
    names = _names(sources)
    models = {names[source]: _by_layer_type(source, names[source]) for source in names}
    known = dict.fromkeys(label for model in models.values() for label in model)
    for label in layer_types:
        checks.choice("layer_type", label, tuple(known))
    found = []
    for name, model in models.items():
        chosen = [label for label in dict.fromkeys(layer_types) if label in model]
        if not chosen and len({rotation.spec for rotation in model.values()}) == 1:
            chosen = list(model)[:1]  # all layers turn alike
        if not chosen:
            raise ConfigError(
                f"layer_type must be among {', '.join(model)}, since {name!r} has several "
                f"rotations; got {', '.join(layer_types) or None}"
            )
        for label in chosen:
            own = model[label]
            title = name if len(chosen) == 1 else f"{name}, {label}"
            found.append(Rotation(title, own.spec, own.trained, own.longest))
    return found


def plain_rotations(head_dims: Iterable[int], theta: float) -> list[Rotation]:
    """Return rotations of whole heads, of no model.

    Args:
        head_dims: Widths, even.
        theta: Base of the ladder.

    Raises:
        ConfigError: One of them is out of range.
    """
    found = []
    for width in dict.fromkeys(head_dims):
        bounded("head_dim", width, multiple_of=2)
        found.append(Rotation(f"d = {width}", RopeSpec(width, "half", theta=theta)))
    return found


def select(
    rotations: Sequence[Rotation],
    *,
    to: int | None = None,
    method: str | None = None,
    trained: int | None = None,
    length: int | None = None,
    beside_unscaled: bool = True,
) -> Selection:
    """Name the curves of a figure: every rotation, and what it is compared with.

    Args:
        rotations: At least one.
        to: Length to which each is stretched for comparison; None: not stretched.
        method: How, as in :meth:`RopeSpec.extend`; None: "yarn".
        trained: Trained length, where a configuration does not say it or is wrong.
        length: Length of the row for rules that depend on it; None: the longest one asked for.
        beside_unscaled: Whether a single scaled rotation is drawn beside its unscaled form.

    Raises:
        ConfigError: An option has no effect or is out of range, a trained length is missing, or
            a rotation cannot be stretched so.
    """
    if method is not None and to is None:
        raise ConfigError(f"method needs the length to stretch to (--to); got method={method!r}")
    if trained is not None:
        trained = checks.length("trained", trained)
    several = len(rotations) > 1
    specs: dict[str, RopeSpec] = {}
    for rotation in rotations:
        curves = {_rule(rotation.spec): rotation.spec}
        if beside_unscaled and not several:
            curves = {"unscaled": unscaled(rotation.spec)} | curves
        if to is not None:
            curves[f"{method or 'yarn'} to {to}"] = _stretched(rotation, to, method, trained)
        for label, spec in curves.items():
            name = rotation.name if to is None else f"{rotation.name}, {label}"
            specs[name if several else label] = spec
    lengths = {trained or rotation.trained for rotation in rotations}
    known = [n for n in (to, trained, *lengths, *(r.longest for r in rotations)) if n is not None]
    return Selection(
        "" if several else rotations[0].name,
        specs,
        lengths.pop() if len(lengths) == 1 else None,
        max(known, default=None),
        _row_length(specs, length, known),
    )


def _names(sources: Sequence[str]) -> dict[str, str]:
    """Return a short name for every source, or its path where short names are not unique."""
    short = {}
    for source in dict.fromkeys(sources):
        path = Path(source)
        holder = path.absolute().parent if path.name == "config.json" else path
        name = holder.stem if holder.suffix in (".json", ".gguf") else holder.absolute().name
        short[source] = name or str(source)
    unique = len(set(short.values())) == len(short)
    return short if unique else {source: source for source in short}


def _by_layer_type(source: str, name: str) -> dict[str, Rotation]:
    """Return the rotations of a model by layer type; layers that do not turn are left out."""
    facts = ModelFacts.of(load_config(source))
    return {
        label: Rotation(name, spec_of(merged, facts), trained_length(merged, facts), facts.longest)
        for label, merged in merge(facts).items()
        if merged is not None
    }


def _rule(spec: RopeSpec) -> str:
    return "unscaled" if spec.scaling is None else type(spec.scaling).__name__


def _stretched(rotation: Rotation, to: int, method: str | None, trained: int | None) -> RopeSpec:
    known = trained or rotation.trained
    if known is None:
        raise ConfigError(
            f"trained must be given (--trained), since {rotation.name!r} does not say its trained "
            "length; got None"
        )
    return rotation.spec.extend(
        to=to, method=method or "yarn", original_max_position_embeddings=known
    )


def _row_length(
    specs: Mapping[str, RopeSpec], length: int | None, known: Sequence[int]
) -> int | None:
    if not any(spec.depends_on_length for spec in specs.values()):
        if length is not None:
            raise ConfigError(f"length must be left out where no rule depends on it; got {length}")
        return None
    if length is not None:
        return checks.length("length", length)
    if not known:
        raise ConfigError("length must be given (--length), since a rule depends on it; got None")
    return max(known)
