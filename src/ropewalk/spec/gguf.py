"""Read the header of a GGUF file: its metadata, and the frequency divisors it carries."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from ropewalk.errors import ConfigError
from ropewalk.spec import checks
from ropewalk.spec.by_parts import Yarn
from ropewalk.spec.gguf_layouts import layout_of

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Mapping

_MAGIC = b"GGUF"
_MOST_KEYS = 65_536
_MOST_TENSORS = 65_536
_LONGEST_STRING = 64 * 1024 * 1024
_LONGEST_KEY = 65_536
_MOST_ELEMENTS = 16 * 1024 * 1024
_MOST_KEPT = 4_096
# Elements and strings of a whole header, 16 bytes of text counting as one more: some seconds and
# a hundred megabytes. The largest vocabularies with their merges have a million.
_MOST_WORK = 6_000_000
_DEEPEST_ARRAY = 4
_SCALARS = {
    0: "<B",
    1: "<b",
    2: "<H",
    3: "<h",
    4: "<I",
    5: "<i",
    6: "<f",
    7: "<?",
    10: "<Q",
    11: "<q",
    12: "<d",
}
_STRING, _ARRAY, _FLOAT32 = 8, 9, 0
_FACTORS = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")
# Architectures with a base of their own in sliding layers, 10,000 where the file has none, and
# those whose sliding layers are scaled like the others (llama.cpp's load_arch_hparams).
_SLIDING_BASE = ("gemma3", "gemma3n", "gemma-embedding", "plamo3", "step35", "mimo2")
_TENTH_OF_ALL_DIM = ("deepseek2", "deepseek2-ocr", "deepseek32", "mistral4")
_SLIDING_SCALED = frozenset(
    (
    "afmoe", "cohere2", "cohere2moe", "exaone-moe", "exaone4", "gemma2", "gpt-oss", "llama4",
    "maple", "mellum", "smallthinker", "spark2_5",
    )
)  # fmt: skip


@dataclass(frozen=True)
class GgufHeader:
    """What the head of a GGUF file says.

    Arrays of more than 4,096 elements (vocabularies) are skipped and stand as their length.
    """

    metadata: Mapping[str, Any]
    """Key and value of every entry."""
    factors: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    """Frequency divisors by tensor name: rope_freqs, rope_factors_long, rope_factors_short."""


def is_gguf(path: str | os.PathLike[str]) -> bool:
    """Return whether a file starts with the magic bytes of GGUF.

    Args:
        path: An existing file.
    """
    with Path(path).open("rb") as file:
        return file.read(4) == _MAGIC


def read_gguf_metadata(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the metadata of a GGUF file; see :func:`read_gguf`.

    Args:
        path: The file.

    Raises:
        ConfigError: Not a GGUF file of version 2 or 3, or damaged.
    """
    return dict(read_gguf(path).metadata)


def read_gguf(path: str | os.PathLike[str]) -> GgufHeader:
    """Read the metadata of a GGUF file, and the small tensors that divide its frequencies.

    Args:
        path: A file of version 2 or 3, little-endian.

    Raises:
        ConfigError: Not such a file, cut short, or with counts and lengths beyond every bound.

    References:
        ggml-org/ggml, docs/gguf.md.
    """
    path = Path(path)
    with path.open("rb") as file:
        return _Reader(file, path.stat().st_size, str(path)).header()


class _Reader:
    """A file that is read front to back; every count is checked before it is believed."""

    def __init__(self, file: BinaryIO, size: int, name: str) -> None:
        self.file, self.size, self.name = file, size, name
        self.left = _MOST_WORK

    def header(self) -> GgufHeader:
        if self.take(4) != _MAGIC:
            raise ConfigError(f"a GGUF file must start with the bytes GGUF; got {self.name!r}")
        version = self.number("<I")
        if version not in (2, 3):
            raise ConfigError(
                f"a GGUF file must have version 2 or 3, little-endian; got {version} in "
                f"{self.name!r}"
            )
        tensors = self.count("tensor_count", "<Q", _MOST_TENSORS)
        keys = self.count("metadata_kv_count", "<Q", _MOST_KEYS)
        metadata: dict[str, Any] = {}
        for _ in range(keys):
            key = self.text(_LONGEST_KEY)
            metadata[key] = self.value(self.number("<I"))
        return GgufHeader(metadata, self.factors(tensors, metadata))

    def factors(self, tensors: int, metadata: Mapping[str, Any]) -> dict[str, tuple[float, ...]]:
        found = {}
        for _ in range(tensors):
            name = self.text(_LONGEST_KEY)
            dims = [self.number("<Q") for _ in range(self.count("n_dimensions", "<I", 8))]
            kind, offset = self.number("<I"), self.number("<Q")
            if name in _FACTORS and kind == _FLOAT32 and len(dims) == 1 and dims[0] <= _MOST_KEPT:
                found[name] = (dims[0], offset)
        alignment = metadata.get("general.alignment", 32)
        alignment = checks.integer("general.alignment", alignment, at_least=1)
        start = -(-self.file.tell() // alignment) * alignment
        values = {}
        for name, (count, offset) in found.items():
            if start + offset + 4 * count > self.size:
                raise ConfigError(f"tensor {name} must lie inside {self.name!r}; got {offset}")
            self.file.seek(start + offset)
            values[name] = struct.unpack(f"<{count}f", self.take(4 * count))
        return values

    def take(self, length: int) -> bytes:
        data = self.file.read(length)
        if len(data) != length:
            raise ConfigError(f"a GGUF header must be complete; {self.name!r} ends inside it")
        return data

    def number(self, form: str) -> Any:
        return struct.unpack(form, self.take(struct.calcsize(form)))[0]

    def count(self, name: str, form: str, most: int) -> int:
        value: int = self.number(form)
        if value > most:
            raise ConfigError(f"{name} of a GGUF file must be at most {most}; got {value}")
        return value

    def text(self, most: int) -> str:
        length = self.count("the length of a string", "<Q", most)
        if length > self.size:
            raise ConfigError(f"a string of {self.name!r} must fit the file; got length {length}")
        self.spend(1 + length // 16)
        return self.take(length).decode("utf-8", errors="replace")

    def spend(self, work: int) -> None:
        self.left -= work
        if self.left < 0:
            raise ConfigError(
                f"a GGUF header must have at most {_MOST_WORK} elements; {self.name!r} has more"
            )

    def value(self, kind: int, depth: int = 0) -> Any:
        if kind in _SCALARS:
            return self.number(_SCALARS[kind])
        if kind == _STRING:
            return self.text(_LONGEST_STRING)
        if kind != _ARRAY or depth >= _DEEPEST_ARRAY:
            raise ConfigError(f"a GGUF value must be of type 0 to 12; got {kind} in {self.name!r}")
        inner = self.number("<I")
        count = self.count("the length of an array", "<Q", _MOST_ELEMENTS)
        if inner in _SCALARS and count > _MOST_KEPT:
            self.skip(count * struct.calcsize(_SCALARS[inner]))
            return count
        self.spend(count)
        if inner == _STRING and count > _MOST_KEPT:
            self.skip_strings(count)
            return count
        if count > _MOST_KEPT:
            raise ConfigError(
                f"an array of arrays must have at most {_MOST_KEPT} elements; got {count} in "
                f"{self.name!r}"
            )
        return [self.value(inner, depth + 1) for _ in range(count)]

    def skip_strings(self, count: int) -> None:
        for _ in range(count):  # a vocabulary: the one long loop
            length = int.from_bytes(self.file.read(8), "little")
            if length > _LONGEST_STRING:
                raise ConfigError(
                    f"the length of a string must be at most {_LONGEST_STRING}; got {length} in "
                    f"{self.name!r}"
                )
            self.file.seek(length, 1)
        self.skip(0)  # is it still inside the file?

    def skip(self, length: int) -> None:
        if self.file.tell() + length > self.size:
            raise ConfigError(f"a GGUF header must be complete; {self.name!r} ends inside it")
        self.file.seek(length, 1)


def config_of_gguf(header: GgufHeader) -> dict[str, Any]:
    """Return the entries of a GGUF header under the names that transformers gives them.

    The entry ``rope_layout`` has no name there: it says in which layout the rows of the file are.
    Models of the architecture "llama" and its relatives are stored interleaved.

    Args:
        header: The header of a language model.

    Raises:
        ConfigError: It has no architecture, or one that does not rotate or is not known.

    References:
        ``load_hparams`` and ``llama_context`` of ggml-org/llama.cpp@0c1e57098.
    """
    meta = header.metadata
    arch = meta.get("general.architecture")
    if not isinstance(arch, str) or not arch.isprintable() or len(arch) > 64:
        raise ConfigError(
            f"general.architecture of a GGUF file must be a name; got {checks.abridged(arch)}"
        )

    def get(key: str) -> Any:
        return meta.get(f"{arch}.{key}")

    heads = get("attention.head_count")
    if isinstance(heads, list):
        heads = max(heads, default=None)
    named = {
        "hidden_size": get("embedding_length"),
        "num_attention_heads": heads,
        "num_hidden_layers": get("block_count"),
        "max_position_embeddings": get("context_length"),
        "head_dim": get("attention.key_length"),
        "sliding_window": get("attention.sliding_window"),
    }
    config: dict[str, Any] = {"model_type": arch} | {
        key: value for key, value in named.items() if value is not None
    }
    sections = get("rope.dimension_sections")
    several = isinstance(sections, list) and len(sections) > 1 and all(sections[:2])
    config["rope_layout"] = layout_of(arch, has_sections=several)
    width = get("rope.dimension_count")
    parameters = _rope_parameters(meta, arch, header.factors)
    if width is not None:
        width = checks.integer(f"{arch}.rope.dimension_count", width, at_least=1)
        whole = config.get("head_dim")
        if whole is None and isinstance(heads, int) and heads and "hidden_size" in config:
            whole = config["hidden_size"] // heads
        if whole is None or get("attention.kv_lora_rank") is not None:
            config["head_dim"] = width  # the rotary slice of latent attention is a head of its own
        elif width != whole:
            parameters["partial_rotary_factor"] = width / whole
    swa = get("rope.freq_base_swa")
    if swa is None and arch in _SLIDING_BASE and get("attention.sliding_window"):
        swa = 10_000.0
    config["rope_parameters"] = parameters
    if swa is not None:
        scaled = parameters if arch in _SLIDING_SCALED else {"rope_type": "default"}
        sliding = scaled | {"rope_theta": swa}
        config["rope_parameters"] = {"full_attention": parameters, "sliding_attention": sliding}
    return config


def _rope_parameters(
    meta: Mapping[str, Any], arch: str, factors: Mapping[str, tuple[float, ...]]
) -> dict[str, Any]:
    """Return the rope dictionary that the scaling entries and factor tensors amount to."""

    def get(key: str) -> Any:
        return meta.get(f"{arch}.rope.{key}")

    # llama.cpp takes 10,000 where the file has no base, and linear where it has a factor alone.
    parameters: dict[str, Any] = {"rope_theta": get("freq_base")}
    if parameters["rope_theta"] is None:
        parameters["rope_theta"] = 10_000.0
    factor = get("scaling.factor") or get("scale_linear") or 1.0
    kind, amplitude = get("scaling.type"), get("scaling.attn_factor")
    kind = "linear" if kind is None else kind
    table = 1.0 if amplitude is None else amplitude
    if "rope_freqs.weight" in factors:
        if kind == "yarn":
            raise ConfigError(
                "a GGUF file must not have both rope_freqs.weight and rope.scaling.type yarn; got "
                f"factor {checks.abridged(factor)}"
            )
        scale = checks.real("rope.scaling.factor", factor if kind == "linear" else 1, above=0.0)
        divisors = [float(value) * scale for value in factors["rope_freqs.weight"]]
        carrier = {"short_factor": divisors, "long_factor": divisors}
        return parameters | {"rope_type": "longrope", "attention_factor": table} | carrier
    original = get("scaling.original_context_length")
    if "rope_factors_long.weight" in factors:
        lists = {
            "short_factor": [*factors.get("rope_factors_short.weight", ())],
            "long_factor": [*factors["rope_factors_long.weight"]],
            "attention_factor": table,
            "original_max_position_embeddings": original,
        }
        kept = {key: value for key, value in lists.items() if value is not None}
        return parameters | {"rope_type": "longrope"} | kept
    if kind in ("none", "longrope") or (kind == "linear" and factor == 1.0):
        return parameters | {"rope_type": "default"}
    scaled = {"rope_type": kind, "factor": factor}
    if kind == "yarn":
        scaled |= _yarn_entries(get, arch, factor, amplitude) | {
            "original_max_position_embeddings": original
        }
    return parameters | {key: value for key, value in scaled.items() if value is not None}


def _yarn_entries(
    get: Callable[[str], Any], arch: str, factor: Any, amplitude: Any
) -> dict[str, Any]:
    """Return YaRN's own keys; what a file calls yarn_attn_factor is overwritten when it is read."""
    entries = {
        "beta_fast": get("scaling.yarn_beta_fast"),
        "beta_slow": get("scaling.yarn_beta_slow"),
    }
    all_dim = get("scaling.yarn_log_multiplier")
    if all_dim:
        all_dim = checks.real("rope.scaling.yarn_log_multiplier", all_dim, above=0.0)
        # The tenth is in float32.
        all_dim = round(all_dim * 10.0, 6) if arch in _TENTH_OF_ALL_DIM else all_dim
        own = arch == "deepseek2" and all_dim != 1.0
        entries |= {"mscale": all_dim if own else 1.0, "mscale_all_dim": all_dim}
    if amplitude is not None and amplitude != 1.0:
        rule = Yarn(factor, 1, **{k: v for k, v in entries.items() if v is not None})
        entries["attention_factor"] = rule.amplitude(None) * checks.real(
            "rope.scaling.attn_factor", amplitude, above=0.0
        )
    return entries
