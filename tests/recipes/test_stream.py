import pytest

from ropewalk.recipes.stream import TrainingStream


class Rows:
    def __init__(self, count):
        self.count, self.epoch = count, None

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        return (self.epoch, index)


def test_every_epoch_is_another_permutation_of_all_rows():
    stream = TrainingStream(Rows(50), length=150, seed=0)
    epochs = [[stream[k] for k in range(50 * e, 50 * e + 50)] for e in range(3)]
    for number, rows in enumerate(epochs):
        assert sorted(rows) == [(number, index) for index in range(50)]
    orders = [[index for _, index in rows] for rows in epochs]
    assert orders[0] != orders[1] != orders[2]


def test_a_row_depends_on_the_seed_and_its_place_alone():
    forward = TrainingStream(Rows(7), length=30, seed=3)
    backward = TrainingStream(Rows(7), length=30, seed=3)
    read = [forward[k] for k in range(30)]
    assert [backward[k] for k in reversed(range(30))] == read[::-1]
    other = TrainingStream(Rows(7), length=30, seed=4)
    assert [other[k] for k in range(30)] != read


def test_the_rows_passed_in_keep_their_epoch():
    rows = Rows(3)
    assert TrainingStream(rows, length=9, seed=0)[8][0] == 2
    assert rows.epoch is None


def test_places_outside_the_run_are_refused():
    with pytest.raises(IndexError, match="got 4"):
        TrainingStream(Rows(3), length=4, seed=0)[4]
