"""The operator beside a copy of the same bytes and beside every other code, checked, then timed."""

from __future__ import annotations

import itertools
import math
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, get_args

import torch

from ropewalk.errors import ConfigError
from ropewalk.recipes.bench.contenders import (
    DTYPES,
    SHAPES,
    Entry,
    Operands,
    Setting,
    entries,
    one_line,
)
from ropewalk.recipes.bench.exact import largest_error
from ropewalk.recipes.bench.peers import PEERS, absent
from ropewalk.recipes.bench.results import Case, Contender, Mode, ratio
from ropewalk.recipes.bench.timing import interleave
from ropewalk.rotary import available_kernels
from ropewalk.spec.checks import boolean, choice, integer, real
from ropewalk.spec.pairs import LAYOUTS

if TYPE_CHECKING:
    from ropewalk.recipes.bench.progress import Show

MODES: tuple[Mode, ...] = get_args(Mode)
PEER_CHOICES = ("installed", "all", "none")

_SECONDS_TO_COMPILE = 6.0
"""Of one contender, on two cores; a rough guess like the next one."""
_SECONDS_PER_VALUE = 1.5e-8
"""Of eager code, for one coordinate of one vector."""


@dataclass(frozen=True)
class OperatorSettings:
    """What to measure; several values of a field give every combination."""

    shapes: tuple[str, ...] = tuple(SHAPES)
    """Names in SHAPES."""
    dtypes: tuple[str, ...] = tuple(DTYPES)
    """"float32", "bfloat16"."""
    layouts: tuple[str, ...] = LAYOUTS
    modes: tuple[str, ...] = MODES
    """"forward"; "training", forward and backward, which decoding has not."""
    compile: bool = False
    """Whether the same code is measured under torch.compile too."""
    seconds: float = 20.0
    """Wall time for the rounds of each case."""
    seed: int = 0
    """Of the vectors and of the order within rounds."""
    peers: str = "installed"
    """"installed": those that are; "all": refuse to start when one is missing; "none"."""

    def __post_init__(self) -> None:
        allowed = {"shapes": tuple(SHAPES), "dtypes": tuple(DTYPES), "layouts": LAYOUTS}
        for name, values in (allowed | {"modes": MODES}).items():
            for value in getattr(self, name):
                choice(name, value, values)
        boolean("compile", self.compile)
        real("seconds", self.seconds, above=0, at_most=86_400)
        integer("seed", self.seed, at_least=0, at_most=2**63 - 1)
        check_peers(self.peers)
        if not self.cases:
            raise ConfigError(
                "modes must include 'forward' for the shape 'decode', which is never trained; "
                f"got modes={self.modes!r}"
            )

    @property
    def cases(self) -> dict[tuple[str, ...], Setting]:
        """Every case, by shape, dtype, layout and mode."""
        found: dict[tuple[str, ...], Setting] = {}
        for key in itertools.product(self.shapes, self.dtypes, self.layouts, self.modes):
            shape, dtype, layout, mode = key
            if shape != "decode" or mode == "forward":
                found[key] = Setting(SHAPES[shape], dtype, layout, mode)  # type: ignore[arg-type]
        return found


def estimate(settings: OperatorSettings) -> str:
    """Return what a run will take, in one line.

    Args:
        settings: What to measure.
    """
    seconds, largest = 0.0, 0
    for setting in settings.cases.values():
        shape = setting.shape
        vectors = (
            shape.batch * (shape.query_heads + shape.key_heads) * shape.length * shape.head_dim
        )
        width = DTYPES[setting.dtype].itemsize
        # Inputs, outputs, what is overwritten, the peers' order, gradients; temporaries of eager
        # code in float32; the exact answer and one compared with it in float64.
        largest = max(largest, vectors * (8 * width + 4 * 4 + 4 * 8))
        compiled = (3 if setting.layout == "half" else 8) * settings.compile
        others = (2 if setting.layout == "half" else 8) + compiled
        # Three rounds, warming up and the check are run whatever they take.
        least = 6 * others * vectors * _SECONDS_PER_VALUE * (3 if setting.mode != "forward" else 1)
        seconds += max(settings.seconds, least) + least / 3 + compiled * _SECONDS_TO_COMPILE
    return (
        f"{len(settings.cases)} cases, about {math.ceil(seconds / 60)} min and "
        f"{largest / 2**30:.1f} GiB of memory"
    )


def measure(settings: OperatorSettings, show: Show) -> Iterator[Case]:
    """Check and time every case.

    Args:
        settings: What to measure.
        show: Where progress is shown.

    Yields:
        Each case once it is measured.
    """
    for key, setting in settings.cases.items():
        case = measure_case(key[0], setting, settings, show)
        torch.compiler.reset()  # closures of one function would add up to its limit of versions
        show.done(_line(case))
        yield case


def measure_case(shape: str, setting: Setting, settings: OperatorSettings, show: Show) -> Case:
    """Check every contender of one case against float64, then time those that are right.

    Args:
        shape: Name of the shape.
        setting: The case.
        settings: Time, seed, peers.
        show: Where progress is shown.
    """
    operands = Operands(setting, settings.seed)
    label = f"{shape}, {setting.dtype}, {setting.layout}, {setting.mode}"
    found, calls = [], {}
    wanted = operands.wanted()
    for entry in entries(operands, peers=settings.peers != "none", compiled=settings.compile):
        about = entry.contender if isinstance(entry, Entry) else entry
        show.now(f"{label}: checking {about.name}")
        if isinstance(entry, Entry):
            about = check(entry, wanted)
            if about.status == "measured":
                calls[about.name] = entry.call
        found.append(about)
    del wanted
    samples = interleave(
        calls,
        seconds=settings.seconds,
        seed=settings.seed,
        each_round=lambda share: show.now(label, share),
    )
    contenders = [replace(c, samples=samples[c.name]) if c.name in samples else c for c in found]
    return Case(shape, setting.dtype, setting.layout, setting.mode, operands.moved, contenders)


def check_peers(peers: str) -> None:
    """Refuse an unknown choice of peers, and "all" where one is missing.

    Args:
        peers: "installed", "all" or "none".

    Raises:
        ConfigError: As said.
    """
    choice("peers", peers, PEER_CHOICES)
    if peers != "all":
        return
    missing = [f"{peer.code} ({reason})" for peer in PEERS if (reason := absent(peer))]
    if missing:
        raise ConfigError(
            f"peers='all' needs every peer; missing: {', '.join(missing)}; "
            "pip install 'ropewalk[bench]' and pip install --no-deps torchtune, or use "
            "peers='installed'"
        )


def check(entry: Entry, wanted: list[torch.Tensor]) -> Contender:
    """Return a contender with its error; it is wrong above its bound, and failed where it raises.

    Args:
        entry: The contender.
        wanted: The right answer.
    """
    about = entry.contender
    if entry.answer is None:
        return about
    start = time.perf_counter()
    try:
        with warnings.catch_warnings():
            if about.compiled:  # the compiler warns of operators that it leaves as they are
                warnings.simplefilter("ignore")
            found = entry.answer()
    except Exception as error:  # other people's code, and compilers, may raise anything
        if about.code == "ropewalk" and not about.compiled:
            raise
        return replace(about, status="failed", note=one_line(error))
    first_call = time.perf_counter() - start if about.compiled else None
    worst = largest_error(found, wanted)
    assert about.bound is not None
    if worst <= about.bound:
        return replace(about, error=worst, first_call=first_call)
    note = f"wrong by {worst:.2g}, not timed"
    finite = worst if math.isfinite(worst) else None  # JSON has no nan
    return replace(about, status="wrong", error=finite, first_call=first_call, note=note)


def _line(case: Case) -> str:
    """Return the ratios of our forms to a copy, for the eye."""
    copy = case.find("copy", form="out")
    words = []
    for contender in case.contenders:
        if contender.status in ("wrong", "failed"):
            words.append(f"{contender.name}: {contender.status}")
        elif contender.code == "ropewalk" and contender.kernel == available_kernels()[-1] and copy:
            words.append(f"{contender.form} {ratio(contender, copy).median:.2f}")
    rounds = len(copy.samples.cpu) if copy else 0
    return f"{case.name}: x copy {', '.join(words)} ({rounds} rounds)"
