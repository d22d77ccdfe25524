import json

import numpy as np
import pytest
from config_files import config

from ropewalk.errors import ConfigError, RopewalkError
from ropewalk.spec import Linear, LongRope, RopeSpec, Yarn
from ropewalk.spec.engines import read_as
from ropewalk.spec.facts import ModelFacts
from ropewalk.spec.verify import Dump, load_dump, verify

QWEN = read_as(ModelFacts.of(config("qwen2.5-7b-yarn")), "hf").specs["all"]
LLAMA = read_as(ModelFacts.of(config("llama-3.1-8b")), "hf").specs["all"]
GPT_OSS = read_as(ModelFacts.of(config("gpt-oss-20b")), "hf").specs["all"]


def tables(spec, amplitude=None, positions=64, dtype=np.float32):
    angles = np.arange(positions)[:, None] * spec.inv_freq(1)
    amplitude = spec.attention_factor(1) if amplitude is None else amplitude
    return [(f(angles) * amplitude).astype(dtype).astype(float) for f in (np.cos, np.sin)]


def code(dump, spec, **options):
    best = verify(dump, spec, **options).best
    return best and best.code


def changed(spec, **changes):
    rule = spec.scaling
    values = {name: getattr(rule, name) for name in rule.__dataclass_fields__} | changes
    return spec.replace(scaling=type(rule)(**values))


@pytest.mark.parametrize("spec", [QWEN, LLAMA, GPT_OSS])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_a_right_dump_is_right_in_every_form(spec, dtype):
    frequencies = spec.inv_freq().astype(dtype)
    assert code(Dump(inv_freq=frequencies), spec) == "RIGHT"
    assert code(Dump(inv_freq=np.concatenate([frequencies, frequencies])), spec) == "RIGHT"
    cos, sin = tables(spec, dtype=dtype)
    assert code(Dump(cos=cos, sin=sin), spec) == "RIGHT"
    wide = [np.concatenate([table, table], axis=1) for table in (cos, sin)]
    assert code(Dump(cos=wide[0], sin=wide[1]), spec) == "RIGHT"


@pytest.mark.parametrize(
    ("expected", "spec", "wrong"),
    [
        ("UNSCALED", LLAMA, LLAMA.replace(scaling=None)),
        ("THETA_LOST", QWEN, QWEN.replace(theta=1e4)),
        ("THETA_LOST_UNSCALED", QWEN, QWEN.replace(theta=1e4, scaling=None)),
        ("TRUNCATE_WRONG", GPT_OSS, changed(GPT_OSS, truncate=True)),
        ("RAMP_FORM", QWEN, changed(QWEN, ramp="paper")),
        ("ORIGINAL_WRONG", QWEN, changed(QWEN, original_max_position_embeddings=131072)),
        ("LINEAR_INSTEAD", QWEN, QWEN.replace(scaling=Linear(4.0))),
        ("FACTOR_INVERTED", QWEN, QWEN.replace(scaling=Linear(0.25))),
    ],
)
def test_the_frequencies_name_the_mistake(expected, spec, wrong):
    assert code(Dump(inv_freq=wrong.inv_freq()), spec, longest=131072) == expected


def test_a_reversed_ramp_and_a_rule_applied_twice():
    plain, right = QWEN.replace(scaling=None).inv_freq(), QWEN.inv_freq()
    assert code(Dump(inv_freq=plain / 4 + plain - right), QWEN) == "RAMP_REVERSED"
    assert code(Dump(inv_freq=right * right / plain), QWEN) == "SCALED_TWICE"


@pytest.mark.parametrize(
    ("expected", "power"),
    [("AMPLITUDE_MISSING", 0), ("AMPLITUDE_SQUARED", 2), ("AMPLITUDE_ROOT", 0.5)],
)
def test_the_table_names_what_happened_to_its_amplitude(expected, power):
    cos, sin = tables(QWEN, amplitude=QWEN.attention_factor() ** power)
    assert code(Dump(cos=cos, sin=sin), QWEN) == expected
    dump = Dump(inv_freq=QWEN.inv_freq(), attention_factor=QWEN.attention_factor() ** power)
    assert code(dump, QWEN) == expected


def test_signs_exchanges_and_pairings():
    cos, sin = tables(QWEN)
    assert code(Dump(cos=cos, sin=-sin), QWEN) == "ANGLE_NEGATED"
    assert code(Dump(cos=sin, sin=cos), QWEN) == "COS_SIN_SWAPPED"
    doubled = Dump(cos=np.repeat(cos, 2, axis=1), sin=np.repeat(sin, 2, axis=1))
    assert code(doubled, QWEN) == "PAIRING_WRONG"
    assert code(doubled, QWEN.replace(layout="interleaved")) == "RIGHT"


def test_two_mistakes_are_both_named():
    cos, sin = tables(QWEN.replace(scaling=None), amplitude=1.0, positions=4096)
    assert code(Dump(cos=cos, sin=sin), QWEN) == "UNSCALED+AMPLITUDE_MISSING"


def test_lists_of_longrope_and_partial_exponents():
    rule = LongRope((1.1,) * 4, (2.0,) * 4, 64, factor=4.0)
    spec = RopeSpec(8, "half", scaling=rule)
    assert code(Dump(inv_freq=spec.inv_freq(64)), spec, seq_len=65) == "LONGROPE_SHORT"
    assert code(Dump(inv_freq=spec.inv_freq(65)), spec, seq_len=64) == "LONGROPE_LONG"
    partial = RopeSpec(64, "half", rotary_dim=32)
    wrong = 1e4 ** (-np.arange(16) / 32)
    assert code(Dump(inv_freq=wrong), partial) == "PARTIAL_EXPONENT"
    assert code(Dump(inv_freq=RopeSpec(64, "half").inv_freq()), partial) == "PARTIAL_IGNORED"


def test_what_nothing_explains_is_not_explained():
    verdict = verify(Dump(inv_freq=QWEN.inv_freq() * 1.02), QWEN)
    assert verdict.best is None
    assert verdict.nearest.error == pytest.approx(0.02)
    with pytest.raises(ConfigError, match="got 7"):
        verify(Dump(inv_freq=np.ones(7)), QWEN)


def test_a_yarn_rule_with_own_betas():
    spec = RopeSpec(64, "half", scaling=Yarn(4.0, 2048, beta_fast=128, beta_slow=2))
    wrong = changed(spec, beta_fast=32, beta_slow=1)
    assert code(Dump(inv_freq=wrong.inv_freq()), spec) == "BETAS_IGNORED"


def test_files_in_every_form(tmp_path):
    cos, sin = tables(QWEN)
    np.save(tmp_path / "a.npy", np.stack([cos, sin]))
    np.save(tmp_path / "b.npy", np.concatenate([cos, sin], axis=1).astype(np.float16))
    np.save(tmp_path / "c.npy", QWEN.inv_freq().astype(np.float32))
    (tmp_path / "d.json").write_text(json.dumps(QWEN.inv_freq().tolist()))
    (tmp_path / "e.json").write_text(json.dumps({"cos": cos.tolist(), "sin": sin.tolist()}))
    np.savez(tmp_path / "f.npz", inv_freq=QWEN.inv_freq())
    np.savez(tmp_path / "g.npz", cos=cos, sin=sin)
    safetensors = pytest.importorskip("safetensors.numpy")
    arrays = {"inv_freq": QWEN.inv_freq().astype(np.float32)}
    safetensors.save_file(arrays, tmp_path / "h.safetensors")
    tables32 = {"cos": cos.astype(np.float32), "sin": sin.astype(np.float32)}
    safetensors.save_file(tables32, tmp_path / "i.safetensors")
    for path in tmp_path.iterdir():
        assert verify(load_dump(path), QWEN).is_right, path.name


@pytest.mark.parametrize("content", ["{", "3", "{}", '["a"]', '{"cos": [[1]], "sin": [[1, 2]]}'])
def test_unreadable_dumps_are_refused(tmp_path, content):
    (tmp_path / "dump.json").write_text(content)
    with pytest.raises(ConfigError):
        verify(load_dump(tmp_path / "dump.json"), QWEN)
    np.save(tmp_path / "object.npy", np.array([{}], dtype=object), allow_pickle=True)
    with pytest.raises(ConfigError):
        load_dump(tmp_path / "object.npy")


@pytest.mark.parametrize("suffix", [".npz", ".safetensors", ".npy"])
def test_damaged_files_of_arrays_are_refused(tmp_path, suffix):
    path = tmp_path / f"dump{suffix}"
    path.write_bytes(b"PK\x03\x04 no archive")
    with pytest.raises(RopewalkError, match="dump"):
        load_dump(path)
    np.savez(tmp_path / "empty.npz", other=np.ones(3))
    with pytest.raises(ConfigError, match="must hold inv_freq"):
        load_dump(tmp_path / "empty.npz")
