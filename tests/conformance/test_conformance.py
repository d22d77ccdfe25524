"""Every rotary class of transformers turns vectors as the spec of its config says."""

import warnings

import pytest

pytest.importorskip("transformers")
import transformers

transformers.logging.set_verbosity_error()

from cases import EXCLUDED, default_cases, excess  # noqa: E402
from discovery import CONSUMERS, models_with_a_rotation, rotary_classes  # noqa: E402

pytestmark = [pytest.mark.parity, pytest.mark.filterwarnings("ignore")]

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    CASES = default_cases()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_the_identity_matrix_comes_out_as_the_spec_says(case):
    # coordinates that no pair touches, and entries outside the pairs, must agree exactly
    assert excess(case) <= 0.0
