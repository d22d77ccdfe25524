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
from ropewalk.spec.checks import choice, integer

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

PRESETS = {"paper-mlm": PAPER_MLM}
"""Names for ``--preset``, with the settings that each one changes."""
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
        intermediate_size: Width of the feed-forward part; None means four times ``hidden_size``.
        embedding_size: Width of the embeddings; None means ``hidden_size``.
        dropout: Dropout of layers and attention weights, 0 to 1.
        position_encoding: "rope", "learned", "sinusoidal" or "none".
        rope_parameters: As in transformers, for "rope"; None means base 10,000 without scaling.
    """

    layers: int = 3
    hidden_size: int = 128
    heads: int = 4
    intermediate_size: int | None = None
    embedding_size: int | None = None
    dropout: float = 0.1
    position_encoding: str = "rope"
    rope_parameters: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        integer("layers", self.layers, at_least=1, at_most=MOST_LAYERS)
        for name in ("hidden_size", "heads", "intermediate_size", "embedding_size"):
            width = getattr(self, name)
            if width is not None:
                integer(name, width, at_least=1, at_most=LARGEST_WIDTH)

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
        return RoFormerConfig(
            vocab_size=vocab_size,
            num_hidden_layers=self.layers,
            hidden_size=self.hidden_size,
            num_attention_heads=self.heads,
            intermediate_size=4 * self.hidden_size if wide is None else wide,
            embedding_size=self.hidden_size if narrow is None else narrow,
            hidden_dropout_prob=self.dropout,
            attention_probs_dropout_prob=self.dropout,
            max_position_embeddings=length,
            pad_token_id=pad_token_id,
            position_encoding=self.position_encoding,
            rope_parameters=self.rope_parameters,
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
    if preset is not None and needs_text and not (settings.data.sources or settings.data.dataset):
        raise ConfigError(
            f"preset={preset!r} needs its text: name files, or data sets of the hub such as "
            "--dataset wikimedia/wikipedia:20231101.en"
        )
    return settings
