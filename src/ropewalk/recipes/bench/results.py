"""What a benchmark found, as plain data that a JSON file keeps whole."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from ropewalk.errors import DataError
from ropewalk.recipes.bench.timing import Samples, Spread, spread

SCHEMA = "ropewalk.bench/1"

Form = Literal["fresh", "out", "in place"]
Mode = Literal["forward", "training"]
Status = Literal["measured", "wrong", "failed", "absent"]


@dataclass(frozen=True)
class Contender:
    """One contender of a case, and how it fared."""

    code: str
    """Whose code: "ropewalk", the name of a peer, "plain torch", "complex multiply", or "copy"."""
    form: Form = "fresh"
    """Where results go: new memory, given outputs, or over the inputs."""
    kernel: str | None = None
    """Kernel of ropewalk's operator."""
    compiled: bool = False
    """Whether torch.compile made it."""
    source: str = ""
    """Package and version."""
    status: Status = "measured"
    note: str = ""
    """Why it was not measured."""
    error: float | None = None
    """Largest absolute error against float64."""
    bound: float | None = None
    """Largest error with which it counts as right."""
    first_call: float | None = None
    """Seconds of the first call, where that compiles."""
    samples: Samples = field(default_factory=Samples)
    """Seconds per call in every round; empty unless measured."""

    @property
    def name(self) -> str:
        """What the tables call it."""
        words = [self.code]
        if self.form != "fresh":
            words.append({"out": "given output", "in place": "in place"}[self.form])
        if self.kernel is not None:
            words.append(f"{self.kernel} kernel")
        if self.compiled:
            words.append("compiled")
        return ", ".join(words)


@dataclass(frozen=True)
class Case:
    """All contenders on one shape, dtype, layout and mode."""

    shape: str
    dtype: str
    layout: str
    mode: Mode
    moved: int
    """Bytes that a copy reads and writes."""
    contenders: list[Contender]

    @property
    def name(self) -> str:
        """What the tables call it."""
        return f"{self.shape}, {self.dtype}, {self.layout}, {self.mode}"

    def find(self, code: str, **wanted: object) -> Contender | None:
        """Return the first contender that has the given attributes, or None.

        Args:
            code: Whose code.
            **wanted: Attributes it must have; "fresh", not compiled and "measured" unless given.
        """
        usual = {"form": "fresh", "compiled": False, "status": "measured", "code": code}
        for contender in self.contenders:
            if all(getattr(contender, name) == value for name, value in (usual | wanted).items()):
                return contender
        return None


@dataclass(frozen=True)
class Accuracy:
    """Errors of one code on the 64 positions that end at one position."""

    code: str
    position: int
    table: float
    """Largest absolute error of cosines and sines in float32."""
    rotated: float
    """Largest absolute error of float32 vectors, standard normal."""
    bf16_rms: float
    """Root of the mean squared error of bfloat16 vectors, in those of the ideal rounding."""


@dataclass(frozen=True)
class EncoderCase:
    """Our encoder and transformers' on the same weights and rows."""

    shape: str
    dtype: str
    mode: Mode
    tokens: int
    """Real tokens of the batch."""
    difference: float
    """Largest difference of their outputs on real tokens."""
    bound: float
    """Largest difference with which they count as equal."""
    ours: Samples
    theirs: Samples


@dataclass(frozen=True)
class Report:
    """Everything that was measured, and where."""

    machine: dict[str, str]
    versions: dict[str, str]
    settings: dict[str, Any]
    kernels: dict[str, str]
    """Every kernel of the operator, and what it says about itself."""
    complete: bool = True
    """False where it was interrupted."""
    operator: list[Case] = field(default_factory=list)
    accuracy: list[Accuracy] = field(default_factory=list)
    encoder: list[EncoderCase] = field(default_factory=list)

    def to_json(self) -> str:
        """Return the report as JSON."""
        return json.dumps({"schema": SCHEMA} | asdict(self), indent=1, allow_nan=False) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Report:
        """Read a report back.

        Args:
            text: What :meth:`to_json` wrote.

        Raises:
            DataError: Something else.
        """
        try:
            content = json.loads(text)
            schema = content.pop("schema")
            if schema != SCHEMA:
                raise DataError(f"schema must be {SCHEMA!r}; got {schema!r}")
            content["operator"] = [
                Case(**case | {"contenders": [_contender(c) for c in case["contenders"]]})
                for case in content["operator"]
            ]
            content["accuracy"] = [Accuracy(**row) for row in content["accuracy"]]
            content["encoder"] = [
                EncoderCase(**row | {side: Samples(**row[side]) for side in ("ours", "theirs")})
                for row in content["encoder"]
            ]
            return cls(**content)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            if isinstance(error, DataError):
                raise
            raise DataError(
                f"the report must be JSON that ropewalk bench wrote; got {text[:40]!r} ({error})"
            ) from error

    @classmethod
    def read(cls, path: str | Path) -> Report:
        """Read a report from a file.

        Args:
            path: The file.

        Raises:
            DataError: It cannot be read, or holds something else.
        """
        try:
            text = Path(path).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise DataError(f"cannot read {str(path)!r}: {error}") from error
        return cls.from_json(text)


def ratio(one: Contender, other: Contender) -> Spread:
    """Return the processor time of one contender over that of another, by rounds.

    Args:
        one: A measured contender.
        other: Another of the same case.
    """
    return spread(one.samples.cpu, other.samples.cpu)


def _contender(content: dict[str, Any]) -> Contender:
    return Contender(**content | {"samples": Samples(**content["samples"])})
