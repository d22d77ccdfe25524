"""Put one known bug of config readers into the code at a time: the reader's checks must fail."""

from dataclasses import replace

import pytest
import reader_contract

from ropewalk.spec import config_keys, from_config, parameters, sources, widths

pytestmark = pytest.mark.filterwarnings("ignore::ropewalk.RopeConfigWarning")
Gathering = config_keys._Gathering


def changed(patch, name, after):
    """Let a step of the gathering run, and then spoil its dictionary."""
    real = getattr(Gathering, name)

    def spoilt(self, values, *args):
        found = real(self, values, *args)
        after(self, values)
        return found

    patch.setattr(Gathering, name, spoilt)


def unread(patch, key):
    """Read every config as if it had no such entry."""
    real = Gathering.__init__

    def init(self, family, config, strict):
        real(self, family, {k: v for k, v in config.items() if k != key}, strict)

    patch.setattr(Gathering, "__init__", init)


def dropped(patch, key):
    """Take a key out of every complete dictionary."""
    real = Gathering.completed

    def completed(self, *args):
        merged = real(self, *args)
        if merged is None:
            return None
        return replace(merged, values={k: v for k, v in merged.values.items() if k != key})

    patch.setattr(Gathering, "completed", completed)


def base_beside_ignored(patch):
    # vllm-project/vllm#42624 the other way round: only the dictionary is asked
    unread(patch, "rope_theta")


def base_of_the_dictionary_ignored(patch):
    # vllm-project/vllm#42624: a file of transformers 5 read by code for 4, base 10,000
    real = Gathering.completed

    def completed(self, written, label):
        return real(self, {k: v for k, v in written.items() if k != "rope_theta"}, label)

    patch.setattr(Gathering, "completed", completed)


def base_of_another_layer_type(patch):
    # huggingface/transformers#41922: local layers with the global base
    real = Gathering.theta
    patch.setattr(
        Gathering,
        "theta",
        lambda self, label, *args: real(self, (self.family.labels or (label,))[0], *args),
    )


def scaling_of_another_layer_type(patch):
    # vllm-project/vllm#29111
    real = Gathering.completed
    full = {}

    def completed(self, written, label):
        full.setdefault("first", written)
        kept = {"rope_theta": written["rope_theta"]} if "rope_theta" in written else {}
        return real(self, {**full["first"], **kept}, label)

    patch.setattr(Gathering, "completed", completed)


def local_base_ignored(patch):
    unread(patch, "rope_local_base_freq")


def old_name_of_the_type_ignored(patch):
    # huggingface/transformers#32167: type, which is now rope_type
    real = Gathering.completed

    def completed(self, written, label):
        return real(self, {k: v for k, v in written.items() if k != "type"}, label)

    patch.setattr(Gathering, "completed", completed)


def old_name_of_the_rule_ignored(patch):
    patch.setattr(Gathering, "rename_type", lambda self, values: None)


def share_ignored(patch):
    # huggingface/transformers#48652
    changed(patch, "complete_partial", lambda _, v: v.pop("partial_rotary_factor", None))


def share_rounded_up(patch):
    patch.setattr(
        from_config,
        "_share",
        lambda family, config, merged, width: round(
            width * merged.values.get("partial_rotary_factor", 1.0) + 0.5
        ),
    )


def text_config_ignored(patch):
    # NVIDIA-NeMo/Automodel#2652
    patch.setattr(sources, "_TOWERS", ())


def truncate_ignored(patch):
    # vllm-project/vllm#27722
    dropped(patch, "truncate")


def attention_factor_ignored(patch):
    # vllm-project/vllm#46280
    dropped(patch, "attention_factor")


def mscale_ignored(patch):
    # vllm-project/vllm#48623
    dropped(patch, "mscale")


def mscale_all_dim_ignored(patch):
    # huggingface/transformers#47435
    dropped(patch, "mscale_all_dim")


def trained_length_beside_ignored(patch):
    # Phi-3 keeps it beside the dictionary
    unread(patch, "original_max_position_embeddings")


def longest_taken_for_trained(patch):
    # NVIDIA/Megatron-LM#1418
    def longest(self, values):
        if "original_max_position_embeddings" in values:
            values["original_max_position_embeddings"] = self.config["max_position_embeddings"]

    changed(patch, "complete_original", longest)


def trained_taken_for_longest(patch):
    # the length that "dynamic" starts from is max_position_embeddings
    real = from_config.entry

    def other(family, config, key, label="all"):
        original = config.get("original_max_position_embeddings")
        if key == "max_position_embeddings" and original is not None:
            return original
        return real(family, config, key, label)

    patch.setattr(from_config, "entry", other)


def head_dim_ignored(patch):
    # huggingface/transformers#35233: hidden size / heads, whatever head_dim says
    real = widths.entry
    patch.setattr(
        widths,
        "entry",
        lambda family, config, key, label="all": (
            None if key.startswith("head_dim") else real(family, config, key, label)
        ),
    )


def documented_head_dim_ignored(patch):
    real = widths.head_width
    wrong = lambda family, *args: real(replace(family, head_dim=None), *args)  # noqa: E731
    patch.setattr(from_config, "head_width", wrong)


def documented_rule_ignored(patch):
    real = Gathering.__init__

    def init(self, family, config, strict):
        real(self, replace(family, defaults=None), config, strict)

    patch.setattr(Gathering, "__init__", init)


def rope_parameters_win(patch):
    # transformers lets rope_scaling replace rope_parameters as a whole
    real = config_keys._dictionary

    def other(config, name):
        names = {"rope_scaling": "rope_parameters", "rope_parameters": "rope_scaling"}
        return real(config, names[name])

    patch.setattr(config_keys, "_dictionary", other)


def contradictions_pass(patch):
    patch.setattr(Gathering, "refuse", lambda self, message: None)


def unknown_keys_pass(patch):
    # Blaizzy/mlx-vlm#1710: a field that is parsed and not used
    patch.setattr(parameters._Keys, "refuse_the_rest", lambda self: None)


MUTANTS = {
    base_beside_ignored: "check_two_releases_write_the_same_rotation",
    base_of_the_dictionary_ignored: "check_two_releases_write_the_same_rotation",
    old_name_of_the_type_ignored: "check_two_releases_write_the_same_rotation",
    base_of_another_layer_type: "check_layer_types_have_their_own_base_and_rule",
    scaling_of_another_layer_type: "check_layer_types_have_their_own_base_and_rule",
    local_base_ignored: "check_layer_types_have_their_own_base_and_rule",
    text_config_ignored: "check_layer_types_have_their_own_base_and_rule",
    old_name_of_the_rule_ignored: "check_phi_3",
    trained_length_beside_ignored: "check_phi_3",
    share_ignored: "check_part_of_the_head",
    share_rounded_up: "check_part_of_the_head",
    truncate_ignored: "check_gpt_oss",
    documented_rule_ignored: "check_gpt_oss",
    documented_head_dim_ignored: "check_gpt_oss",
    attention_factor_ignored: "check_factors_on_the_table",
    mscale_ignored: "check_factors_on_the_table",
    mscale_all_dim_ignored: "check_factors_on_the_table",
    longest_taken_for_trained: "check_trained_and_longest_length",
    trained_taken_for_longest: "check_trained_and_longest_length",
    head_dim_ignored: "check_width_of_a_head",
    rope_parameters_win: "check_both_dictionaries",
    contradictions_pass: "check_contradictions_are_refused",
    unknown_keys_pass: "check_contradictions_are_refused",
}


def test_every_check_has_a_mutant():
    assert set(MUTANTS.values()) == set(reader_contract.CHECKS)


@pytest.mark.parametrize(
    ("mutant", "check"), MUTANTS.items(), ids=[mutant.__name__ for mutant in MUTANTS]
)
def test_known_bug_is_caught(mutant, check, monkeypatch):
    assert reader_contract.CHECKS[check]() is None
    mutant(monkeypatch)
    with pytest.raises((AssertionError, reader_contract.Refused)):
        reader_contract.CHECKS[check]()
