"""RoFormer as transformers models, with a choice of position encodings."""

from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
)

from ropewalk.models.checkpoints import is_leftover, load_masked_lm, write_folder_atomically
from ropewalk.models.config import RoFormerConfig, RopewalkRoFormerConfig
from ropewalk.models.config_checks import POSITION_ENCODINGS
from ropewalk.models.encoder import RoFormerModel
from ropewalk.models.heads import (
    RoFormerForMaskedLM,
    RoFormerForSequenceClassification,
)
from ropewalk.models.known_fields import MODEL_TYPE
from ropewalk.models.losses import masked_lm_loss
from ropewalk.models.pretrained import RoFormerPreTrainedModel

__all__ = [
    "POSITION_ENCODINGS",
    "RoFormerConfig",
    "RoFormerForMaskedLM",
    "RoFormerForSequenceClassification",
    "RoFormerModel",
    "RoFormerPreTrainedModel",
    "RopewalkRoFormerConfig",
    "is_leftover",
    "load_masked_lm",
    "masked_lm_loss",
    "write_folder_atomically",
]

# Folders that say "roformer" stay with transformers' own classes; ours can be asked for by name.
AutoConfig.register(MODEL_TYPE, RopewalkRoFormerConfig, exist_ok=True)
AutoModel.register(RopewalkRoFormerConfig, RoFormerModel, exist_ok=True)
AutoModelForMaskedLM.register(RopewalkRoFormerConfig, RoFormerForMaskedLM, exist_ok=True)
AutoModelForSequenceClassification.register(
    RopewalkRoFormerConfig, RoFormerForSequenceClassification, exist_ok=True
)
