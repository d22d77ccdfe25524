"""Put one known bug of scaling rules into the code at a time: the checks must fail."""

import math
from dataclasses import replace

import numpy as np
import pytest
import rule_contract

from ropewalk.rotary import module, rates, tables
from ropewalk.spec import by_length, by_pair, by_parts, parameters, xpos
from ropewalk.spec.rope_spec import RopeSpec


def reversed_ramp(patch):
    real = by_parts._blend
    patch.setattr(by_parts, "_blend", lambda plain, factor, kept: real(plain, factor, 1 - kept))


def swapped_betas(patch):
    real = by_parts.Yarn.correction_range

    def swapped(self, ladder):
        other = replace(self)
        other._set(beta_fast=self.beta_slow, beta_slow=self.beta_fast)
        return real(other, ladder)

    patch.setattr(by_parts.Yarn, "correction_range", swapped)


def truncate_ignored(patch):
    # transformers 5.24 in nested dictionaries; TGI and exllamav2 always
    real = by_parts.Yarn.correction_range
    patch.setattr(
        by_parts.Yarn,
        "correction_range",
        lambda self, ladder: real(replace(self, truncate=True), ladder),
    )


def always_smooth(patch):
    real = by_parts.Yarn.correction_range
    patch.setattr(
        by_parts.Yarn,
        "correction_range",
        lambda self, ladder: real(replace(self, truncate=False), ladder),
    )


def high_clamped_to_the_last_pair(patch):
    # vllm-project/vllm#27722
    real = by_parts.Yarn.correction_range

    def clamped(self, ladder):
        low, high = real(self, ladder)
        return low, min(high, ladder.rungs - 1)

    patch.setattr(by_parts.Yarn, "correction_range", clamped)


def ramp_of_the_paper(patch):
    real = by_parts.Yarn.inv_freq
    patch.setattr(
        by_parts.Yarn, "inv_freq", lambda self, *args: real(replace(self, ramp="paper"), *args)
    )


def amplitude_twice(patch):
    real = tables.block_table

    def doubled(spec, position_ids, rates, role):
        return real(spec, position_ids, rates._replace(amplitude=rates.amplitude**2), role)

    patch.setattr(module, "block_table", doubled)


def amplitude_forgotten(patch):
    patch.setattr(RopeSpec, "attention_factor", lambda self, seq_len=None: 1.0)


def amplitude_not_divided_out(patch):
    real = tables.undo
    patch.setattr(module, "undo", lambda table: real(table)._replace(cos=table.cos, sin=-table.sin))


def mscale_ratio_not_formed(patch):
    # sgl-project/sglang#22711
    patch.setattr(by_parts.Yarn, "amplitude", lambda self, n: by_parts.mscale_of(self.factor, 1.0))


def softmax_factor_not_squared(patch):
    real = by_parts.Yarn.softmax_scale_factor
    patch.setattr(by_parts.Yarn, "softmax_scale_factor", lambda self: math.sqrt(real(self)))


def partial_factor_ignored(patch):
    # transformers' Llama with rope_type "default"
    real = parameters._Keys.take

    def take(self, key, default=None):
        value = real(self, key, default)
        return 1.0 if key == "partial_rotary_factor" else value

    patch.setattr(parameters._Keys, "take", take)


def ramp_over_the_whole_head(patch):
    # partial rotation whose ramp forgets it
    real = by_parts.Yarn.correction_range
    patch.setattr(
        by_parts.Yarn,
        "correction_range",
        lambda self, ladder: real(self, replace(ladder, frequency_dim=2 * ladder.frequency_dim)),
    )


def low_and_high_swapped(patch):
    real = by_parts.Llama3.inv_freq

    def swapped(self, ladder, seq_len):
        other = replace(self)
        other._set(low_freq_factor=self.high_freq_factor, high_freq_factor=self.low_freq_factor)
        return real(other, ladder, seq_len)

    patch.setattr(by_parts.Llama3, "inv_freq", swapped)


def long_list_at_the_trained_length(patch):
    patch.setattr(
        by_length.LongRope, "_is_long", lambda self, n: n >= self.original_max_position_embeddings
    )


def list_chosen_by_the_allocated_size(patch):
    # ggml-org/llama.cpp#8995: the size of the context, not the length of the row
    patch.setattr(by_length.LongRope, "_is_long", lambda self, n: True)


def ratio_below_one_in_the_formula(patch):
    # vllm-project/vllm#52665
    patch.setattr(
        by_length.DynamicNTK,
        "ntk_factor",
        lambda self, n: 1 + self.factor * (2 * n / self.original_max_position_embeddings - 1),
    )


def factor_of_the_batch(patch):
    # QwenLM/Qwen#401: one length, that of the longest row
    real = rates.row_lengths

    def longest(seq_len, spec, position_ids):
        found = real(seq_len, spec, position_ids)
        return (max(found),) * len(found) if isinstance(found, tuple) else found

    patch.setattr(module, "row_lengths", longest)


def length_only_grows(patch):
    # transformers' dynamic rule: the longest call so far decides
    real, seen = rates.row_lengths, [0]

    def longest(seq_len, spec, position_ids):
        found = real(seq_len, spec, position_ids)
        if isinstance(found, int):
            seen[0] = found = max(found, seen[0])
        return found

    patch.setattr(module, "row_lengths", longest)


def length_missing_from_the_cache_key(patch):
    real = module.kept_rates

    def careless(kept, block, rows, device, dtype):
        found = kept.get((block, device, dtype))
        if found is None:
            found = kept[(block, device, dtype)] = real({}, block, rows, device, dtype)
        return found

    patch.setattr(module, "kept_rates", careless)


def exponents_of_the_turning_part(patch):
    # partial rotation taken for the proportional kind
    def inv_freq(self, ladder, seq_len):
        turning = int(self.partial_rotary_factor * ladder.rungs)
        scaled = np.zeros(ladder.rungs)
        scaled[:turning] = ladder.theta ** (-np.arange(turning) / turning)
        return scaled

    patch.setattr(by_pair.Proportional, "inv_freq", inv_freq)


def centre_of_the_call(patch):
    real = tables.gains
    patch.setattr(
        tables,
        "gains",
        lambda spec, p, log_gain: real(spec, p - p.double().mean().floor(), log_gain),
    )


def keys_multiplied_as_well(patch):
    real = tables.block_table
    patch.setattr(
        module, "block_table", lambda spec, p, rates, role: real(spec, p, rates, role and "query")
    )


def query_and_key_exchanged(patch):
    real = xpos.XPos.log_gain
    patch.setattr(xpos.XPos, "log_gain", lambda self, ladder: -real(self, ladder))


MUTANTS = {
    reversed_ramp: "check_yarn_of_qwen",
    swapped_betas: "check_yarn_of_qwen",
    always_smooth: "check_yarn_of_qwen",
    high_clamped_to_the_last_pair: "check_ramp_ends_beyond_the_last_pair",
    ramp_of_the_paper: "check_yarn_of_qwen",
    truncate_ignored: "check_gpt_oss_does_not_truncate",
    amplitude_twice: "check_amplitude_is_applied_once",
    amplitude_forgotten: "check_amplitude_is_applied_once",
    amplitude_not_divided_out: "check_amplitude_is_applied_once",
    mscale_ratio_not_formed: "check_table_and_softmax_scale_are_two_numbers",
    softmax_factor_not_squared: "check_table_and_softmax_scale_are_two_numbers",
    partial_factor_ignored: "check_partial_factor_narrows_the_ladder",
    ramp_over_the_whole_head: "check_partial_factor_narrows_the_ladder",
    low_and_high_swapped: "check_llama_3_1",
    long_list_at_the_trained_length: "check_longrope_switches_above_the_trained_length",
    list_chosen_by_the_allocated_size: "check_longrope_switches_above_the_trained_length",
    ratio_below_one_in_the_formula: "check_length_belongs_to_the_row",
    factor_of_the_batch: "check_length_belongs_to_the_row",
    length_only_grows: "check_length_belongs_to_the_row",
    length_missing_from_the_cache_key: "check_length_belongs_to_the_row",
    exponents_of_the_turning_part: "check_proportional_keeps_the_exponents_of_the_head",
    centre_of_the_call: "check_xpos_has_no_hidden_centre",
    keys_multiplied_as_well: "check_xpos_has_no_hidden_centre",
    query_and_key_exchanged: "check_xpos_has_no_hidden_centre",
}


def test_every_check_has_a_mutant():
    assert set(MUTANTS.values()) == set(rule_contract.CHECKS)


@pytest.mark.parametrize(
    ("mutant", "check"), MUTANTS.items(), ids=[mutant.__name__ for mutant in MUTANTS]
)
def test_known_bug_is_caught(mutant, check, monkeypatch):
    assert rule_contract.CHECKS[check]() is None
    mutant(monkeypatch)
    with pytest.raises(AssertionError):
        rule_contract.CHECKS[check]()
