"""Reports that end in a diagnosis, in two configurations compared, or in a dump explained."""

import re

import numpy as np
import pytest
from config_files import config
from gguf_writer import gguf

import ropewalk as rw
from ropewalk import RopeSpec
from ropewalk.spec.diagnose import diagnose
from ropewalk.spec.difference import compare_readings
from ropewalk.spec.engines import read_as
from ropewalk.spec.facts import ModelFacts
from ropewalk.spec.inspection import inspect_config
from ropewalk.spec.server_flags import with_flags
from ropewalk.spec.sources import load_config
from ropewalk.spec.verify import Dump, verify

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
LLAMA_3_2 = config("llama-3.1-8b")["rope_scaling"] | {"factor": 32.0}


def small(**entries):
    sizes = {"hidden_size": 512, "num_attention_heads": 4, "num_hidden_layers": 2}
    return {"model_type": "llama", **sizes, **entries}


def codes(entries, **options):
    return [found.code for found in diagnose(ModelFacts.of(entries), **options)]


def test_a_window_that_is_scaled_already_is_not_scaled_anew():
    """vllm-project/vllm#10537: dynamic and another base over what Llama-3.1 has."""
    entries = config("llama-3.1-8b")
    found = inspect_config(entries, target=262144)
    assert found.layers[0].candidates == ()
    assert [finding.code for finding in found.findings] == ["TRAINED_WITH_SCALING"]
    override = entries | {"rope_theta": 1.2e6}
    override["rope_scaling"] = {"rope_type": "dynamic", "factor": 8.0}
    assert codes(override) == ["DYNAMIC_INERT", "CACHE_DEPENDENT"]
    (found,) = compare_readings(
        read_as(ModelFacts.of(entries), "hf"), read_as(ModelFacts.of(override), "hf"), seq_len=4096
    )
    assert not found.is_none


@pytest.mark.parametrize(
    ("entries", "said"),
    [
        (config("deepseek-v3"), "with factor 40 is part of the model, whose .* = 163840"),
        (config("gpt-oss-20b"), "with factor 32 is part of the model"),
        (config("phi-3-mini-128k"), "'longrope' is part of the model, whose .* = 131072"),
        (config("qwen2.5-7b-yarn"), "with factor 4 is in the file; whether .* does not say"),
        (
            config("llama-3.1-8b") | {"rope_scaling": LLAMA_3_2},
            "with factor 32 is part of the model",
        ),
        (config("gemma-3-4b"), "'linear' with factor 8 is in the file; whether"),
    ],
)
def test_a_factor_of_training_is_neither_lowered_nor_applied_again(entries, said):
    """MoonshotAI/Kimi-K2#55, FranxYao/Long-Context-Data-Engineering#6."""
    report = inspect_config(entries, target=1 << 19)
    assert all(layer.candidates == () for layer in report.layers if layer.rope_type != "default")
    (found,) = (f for f in report.findings if f.code == "TRAINED_WITH_SCALING")
    assert found.severity == "note"
    assert re.search(said, found.message)
    assert "its factor for rows of every length" in found.remedy
    assert "TRAINED_WITH_SCALING" not in codes(entries)  # nobody asked for more


def test_an_unscaled_model_may_be_stretched():
    plain = config("smollm2-135m")
    assert codes(plain, target=32768) == []
    assert len(inspect_config(plain, target=32768).layers[0].candidates) == 4


WINDOW = {"vocab_size": 32000, "rope_theta": 1e4, "max_position_embeddings": 16384}


@pytest.mark.parametrize(
    ("code", "entries", "said"),
    [
        # huggingface/transformers#38224, #40320: max / original was taken, now the factor is
        (
            "FACTOR_MISMATCH",
            small(
                rope_theta=1e6, max_position_embeddings=131072, rope_scaling=YARN | {"factor": 2.0}
            ),
            "factor is 2, but .* = 4; transformers takes the factor",
        ),
        # JIA-Lab-research/LongLoRA#181: fine-tuned with scaling that the config lacks
        ("WINDOW_WITHOUT_SCALING", small(**WINDOW), "16384, but .* trained with 4096"),
        # vllm-project/vllm#55116, NVIDIA-NeMo/Safe-Synthesizer#623: extended twice
        (
            "DOUBLE_EXTENSION",
            small(
                rope_theta=1e4,
                max_position_embeddings=32768,
                rope_scaling={"rope_type": "linear", "factor": 4.0},
            ),
            "= 131072 positions",
        ),
    ],
)
def test_reports_about_lengths_that_do_not_fit_have_a_code(code, entries, said):
    found = {f.code: f for f in diagnose(ModelFacts.of(entries), engines=("hf", "vllm"))}
    assert re.search(said, found[code].message)


def test_a_frequency_scale_is_the_inverse_of_the_factor():
    """ggml-org/llama.cpp#2530 (-> #2544), #2402: 8.0 was given for 0.125."""
    plain = small(rope_theta=1e4, max_position_embeddings=2048)
    right = with_flags(plain, ["--rope-freq-scale", "0.125"])
    assert RopeSpec.from_config(right).scaling == rw.Linear(8.0)
    wrong = with_flags(plain, ["--rope-freq-scale", "8.0"])
    (found,) = diagnose(ModelFacts.of(wrong))
    assert (found.code, found.severity) == ("INVERTED_SCALE", "error")
    assert "write 8, new length / trained length" in found.remedy


def test_dynamic_scaling_that_is_static_slows_short_rows_too():
    """vllm-project/vllm#3488, #5093, #41277; SGLang 0.5.23 computes the table so."""
    entries = small(
        rope_theta=1e4,
        max_position_embeddings=4096,
        rope_scaling={"rope_type": "dynamic", "factor": 4.0},
    )
    hf, static = (read_as(ModelFacts.of(entries), name).specs["all"] for name in ("hf", "sglang"))
    slowed = hf.inv_freq(1000) / static.inv_freq(1000)
    assert slowed[0] == 1.0
    assert slowed[-1] == pytest.approx(13.0)  # 4 * 4 - (4 - 1)
    # the two agree where the row is as long as the table is for
    np.testing.assert_allclose(hf.inv_freq(16384), static.inv_freq(16384), rtol=1e-12)


def test_the_keys_that_count_and_those_that_do_not_are_listed():
    """turboderp-org/exllamav2#642."""
    entries = small(rope_theta=1e6, max_position_embeddings=32768)
    entries["rope_scaling"] = YARN | {"attn_factor": 1.0}
    (found,) = inspect_config(entries).layers
    assert {"factor", "original_max_position_embeddings"} <= set(found.used)
    assert found.ignored == ("attn_factor",)


def test_a_gguf_file_that_lost_its_factors_is_unlike_its_config(tmp_path):
    """ggml-org/llama.cpp#24820: the converter wrote neither factors nor the attention factor."""
    path = tmp_path / "phi3.gguf"
    path.write_bytes(
        gguf(
            {
                "general.architecture": "phi3",
                "phi3.embedding_length": 3072,
                "phi3.attention.head_count": 32,
                "phi3.block_count": 2,
                "phi3.context_length": 131072,
                "phi3.rope.freq_base": 10000.0,
                "phi3.rope.dimension_count": 96,
            }
        )
    )
    (found,) = compare_readings(
        read_as(ModelFacts.of(config("phi-3-mini-128k")), "hf"),
        read_as(ModelFacts.of(load_config(path)), "hf"),
        seq_len=8192,
    )
    assert not found.is_none
    assert found.first_position is not None


def test_a_table_reaches_every_position():
    """vllm-project/vllm#55910, #52665: a cache sized without the factor."""
    spec = RopeSpec(64, "half", scaling=rw.DynamicNTK(4.0, 2048))
    assert np.isfinite(spec.inv_freq(1_000_000)).all()
    # and no ratio below 1 within the trained length
    np.testing.assert_array_equal(spec.inv_freq(1), spec.ladder.inv_freq())
    np.testing.assert_array_equal(spec.inv_freq(2048), spec.ladder.inv_freq())


def test_a_dump_that_was_never_scaled_or_paired_otherwise_is_explained():
    """jundot/omlx#3347, sbryngelson/ANEForge#58, TransformerLensOrg/TransformerLens#910,
    NVIDIA/TensorRT-LLM#16378."""
    spec = RopeSpec.from_config(config("llama-3.1-8b"))
    assert verify(Dump(inv_freq=spec.ladder.inv_freq()), spec).best.code == "UNSCALED"
    angles = np.arange(64)[:, None] * spec.inv_freq()
    cos, sin = (np.repeat(f(angles), 2, axis=1) for f in (np.cos, np.sin))
    assert verify(Dump(cos=cos, sin=sin), spec).best.code == "PAIRING_WRONG"
