"""A model folder as sentence-transformers opens it: which vector stands for a whole text."""

from __future__ import annotations

import json
import os
from pathlib import Path

from ropewalk.errors import CheckpointError
from ropewalk.models.config import RopewalkRoFormerConfig
from ropewalk.models.file_errors import shown, writing_errors
from ropewalk.spec.checks import choice, integer

POOLINGS = ("mean", "cls", "max")
"""What may stand for a text: the mean of its tokens, its first token, or the largest of each
coordinate."""

# Names that every release of sentence-transformers reads, the first and the last.
_KEYS = {
    "mean": "pooling_mode_mean_tokens",
    "cls": "pooling_mode_cls_token",
    "max": "pooling_mode_max_tokens",
}


def configure_pooling(
    folder: str | os.PathLike[str], pooling: str = "mean", *, max_length: int | None = None
) -> None:
    """Write beside a saved model and its tokenizer how sentence-transformers is to use them.

    Afterwards ``SentenceTransformer(folder).encode(texts)`` gives the pooled last hidden states.
    A folder that says ``ropewalk_roformer`` needs ``import ropewalk.models`` before that.

    Args:
        folder: A folder with the ``config.json`` of a RoFormer; the model and its tokenizer may be
            saved before or after.
        pooling: One of ``POOLINGS``; padding never counts.
        max_length: Tokens after which texts are cut; None means the length it is trained at,
            ``max_position_embeddings``. Rotated models run beyond it.

    Raises:
        CheckpointError: There is no such config, or the folder cannot be written.
        ConfigError: ``pooling`` is not known, or ``max_length`` is no length.

    References:
        Reimers and Gurevych, 2019, arXiv:1908.10084, section 3.

    Example:
        >>> import tempfile
        >>> folder = tempfile.mkdtemp()
        >>> RopewalkRoFormerConfig().save_pretrained(folder)
        >>> configure_pooling(folder, "cls")
    """
    choice("pooling", pooling, POOLINGS)
    path = Path(folder)
    if not (path / "config.json").is_file():
        raise CheckpointError(
            f"{shown(folder)} must be the folder of a saved model; no config.json"
        )
    config = RopewalkRoFormerConfig.from_pretrained(path)
    if max_length is None:
        max_length = config.max_position_embeddings
    integer("max_length", max_length, at_least=1)
    part = "sentence_transformers.models."
    files = {
        "modules.json": [
            {"idx": 0, "name": "0", "path": "", "type": f"{part}Transformer"},
            {"idx": 1, "name": "1", "path": "1_Pooling", "type": f"{part}Pooling"},
        ],
        "sentence_bert_config.json": {"max_seq_length": max_length, "do_lower_case": False},
        "1_Pooling/config.json": {"word_embedding_dimension": config.hidden_size}
        | {key: name == pooling for name, key in _KEYS.items()},
    }
    with writing_errors(folder):
        for name, content in files.items():
            (path / name).parent.mkdir(exist_ok=True)
            (path / name).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
