from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from ropewalk.data.batching import PackedBlocks, cut_windows, long_windows, pack_documents
from ropewalk.data.tasks import MaskedLanguageModeling
from ropewalk.data.tokenizers import train_tokenizer
from ropewalk.errors import ConfigError, DataError

MASK = 4
WORDS = ("rope", "walkers", "unhappily", "rotating", "the", "!", "☃")


@pytest.fixture(scope="module")
def blocks(wordpiece):
    """About 5,000 tokens in blocks of 64, with words of one to many pieces and unknown ones."""
    order = np.random.Generator(np.random.Philox(key=1)).integers(0, len(WORDS), size=(60, 70))
    documents = [" ".join(WORDS[n] for n in row) for row in order]
    return pack_documents(documents, wordpiece, block_size=64)


def stacked(task: MaskedLanguageModeling) -> dict[str, torch.Tensor]:
    items = [task[index] for index in range(len(task))]
    return {name: torch.stack([item[name] for item in items]) for name in items[0]}


def within(count: int, total: int, share: float) -> bool:
    """Four standard deviations: one in 16,000 seeds would fail, and the seeds are fixed."""
    return abs(count - share * total) <= 4 * (total * share * (1 - share)) ** 0.5


def test_items_are_long_tensors_of_the_block_size(blocks, wordpiece):
    item = MaskedLanguageModeling(blocks, wordpiece)[3]
    assert list(item) == ["input_ids", "labels", "position_ids", "document_ids"]
    assert {(value.dtype, value.shape) for value in item.values()} == {(torch.int64, (64,))}
    assert item["position_ids"].tolist() == blocks.position_ids[3].tolist()
    assert item["document_ids"].tolist() == blocks.document_ids[3].tolist()


@pytest.mark.parametrize("whole_word", [False, True])
def test_labels_are_the_original_tokens_at_chosen_places_and_nothing_else_changes(
    blocks, wordpiece, whole_word
):
    data = stacked(MaskedLanguageModeling(blocks, wordpiece, whole_word=whole_word))
    original = torch.from_numpy(blocks.input_ids).long()
    chosen = data["labels"] != -100
    assert torch.equal(data["labels"][chosen], original[chosen])
    assert torch.equal(data["input_ids"][~chosen], original[~chosen])


@pytest.mark.parametrize("whole_word", [False, True])
def test_special_tokens_are_never_chosen_and_never_put_in(blocks, wordpiece, whole_word):
    task = MaskedLanguageModeling(blocks, wordpiece, probability=1.0, whole_word=whole_word)
    data = stacked(task)
    special = torch.from_numpy(np.isin(blocks.input_ids, wordpiece.all_special_ids))
    assert (data["labels"][special] == -100).all()
    assert (data["labels"][~special] != -100).all()  # with probability 1 all others are
    assert set(data["input_ids"][~special].unique().tolist()) & {0, 1, 2, 3} == set()


def test_shares_are_15_percent_of_the_tokens_and_80_10_10_of_those(blocks, wordpiece):
    task = MaskedLanguageModeling(blocks, wordpiece)
    tokens = chosen = masked = kept = 0
    for epoch in range(40):
        task.set_epoch(epoch)
        data = stacked(task)
        places = data["labels"] != -100
        now, was = data["input_ids"][places], data["labels"][places]
        tokens += int((blocks.word_ids >= 0).sum())
        chosen += int(places.sum())
        masked += int((now == MASK).sum())
        kept += int((now == was).sum())
    ordinary = len(wordpiece) - 5
    assert tokens > 180_000
    assert within(chosen, tokens, 0.15)
    assert within(masked, chosen, 0.8)
    # A random token is the old one by chance once in so many.
    assert within(kept, chosen, 0.1 + 0.1 / ordinary)
    assert within(chosen - masked - kept, chosen, 0.1 * (1 - 1 / ordinary))


def test_random_tokens_are_drawn_evenly_from_the_ordinary_vocabulary(blocks, wordpiece):
    task = MaskedLanguageModeling(blocks, wordpiece, probability=1.0)
    counts = np.zeros(len(wordpiece))
    for epoch in range(10):
        task.set_epoch(epoch)
        data = stacked(task)
        swapped = (data["labels"] != -100) & (data["input_ids"] != MASK)
        swapped &= data["input_ids"] != data["labels"]
        np.add.at(counts, data["input_ids"][swapped].numpy(), 1)
    assert (counts[:5] == 0).all()
    # Tokens of the text itself are drawn less often here, by their share of the text (up to
    # 1/6), because a draw of the old token is not counted as swapped; the others must be even.
    unused = np.setdiff1d(np.arange(5, len(wordpiece)), np.unique(blocks.input_ids))
    assert len(unused) > 40
    expected = counts[unused].mean()
    assert (np.abs(counts[unused] - expected) <= 4.5 * expected**0.5).all()  # Poisson
    assert (counts[5:] > expected / 2).all()


def test_whole_words_are_chosen_whole_and_at_the_same_rate(blocks, wordpiece):
    task = MaskedLanguageModeling(blocks, wordpiece, whole_word=True)
    chosen_words = words = long_words = 0
    for epoch in range(5):
        task.set_epoch(epoch)
        data = stacked(task)
        chosen = (data["labels"] != -100).numpy()
        for row, numbers in zip(chosen, blocks.word_ids, strict=True):
            for word in range(numbers.max() + 1):
                pieces = row[numbers == word]
                assert pieces.all() or not pieces.any()
                chosen_words += int(pieces.all())
                long_words += int(len(pieces) > 1)
                words += 1
    assert long_words > 1_000
    assert within(chosen_words, words, 0.15)


def test_single_tokens_of_a_word_are_chosen_apart_without_whole_word(blocks, wordpiece):
    chosen = (stacked(MaskedLanguageModeling(blocks, wordpiece))["labels"] != -100).numpy()
    mixed = [
        len(set(row[numbers == word].tolist())) == 2
        for row, numbers in zip(chosen, blocks.word_ids, strict=True)
        for word in range(numbers.max() + 1)
    ]
    assert sum(mixed) > 100


def equal(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(first[name], second[name]) for name in first)


def test_an_item_is_a_function_of_seed_epoch_and_index_alone(blocks, wordpiece):
    task = MaskedLanguageModeling(blocks, wordpiece, seed=7)
    forward = [task[index] for index in range(len(task))]
    copy = pickle.loads(pickle.dumps(MaskedLanguageModeling(blocks, wordpiece, seed=7)))
    for index in reversed(range(len(copy))):
        assert equal(copy[index], forward[index])
    assert equal(task[-1], forward[-1])
    task.set_epoch(1)
    assert not torch.equal(task[0]["labels"], forward[0]["labels"])
    task.set_epoch(0)
    assert equal(task[0], forward[0])


def test_seed_epoch_and_index_each_change_what_is_hidden(wordpiece, blocks):
    # The same block at every index, so that only the draws differ.
    same = PackedBlocks(*(np.repeat(array[:1], 3, axis=0) for array in vars(blocks).values()))
    hidden = set()
    for seed in (0, 1, 2**64 - 1):
        task = MaskedLanguageModeling(same, wordpiece, seed=seed)
        for epoch in (0, 1, 2**63):
            task.set_epoch(epoch)
            hidden |= {tuple(task[index]["labels"].tolist()) for index in range(3)}
    assert len(hidden) == 27  # seed and epoch do not stand in for each other either


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_workers_and_order_change_nothing(blocks, wordpiece):
    task = MaskedLanguageModeling(blocks, wordpiece)
    task.set_epoch(2)
    order = np.random.Generator(np.random.Philox(key=2)).permutation(len(task)).tolist()
    loader = DataLoader(task, batch_size=7, sampler=order, num_workers=2)
    batches = list(loader)
    loaded = {name: torch.cat([batch[name] for batch in batches]) for name in batches[0]}
    expected = stacked(task)
    assert equal(loaded, {name: value[order] for name, value in expected.items()})


@pytest.mark.parametrize("whole_word", [False, True])
@pytest.mark.parametrize("context", [8, 12, 16, 30])
def test_a_cut_window_hides_the_same_tokens_in_the_same_way(wordpiece, whole_word, context):
    windows, _ = long_windows([" ".join(WORDS * 30)], wordpiece, length=32)
    cut = cut_windows(windows, context)
    tasks = [
        MaskedLanguageModeling(rows, wordpiece, whole_word=whole_word, probability=0.4)
        for rows in (windows, cut)
    ]
    for index in range(len(windows)):
        inner = [
            {
                name: tensor[torch.from_numpy(rows.word_ids[index] >= 0)].tolist()
                for name, tensor in task[index].items()
                if name in ("input_ids", "labels")
            }
            for task, rows in zip(tasks, (windows, cut), strict=True)
        ]
        assert inner[0] == inner[1]
        assert any(label != -100 for label in inner[0]["labels"])


def test_the_draws_stay_what_they_are_today(letters):
    # Golden: Philox with key (seed, epoch) and counter (0, 0, 0, index); a change here changes
    # every training run.
    blocks = pack_documents(["a b c d e f g h i j k l m n o p q r s t u v w x y z"] * 2,
                            letters, block_size=28)  # fmt: skip
    task = MaskedLanguageModeling(blocks, letters, probability=0.5, seed=3)
    task.set_epoch(2)
    wanted = [label for label in task[1]["labels"].tolist() if label != -100]
    seen = " ".join(letters.convert_ids_to_tokens(task[1]["input_ids"][1:-1]))
    assert seen == (
        "[MASK] [MASK] l d e f g h i j k [MASK] [MASK] [MASK] o [MASK] [MASK] r s t u ##g w x y u"
    )
    assert letters.decode(wanted) == "a b c i l m n o p q v z"


def test_a_block_without_ordinary_tokens_hides_nothing(wordpiece):
    blocks = pack_documents(["☃ ☃ ☃"], wordpiece, block_size=5)
    for whole_word in (False, True):
        item = MaskedLanguageModeling(blocks, wordpiece, whole_word=whole_word)[0]
        assert item["labels"].tolist() == [-100] * 5
        assert item["input_ids"].tolist() == [2, 1, 1, 1, 3]


@pytest.mark.parametrize("value", [0, -0.1, 1.01, float("nan"), "x", None, True])
def test_a_probability_out_of_range_is_refused(blocks, wordpiece, value):
    with pytest.raises(ConfigError, match=f"probability={value!r}"):
        MaskedLanguageModeling(blocks, wordpiece, probability=value)


@pytest.mark.parametrize("value", [-1, 2**64, 1.0, True])
def test_a_seed_or_epoch_that_is_no_counter_is_refused(blocks, wordpiece, value):
    with pytest.raises(ConfigError, match=f"seed={value}"):
        MaskedLanguageModeling(blocks, wordpiece, seed=value)
    task = MaskedLanguageModeling(blocks, wordpiece)
    with pytest.raises(ConfigError, match=f"epoch={value}"):
        task.set_epoch(value)


def test_an_index_past_the_end_is_refused(blocks, wordpiece):
    task = MaskedLanguageModeling(blocks, wordpiece)
    for index in (len(task), -len(task) - 1):
        with pytest.raises(IndexError, match=f"got index={index}"):
            task[index]


def test_blocks_of_another_tokenizer_are_refused(blocks, letters):
    largest = blocks.input_ids.max()
    with pytest.raises(DataError, match=f"got token {largest}, but it has {len(letters)} entries"):
        MaskedLanguageModeling(blocks, letters)


def test_a_tokenizer_that_cannot_mask_is_refused(letters):
    blocks = pack_documents(["a b c"], letters, block_size=5)
    unmasked = train_tokenizer(["a b c"], vocab_size=20)
    unmasked.mask_token = None
    with pytest.raises(ConfigError, match="must have a mask_token; got None"):
        MaskedLanguageModeling(blocks, unmasked)
