"""Everything that can be said about a rotation from its configuration alone."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ropewalk.errors import ConfigError
from ropewalk.spec import checks
from ropewalk.spec.diagnose import diagnose
from ropewalk.spec.engines import ENGINES, EngineReading, read_as
from ropewalk.spec.facts import ModelFacts
from ropewalk.spec.merged import ORIGINAL, Merged, merge, spec_of
from ropewalk.spec.spectrum import frequency_ratios, similarity, wavelengths

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from ropewalk.spec.findings import Finding
    from ropewalk.spec.rope_spec import RopeSpec

SCHEMA = "ropewalk.inspect/1"
"""Name and version of the JSON form; keys may be added within a version, never changed."""
_CHUNK = 8192


@dataclass(frozen=True)
class Candidate:
    """One way to reach a target, untried."""

    method: str
    factor: float
    pairs_changed: int
    largest_factor: float
    attention_factor: float
    never_turning: int
    first_negative: int | None


@dataclass(frozen=True)
class LayerReport:
    """The rotation of one layer type."""

    layer_type: str
    rope_type: str
    theta: float
    n_pairs: int
    rotary_dim: int
    trained: int | None
    """Trained length, in positions."""
    row_length: int | None
    """Length of the row that the numbers below are for, where they depend on it."""
    attention_factor: float
    softmax_scale_factor: float
    inv_freq: tuple[float, ...]
    pair_factors: tuple[float, ...]
    """Frequency before / after scaling, per pair."""
    ramp: tuple[float, float] | None
    """Pairs between which YaRN's ramp runs."""
    turns: tuple[float, ...]
    """Turns of every pair in the trained length, before scaling; empty where it is not known."""
    critical_dim: int | None
    first_negative: int | None
    candidates: tuple[Candidate, ...]
    used: tuple[str, ...]
    ignored: tuple[str, ...]

    @property
    def never_turning(self) -> int:
        """Number of pairs that never complete a turn in the trained length."""
        return sum(turns < 1 for turns in self.turns)

    @property
    def critical_factor(self) -> float | None:
        """Factor of the first pair that never completes a turn; None where all do."""
        slow = [f for f, turns in zip(self.pair_factors, self.turns, strict=False) if turns < 1]
        return slow[0] if slow else None


@dataclass(frozen=True)
class Inspection:
    """The answer of ``ropewalk inspect``."""

    facts: ModelFacts
    layers: tuple[LayerReport, ...]
    findings: tuple[Finding, ...]
    engines: tuple[EngineReading, ...]
    target: int | None

    def fails(self, *, strict: bool = False) -> bool:
        """Return whether something was found: a warning or an error; if strict, a note too."""
        return any(strict or finding.severity != "note" for finding in self.findings)

    def to_json(self) -> dict[str, Any]:
        """Return the versioned JSON form: finite numbers, strings, lists, null."""
        form: dict[str, Any] = _finite(self._form())
        return form

    def _form(self) -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            "model_type": self.facts.model_type,
            "head_dim": self.facts.head_dim,
            "layout": self.facts.layout,
            "layers": self.facts.layers,
            "form": self.facts.form,
            "max_position_embeddings": self.facts.longest,
            "target": self.target,
            "layer_types": [
                asdict(layer)
                | {"never_turning": layer.never_turning, "critical_factor": layer.critical_factor}
                for layer in self.layers
            ],
            "findings": [asdict(finding) for finding in self.findings],
            "engines": [
                {
                    "engine": reading.engine,
                    "version": ENGINES[reading.engine].version,
                    "provenance": ENGINES[reading.engine].provenance,
                    "length_rule": ENGINES[reading.engine].length_rule,
                    "problem": reading.problem,
                    "longest": reading.longest,
                    "notes": list(reading.notes),
                    "verdict": engine_verdict(self, reading),
                }
                for reading in self.engines
            ],
        }


def inspect_config(
    config: Mapping[str, Any],
    *,
    target: int | None = None,
    engines: Sequence[str] = tuple(ENGINES),
) -> Inspection:
    """Return everything that a configuration says about its rotation.

    Args:
        config: As :meth:`ModelFacts.of` takes it.
        target: Context that is wanted, in positions; None: no candidates.
        engines: Engines to ask.

    Raises:
        ConfigError: The configuration cannot be read, or an argument is out of range.
    """
    if target is not None:
        target = checks.length("target", target)
    facts = ModelFacts.of(config)
    readings = tuple(read_as(facts, name) for name in dict.fromkeys(engines))
    findings = diagnose(facts, engines=("hf", *engines), target=target)
    layers = []
    for name, merged in merge(facts).items():
        if merged is None:
            continue
        try:
            layers.append(_layer(name, merged, spec_of(merged, facts), facts, target))
        except ConfigError:
            if not any(finding.severity == "error" for finding in findings):
                raise
    return Inspection(facts, tuple(layers), findings, readings, target)


def trained_length(merged: Merged, facts: ModelFacts) -> int | None:
    """Return the length a model was trained with, as far as its configuration says.

    Args:
        merged: The dictionary of one layer type.
        facts: Its model.
    """
    original = merged.values.get(ORIGINAL) or facts.config.get(ORIGINAL)
    if isinstance(original, int) and not isinstance(original, bool) and 0 < original < 2**63:
        return original
    return None if merged.rope_type == "linear" else facts.longest  # before or after scaling?


def engine_verdict(inspection: Inspection, reading: EngineReading) -> str:
    """Return "ok", "different" or "fails": whether an engine computes what the file says.

    Args:
        inspection: The reference.
        reading: What the engine makes of the same file.
    """
    if reading.problem:
        return "fails"
    for layer in inspection.layers:
        spec = reading.specs.get(layer.layer_type)
        if spec is None:
            return "different"
        length = layer.row_length
        same = np.allclose(spec.inv_freq(length), layer.inv_freq, rtol=1e-6, atol=0)
        amplitude = float(spec.attention_factor(length))
        if not (same and math.isclose(amplitude, layer.attention_factor, rel_tol=1e-6)):
            return "different"
    return "ok" if inspection.layers else "fails"


def first_negative(inv_freq: NDArray[np.float64], *, limit: int) -> int | None:
    r"""Return the first distance at which the similarity of equal vectors is negative.

    .. math:: B(m) = \sum_j \cos(m \omega_j)

    A heuristic: most models in use work beyond it.

    Args:
        inv_freq: Radians per position, shape ``(pairs,)``.
        limit: Largest distance to look at, in positions.

    References:
        Men et al., 2024, arXiv:2405.14591.

    Example:
        >>> import numpy as np
        >>> first_negative(np.array([1.0]), limit=10)
        2
    """
    for start in range(1, limit + 1, _CHUNK):
        distances = np.arange(start, min(start + _CHUNK, limit + 1), dtype=np.float64)
        negative = np.flatnonzero(similarity(inv_freq, distances) < 0)
        if negative.size:
            return start + int(negative[0])
    return None


def _finite(value: Any) -> Any:
    """Return a JSON value with null for infinities, which JSON does not have."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _layer(
    name: str, merged: Merged, spec: RopeSpec, facts: ModelFacts, target: int | None
) -> LayerReport:
    trained = trained_length(merged, facts)
    length = max(target or 1, facts.longest or 1) if spec.depends_on_length else None
    plain, scaled = spec.replace(scaling=None), spec.inv_freq(length)
    turns = () if trained is None else trained / wavelengths(plain.inv_freq())
    rule = spec.scaling
    ramp = getattr(rule, "correction_range", None)
    limit = _limit(trained, facts, target)
    factors = frequency_ratios(plain.inv_freq(), scaled)
    return LayerReport(
        layer_type=name,
        rope_type=merged.rope_type,
        theta=spec.theta,
        n_pairs=spec.n_pairs,
        rotary_dim=spec.rotary_dim,
        trained=trained,
        row_length=length,
        attention_factor=float(spec.attention_factor(length)),
        softmax_scale_factor=_softmax_scale(spec, facts),
        inv_freq=tuple(scaled.tolist()),
        pair_factors=tuple(factors.tolist()),
        ramp=None if ramp is None else ramp(spec.ladder),
        turns=tuple(float(value) for value in turns),
        critical_dim=None if trained is None else 2 * int(np.sum(np.array(turns) >= 1)),
        first_negative=first_negative(scaled, limit=limit),
        candidates=_candidates(spec, trained, target, name),
        used=merged.used,
        ignored=merged.ignored,
    )


def _limit(trained: int | None, facts: ModelFacts, target: int | None) -> int:
    longest = max(trained or 0, facts.longest or 0, target or 0)
    return min(longest, 1 << 17)


def _softmax_scale(spec: RopeSpec, facts: ModelFacts) -> float:
    """Return the factor on scores beside the tables, which some classes apply."""
    if spec.scaling is None or facts.family is None or not facts.family.scaled_softmax:
        return 1.0
    return spec.scaling.softmax_scale_factor()


def _candidates(
    spec: RopeSpec, trained: int | None, target: int | None, name: str
) -> tuple[Candidate, ...]:
    """Return what each rule of one factor would do, for rotations that are not scaled yet."""
    if trained is None or target is None or target <= trained:
        return ()
    if spec.scaling is not None or name == "sliding_attention":
        return ()
    found = []
    for method in ("yarn", "llama3", "ntk", "linear"):
        if method == "ntk" and spec.n_pairs < 2:
            continue
        try:
            longer = spec.extend(to=target, method=method, original_max_position_embeddings=trained)
        except ConfigError:
            continue
        factors = frequency_ratios(spec.inv_freq(), longer.inv_freq())
        found.append(
            Candidate(
                method,
                target / trained,
                int(np.sum(factors > 1 + 1e-9)),
                float(factors.max()),
                float(longer.attention_factor()),
                int(np.sum(trained / wavelengths(longer.inv_freq()) < 1)),
                first_negative(longer.inv_freq(), limit=min(target, 1 << 17)),
            )
        )
    return tuple(found)
