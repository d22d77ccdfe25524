"""What can be set for a pre-training, the presets, and how settings are put together."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ropewalk.errors import ConfigError
from ropewalk.models import RoFormerConfig
from ropewalk.recipes.inputs import DataSettings
from ropewalk.recipes.settings import assemble
from ropewalk.recipes.training import DEVICES, TrainingSettings
from ropewalk.spec.checks import boolean, choice, integer

if TYPE_CHECKING:
    from collections.abc import Mapping

PAPER_MLM: dict[str, dict[str, Any]] = {
    "data": {"validation_fraction": 0.2, "vocab_size": 30_522, "block_size": 512},
    "model": {"layers": 12, "hidden_size": 768, "heads": 12, "intermediate_size": 3072},
    "training": {
        "steps": 100_000,
        "batch_size": 64,
        "learning_rate": 1e-5,
        "eval_every": 5000,
        "save_every": 5000,
        "log_every": 100,
    },
}
"""The pre-training of the RoFormer paper, arXiv:2104.09864, section 4.2.

Stated there: the configuration of bert-base-uncased (12 layers x 768, 12 heads, 3,072, 30,522
tokens), rotary positions, batches of 64 rows of at most 512 tokens, 100,000 steps, AdamW with
learning rate 1e-5, 80 % of the text for training, and the corpora, BookCorpus and Wikipedia.
Not stated, and chosen here: a linear schedule after a tenth of the steps as warm-up, weight decay
0.01 and 15 % masking as in BERT (Devlin et al., 2018, arXiv:1810.04805), dropout 0.1, a vocabulary
trained on the text itself, packed rows, fp32. The paper shows a curve and gives no final loss.
"""

MODERN: dict[str, dict[str, Any]] = {
    "data": {"mask_probability": 0.3, "block_size": 256},
    "model": {
        "layers": 6,
        "dropout": 0.0,
        "pre_norm": True,
        "gated_mlp": True,
        "bias": False,
        "global_every": 3,
        "sliding_window": 64,
        "rope_parameters": {
            "full_attention": {"rope_theta": 160_000.0},
            "sliding_attention": {"rope_theta": 10_000.0},
        },
    },
    "training": {"batch_size": 8},
}
"""An encoder as they are built today, after ModernBERT (Warner et al., 2024, arXiv:2412.13663).

Theirs: pre-norm, GeGLU, no biases but that of the decoder, every third layer global on base
160,000 and the others local (64 tokens to either side) on base 10,000, 30 % masking, no dropout.
Chosen here: a size for one CPU, AdamW and a linear schedule in place of StableAdamW and
warmup-stable-decay. Their base size is 22 layers x 768, 12 heads, feed-forward 1,152, trained at
1,024 and then 8,192 tokens.
"""

PRESETS = {"paper-mlm": PAPER_MLM, "modern": MODERN}
"""Names for ``--preset``, with the settings that each one changes."""
_FOR_LARGE_TEXTS = ("paper-mlm",)
MOST_LAYERS = 10_000
"""Far beyond what has been trained; more are a mistake that would only fill the memory."""
LARGEST_WIDTH = 2**20
"""Of layers, embeddings and feed-forward parts; as far beyond."""


@dataclass(frozen=True)
class ModelSettings:
    """Say how large a model is and how it knows positions.

    Args:
        layers: Number of layers.
        hidden_size: Width, a multiple of ``heads``.
        heads: Attention heads per layer.
        intermediate_size: Width of the feed-forward part; None means four times ``hidden_size``,
            or with ``gated_mlp`` two thirds of that, which makes as many weights.
        embedding_size: Width of the embeddings; None means ``hidden_size``.
        dropout: Dropout of layers and attention weights, 0 to 1.
        position_encoding: "rope", "learned", "sinusoidal" or "none".
        rope_parameters: As in transformers, for "rope"; None means base 10,000 without scaling.
            With local layers it may be one such table for each type of layer.
        pre_norm: Normalise the input of every sublayer, not its output.
        gated_mlp: Feed forward through GeGLU.
        bias: Whether projections and layer norms have biases; what scores the vocabulary has one.
        global_every: Every how many layers, the first included, one sees the whole row; the
            others see a window. 1 means all.
        sliding_window: How many tokens to either side those others see.
    """

    layers: int = 3
    hidden_size: int = 128
    heads: int = 4
    intermediate_size: int | None = None
    embedding_size: int | None = None
    dropout: float = 0.1
    position_encoding: str = "rope"
    rope_parameters: dict[str, Any] | None = None
    pre_norm: bool = False
    gated_mlp: bool = False
    bias: bool = True
    global_every: int = 1
    sliding_window: int | None = None

    def __post_init__(self) -> None:
        integer("layers", self.layers, at_least=1, at_most=MOST_LAYERS)
        for name in ("hidden_size", "heads", "intermediate_size", "embedding_size"):
            width = getattr(self, name)
            if width is not None:
                integer(name, width, at_least=1, at_most=LARGEST_WIDTH)
        boolean("bias", self.bias)
        integer("global_every", self.global_every, at_least=1, at_most=MOST_LAYERS)
        if (self.global_every > 1) != (self.sliding_window is not None):
            raise ConfigError(
                "sliding_window must be given if and only if global_every is more than 1; got "
                f"sliding_window={self.sliding_window!r}, global_every={self.global_every}"
            )
        for kind, one in (self.rope_parameters or {}).items():
            if one is None:
                raise ConfigError(
                    f"rope_parameters must have a value for {kind!r}, since settings are kept as "
                    "TOML, which has no null; got None"
                )

    def config(self, *, vocab_size: int, length: int, pad_token_id: int | None) -> RoFormerConfig:
        """Return the configuration of such a model.

        Args:
            vocab_size: Size of the vocabulary.
            length: Tokens of a row in training.
            pad_token_id: The tokenizer's.

        Raises:
            ConfigError: A setting is out of range or does not fit the others.
        """
        wide, narrow = self.intermediate_size, self.embedding_size
        if wide is None:
            wide = 8 * round(self.hidden_size / 3) if self.gated_mlp else 4 * self.hidden_size
        layer_types = None
        if self.global_every > 1:
            layer_types = [
                "sliding_attention" if index % self.global_every else "full_attention"
                for index in range(self.layers)
            ]
        return RoFormerConfig(
            vocab_size=vocab_size,
            num_hidden_layers=self.layers,
            hidden_size=self.hidden_size,
            num_attention_heads=self.heads,
            intermediate_size=max(wide, 1),
            embedding_size=self.hidden_size if narrow is None else narrow,
            hidden_dropout_prob=self.dropout,
            attention_probs_dropout_prob=self.dropout,
            max_position_embeddings=length,
            pad_token_id=pad_token_id,
            position_encoding=self.position_encoding,
            rope_parameters=self.rope_parameters,
            layer_types=layer_types,
            sliding_window=self.sliding_window,
            pre_norm=self.pre_norm,
            gated_mlp=self.gated_mlp,
            attention_bias=self.bias,
            mlp_bias=self.bias,
            norm_bias=self.bias,
            classifier_bias=self.bias,
        )


@dataclass(frozen=True)
class PretrainSettings:
    """Everything that decides a pre-training.

    Args:
        output: Folder for the results.
        data: The text and its form.
        model: The model.
        training: The training; its seed is the seed of everything.
        device: "auto", "cpu" or "cuda".

    Raises:
        ConfigError: A setting is out of range.
    """

    output: str
    data: DataSettings = field(default_factory=DataSettings)
    model: ModelSettings = field(default_factory=ModelSettings)
    training: TrainingSettings = field(
        default_factory=lambda: TrainingSettings(
            steps=1000, batch_size=16, learning_rate=1e-3, eval_every=250, save_every=250
        )
    )
    device: str = "auto"

    def __post_init__(self) -> None:
        output: object = self.output
        if not (isinstance(output, str) and output):
            raise ConfigError(f"output must be the path of a folder; got {output!r}")
        choice("device", self.device, DEVICES)

    def table(self) -> dict[str, Any]:
        """Return the settings as tables, as a config file has them."""
        return asdict(self)


def load_settings(
    flags: Mapping[str, Any],
    *,
    preset: str | None = None,
    config: str | Path | None = None,
    resume: bool = False,
    needs_text: bool = True,
) -> PretrainSettings:
    """Put settings together; each of these replaces what came before it.

    The defaults, the preset, with ``resume`` the settings that the run in the output folder was
    started with, the config file, the flags.

    Args:
        flags: Tables as in a config file.
        preset: Name of a preset.
        config: A TOML file with ``output``, ``device``, ``[data]``, ``[model]``, ``[training]``.
        resume: Whether a run will be continued.
        needs_text: Whether a preset made for another text than the embedded corpus is refused
            unless its text is named.

    Raises:
        ConfigError: A name or a value is refused, or there is no output folder.
    """
    if preset is not None:
        choice("preset", preset, tuple(PRESETS))
    settings = assemble(
        PretrainSettings,
        flags,
        defaults=PretrainSettings(output="unused").table(),
        chosen=PRESETS.get(preset or ""),
        config=config,
        resume=resume,
    )
    named = settings.data.sources or settings.data.dataset
    if preset in _FOR_LARGE_TEXTS and needs_text and not named:
        raise ConfigError(
            f"preset={preset!r} needs its text: name files, or data sets of the hub such as "
            "--dataset wikimedia/wikipedia:20231101.en"
        )
    return settings
