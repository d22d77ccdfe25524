import dataclasses
import tomllib

import pytest

from ropewalk import ConfigError
from ropewalk.recipes.pretrain import PRESETS, PretrainSettings, load_settings
from ropewalk.recipes.settings import build, load_toml, merge, to_toml


def write(path, text):
    path.write_text(text)
    return path


def test_settings_survive_a_config_file(tmp_path):
    settings = load_settings(
        {
            "output": str(tmp_path),
            "data": {"sources": ['a "b"\n\\c\x7f', "é"], "whole_word": True, "tokenizer": "x"},
            "model": {"rope_parameters": {"rope_type": "linear", "factor": 2.5}, "dropout": 0.0},
            "training": {"steps": 7, "learning_rate": 1e-5},
        }
    )
    path = write(tmp_path / "config.toml", to_toml(settings.table()))
    assert tomllib.loads(path.read_text())["model"]["rope_parameters"]["factor"] == 2.5
    assert load_settings({}, config=path) == settings


def test_later_layers_replace_earlier_ones(tmp_path):
    output = tmp_path / "run"
    output.mkdir()
    write(
        output / "config.toml",
        "[training]\nsteps = 1\nbatch_size = 2\nseed = 3\n[data]\nsources = ['x']\n",
    )
    config = write(tmp_path / "c.toml", "[training]\nbatch_size = 20\nseed = 30\n")
    flags = {"output": str(output), "training": {"seed": 300}}
    settings = load_settings(flags, preset="paper-mlm", config=config, resume=True)
    assert settings.training.learning_rate == 1e-5  # the preset, over the default
    assert settings.training.steps == 1  # the run itself, over the preset
    assert settings.training.batch_size == 20  # the config file, over the run
    assert settings.training.seed == 300  # the flag, over all
    assert settings.training.schedule == "linear"  # the default
    fresh = load_settings(flags, preset="paper-mlm", config=config, needs_text=False)
    assert fresh.training.steps == 100_000, "without resume the run in the folder means nothing"


def test_the_paper_preset_has_the_papers_figures():
    settings = load_settings({"output": "x"}, preset="paper-mlm", needs_text=False)
    config = settings.model.config(vocab_size=30_522, length=512, pad_token_id=0)
    # bert-base-uncased; arXiv:2104.09864, section 4.2.
    sizes = (config.num_hidden_layers, config.hidden_size, config.num_attention_heads)
    assert (*sizes, config.intermediate_size, config.vocab_size) == (12, 768, 12, 3072, 30_522)
    assert (config.position_encoding, config.max_position_embeddings) == ("rope", 512)
    training = settings.training
    assert (training.batch_size, training.steps, training.learning_rate) == (64, 100_000, 1e-5)
    assert settings.data.validation_fraction == 0.2
    assert settings.data.block_size == 512
    assert PRESETS.keys() == {"paper-mlm", "modern"}


def test_the_modern_preset_is_an_encoder_of_today_at_any_size():
    # Warner et al., 2024, arXiv:2412.13663, table 4, but for its size.
    flags = {"output": "x", "model": {"layers": 22, "hidden_size": 768, "heads": 12}}
    settings = load_settings(flags, preset="modern")
    assert settings.data.mask_probability == 0.3
    config = settings.model.config(vocab_size=50_368, length=1024, pad_token_id=0)
    full, local = "full_attention", "sliding_attention"
    assert config.layer_types == ([full, local, local] * 8)[:22]
    assert config.sliding_window == 64
    assert {kind: spec.theta for kind, spec in config.rope_specs.items()} == {
        full: 160_000.0,
        local: 10_000.0,
    }
    assert (config.pre_norm, config.gated_mlp, config.hidden_act) == (True, True, "gelu")
    assert (config.attention_bias, config.mlp_bias, config.norm_bias) == (False, False, False)
    # As many weights as four times the width without a gate.
    assert config.intermediate_size == 2048
    # Kept as TOML and read again, it is the same.
    assert build(PretrainSettings, tomllib.loads(to_toml(settings.table()))) == settings


def test_a_layer_type_without_rotation_cannot_be_kept_as_toml():
    model = {"global_every": 2, "sliding_window": 4, "rope_parameters": {"full_attention": None}}
    with pytest.raises(ConfigError, match="rope_parameters must have a value for 'full_attention'"):
        load_settings({"output": "x", "model": model})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("stepss = 3", "the unknown key 'stepss'; it may be output, data"),
        ("[training]\nstepss = 3", "the unknown key 'training.stepss'; did you mean 'steps'"),
        ("[trainin]\nsteps = 3", "the unknown key 'trainin'; did you mean 'training'"),
        ("training = 3", r"training must be a table \[training\]; got 3"),
        ("[training]\nsteps = 'many'", "steps must be an integer .*'many'"),
        ("[training]\nsteps = {a = 1}", "steps must be an integer"),
        ("[data]\nsources = 'x'", "sources must be a list of strings; got 'x'"),
        ("[data]\nblock_size = 2", "block_size must be an integer of at least 3; got 2"),
        ("[data]\nvalidation_fraction = 1", r"validation_fraction must be in \(0, 1\); got 1"),
        ("[data]\nmask_probability = 0", "mask_probability must be .*; got 0"),
        ("[data]\ntokenizer = 1", "tokenizer must be the path of a folder; got 1"),
        ("[data]\nlowercase = 1", "lowercase must be true or false; got 1"),
        ("[data]\nsources = ['']", "sources must not hold an empty string"),
        ("[data]\ndataset = ['']", "dataset must not hold an empty string"),
        ("[data]\ntokenizer = ''", "tokenizer must be the path of a folder; got ''"),
        ("[data]\nblock_size = 10000000000000", "block_size must be at most 2147483647"),
        ("[data]\nvocab_size = 10000000000000", "vocab_size must be at most 2147483647"),
        ("[model]\nembedding_size = 0", "embedding_size must be an integer of at least 1; got 0"),
        ("[model]\nlayers = 10000000000", "layers must be at most 10000; got 10000000000"),
        ("[model]\nhidden_size = 10000000000", "hidden_size must be at most 1048576"),
        ("[training]\nseed = 4294967296", "seed must be at most 4294967295; got 4294967296"),
        (f"[training]\nseed = {'9' * 5000}", "is not TOML"),
        (f"a = {'[' * 10_000}", "is not TOML"),
        ("output = '~nosuchuser/x'", "output: cannot look at '~nosuchuser/x'"),
        (f"output = '{'x' * 5000}'", "output: cannot look at 'xxx"),
        ("[data]\nfield = 1", "field must be a string; got 1"),
        ("[data]\ntokenizer_kind = 'unigram'", "tokenizer_kind must be one of .*'unigram'"),
        ("[model]\nhidden_size = '8'", "hidden_size must be an integer .*'8'"),
        ("output = 3", "output must be the path of a file or folder; got 3"),
        ("device = 'gpu'", "device must be one of .*'gpu'"),
        ("a = b", "is not TOML"),
    ],
)
def test_what_a_config_file_says_wrong_is_named(tmp_path, text, message):
    path = write(tmp_path / "c.toml", text)
    flags = {} if text.startswith("output") else {"output": "x"}
    with pytest.raises(ConfigError, match=message) as caught:
        load_settings(flags, config=path)
    assert "\n" not in str(caught.value)


def test_a_config_file_that_cannot_be_read_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"cannot read .*missing.toml"):
        load_toml(tmp_path / "missing.toml")
    (tmp_path / "c.toml").write_bytes(b"a = '\xff'")
    with pytest.raises(ConfigError, match="is not UTF-8"):
        load_toml(tmp_path / "c.toml")


def test_an_output_folder_and_known_names_are_needed():
    with pytest.raises(ConfigError, match="output must name the folder"):
        load_settings({})
    with pytest.raises(ConfigError, match="preset must be one of 'paper-mlm', 'modern'; got"):
        load_settings({"output": "x"}, preset="paper")
    with pytest.raises(ConfigError, match="preset='paper-mlm' needs its text"):
        load_settings({"output": "x"}, preset="paper-mlm")


def test_tables_are_merged_and_missing_fields_are_reported():
    assert merge({"a": {"x": 1}}, {"a": 2}, {"a": {"y": [3]}}) == {"a": {"y": [3]}}
    with pytest.raises(ConfigError, match=r"incomplete .*output"):
        build(PretrainSettings, {"device": "cpu"})
    settings = PretrainSettings(output="x")
    assert build(PretrainSettings, settings.table()) == settings
    assert dataclasses.asdict(settings) == settings.table()
