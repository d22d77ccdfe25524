"""What all RoFormer models share: fresh weights, and folders exchanged with transformers."""

from __future__ import annotations

import os
from copy import copy
from pathlib import Path
from typing import Any, ClassVar

from torch import Tensor, nn
from transformers import PreTrainedModel, initialization

from ropewalk.errors import CheckpointError, ConfigError
from ropewalk.models import exchange, file_errors
from ropewalk.models.config import RopewalkRoFormerConfig
from ropewalk.models.layer_options import FULL, OWN_FIELDS, layer_kinds
from ropewalk.models.layers import SummedLinear

_BUILT_IN = (
    "vocab_size", "embedding_size", "hidden_size", "num_hidden_layers", "num_attention_heads",
    "intermediate_size", "hidden_act", "type_vocab_size", "layer_norm_eps", "rotary_value",
    "position_encoding", "tie_word_embeddings", *OWN_FIELDS,
)  # fmt: skip


class RoFormerPreTrainedModel(PreTrainedModel):
    """What all RoFormer models share: fresh weights, saving and loading.

    Folders are exchanged with transformers in both directions; see :meth:`save_pretrained` and
    :meth:`from_pretrained`.
    """

    config: RopewalkRoFormerConfig
    config_class = RopewalkRoFormerConfig
    base_model_prefix = "roformer"
    supports_gradient_checkpointing = True
    _supports_sdpa = True
    _can_compile_fullgraph = True
    _no_split_modules = ["RoFormerLayer"]  # noqa: RUF012 (declared by the base class)
    # Checked, and written for transformers, by ropewalk.models.exchange.
    _keys_to_ignore_on_load_unexpected = [r"encoder\.embed_positions\.weight$"]  # noqa: RUF012
    # Prefix of the head's parameters, and whether a checkpoint may come without them.
    _head: ClassVar[str | None] = None
    _fresh_head: ClassVar[bool] = False
    # Config fields that were built into the modules, and decide what they compute.
    _built_in: ClassVar[tuple[str, ...]] = _BUILT_IN

    def __init__(self, config: RopewalkRoFormerConfig, *inputs: Any, **kwargs: Any) -> None:
        if not isinstance(config, RopewalkRoFormerConfig):
            raise ConfigError(
                "config must be a ropewalk RoFormerConfig; got "
                f"{type(config).__module__}.{type(config).__name__}; "
                "from transformers' own, make RoFormerConfig(**config.to_dict())"
            )
        config.validate()  # fields may have been set since it was made
        super().__init__(config, *inputs, **kwargs)
        self._built = self._describe()

    def _describe(self) -> dict[str, Any]:
        """Return what the config says now of what is built into the modules."""
        config = self.config
        names = list(self._built_in)
        if config.position_encoding == "learned":
            names.append("max_position_embeddings")
        elif config.position_encoding == "sinusoidal":
            names.append("initializer_range")
        kinds, specs = layer_kinds(config), config.rope_specs
        # Lists and dictionaries might be changed in place.
        return {name: copy(getattr(config, name)) for name in names} | {
            "rope_parameters": specs if len(set(specs.values())) > 1 else specs[kinds[0]],
            "layer_types": None if len(set(kinds)) == 1 and kinds[0] == FULL else kinds,
        }

    def _check_config(self) -> None:
        """Refuse to write a config that does not describe the modules, or cannot be read back."""
        self.config.check_readable()
        now = self._describe()
        words: Any = self.get_input_embeddings()  # resizing changes it
        for name, built in (self._built | {"vocab_size": words.weight.shape[0]}).items():
            if now.get(name) != built:
                raise ConfigError(
                    f"config.{name} must be what the model was built with, {built!r}, to save it; "
                    f"got {now.get(name)!r}; put it back, or build a model with the new config"
                )

    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)  # type: ignore[no-untyped-call]
        if isinstance(module, SummedLinear):
            # The sum of all sublayers is normalised once, at the end: it shall not grow with them.
            std = self.config.initializer_range / (2 * self.config.num_hidden_layers) ** 0.5
            initialization.normal_(module.weight, std=std)

    @classmethod
    def from_pretrained(
        cls,
        pretrained_model_name_or_path: str | os.PathLike[str] | None,
        *model_args: Any,
        ignore_mismatched_sizes: bool = False,
        output_loading_info: bool = False,
        **kwargs: Any,
    ) -> Any:
        """Load a model, or refuse a folder that does not hold exactly this model.

        Args:
            pretrained_model_name_or_path: A folder written by ropewalk or by transformers'
                RoFormer, or a name on the hub.
            *model_args: As in transformers.
            ignore_mismatched_sizes: Start parameters of another size fresh instead of refusing.
            output_loading_info: Also return what was missing, unexpected or mismatched.
            **kwargs: As in transformers; config fields replace the saved ones.

        Returns:
            The model in evaluation mode; with ``output_loading_info`` a pair.

        Raises:
            CheckpointError: Files are missing, damaged or of another model; parameters are
                missing, left over or of another shape; a stored rotary table disagrees with
                the formula. A fresh classification head is allowed and reported.
            ConfigError: The config has a field that is unknown or out of range.
        """
        path = pretrained_model_name_or_path
        if path is not None or not {"config", "state_dict"} <= kwargs.keys():
            file_errors.check_path(path)
        if not kwargs.get("weights_only", True):
            raise ConfigError(
                "weights_only must be True, since a pickle can run any code; got False"
            )
        with file_errors.loading_errors(path), exchange.without_load_report():
            # With peft installed transformers would look for an adapter first, on the hub.
            file_errors.check_exists(path)
            loaded: Any = super().from_pretrained(
                path,
                *model_args,
                ignore_mismatched_sizes=True,
                output_loading_info=True,
                **kwargs,
            )
            model, info = loaded
            exchange.check_loaded(
                model,
                info,
                path,
                head=cls._head,
                fresh_head=cls._fresh_head,
                allow_mismatch=ignore_mismatched_sizes,
            )
            exchange.check_stored_table(model.config.head_dim, path, kwargs)
        return (model, info) if output_loading_info else model

    def save_pretrained(  # type: ignore[override]  # the rest goes by keyword
        self,
        save_directory: str | os.PathLike[str],
        is_main_process: bool = True,
        state_dict: dict[str, Tensor] | None = None,
        **kwargs: Any,
    ) -> None:
        """Write config and weights, readable by plain transformers where it can compute the model.

        Then the constant table that transformers expects is written too, so that it reports
        nothing missing there. Weight files of an earlier save that are not part of this one are
        removed once it is complete, since loading might prefer them.

        Args:
            save_directory: Folder, made if missing.
            is_main_process: As in transformers.
            state_dict: Weights to save in place of the model's.
            **kwargs: As in transformers.

        Raises:
            CheckpointError: The folder cannot be written, e.g. because the disk is full.
            ConfigError: The config was changed since the model was built, so that it does not
                describe it any more, or could not be read back.
        """
        file_errors.check_path(save_directory)
        self._check_config()
        state_dict = dict(self.state_dict() if state_dict is None else state_dict)
        if not self.config.tie_word_embeddings and exchange.BIAS_KEY in state_dict:
            # transformers wants both names then, but files hold shared memory once.
            state_dict[exchange.BIAS_KEY] = state_dict[exchange.BIAS_KEY].clone()
        if self.config.is_vanilla:
            prefix = "" if self.base_model is self else f"{self.base_model_prefix}."
            spec = self.config.rope_spec
            assert spec is not None
            state_dict[prefix + exchange.TABLE_KEY] = exchange.position_table(
                spec, self.config.max_position_embeddings
            ).to(self.dtype)
        with file_errors.writing_errors(save_directory):
            if Path(save_directory).is_file():
                raise CheckpointError(
                    "save_directory must be a folder; got the file "
                    f"{file_errors.shown(save_directory)}"
                )
            super().save_pretrained(
                save_directory, is_main_process=is_main_process, state_dict=state_dict, **kwargs
            )
            if is_main_process and not kwargs.get("distributed_checkpoint"):
                exchange.remove_older_weights(Path(save_directory), kwargs.get("variant"))
