"""The benchmarks: figures that follow from a clock of ours, contenders that must be right."""

from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch

from ropewalk.errors import ConfigError, DataError
from ropewalk.recipes.bench import (
    accuracy,
    contenders,
    encoder,
    kernels,
    limits,
    operator,
    run,
    table,
)
from ropewalk.recipes.bench.accuracy import AccuracySettings
from ropewalk.recipes.bench.contenders import Entry, Operands, Setting, Shape, entries
from ropewalk.recipes.bench.encoder import EncoderSettings, Rows
from ropewalk.recipes.bench.exact import exact_rotation, exact_table, largest_error
from ropewalk.recipes.bench.operator import OperatorSettings
from ropewalk.recipes.bench.peers import PEERS, Setup, absent
from ropewalk.recipes.bench.progress import Show
from ropewalk.recipes.bench.results import Accuracy, Case, Contender, Report
from ropewalk.recipes.bench.timing import Call, Clock, Samples, interleave, spread

TINY = Shape(2, 4, 2, 6, 8, start=3)
QUIET = Show(1, shown=False)


class FakeTime:
    """A clock that only the calls move, by their price and the round's burden."""

    def __init__(self):
        self.cpu = self.wall = 0.0
        self.burden = 1.0

    def call(self, price):
        def run():
            self.cpu += price * self.burden
            self.wall += 2 * price * self.burden

        return Call(run)

    @property
    def clock(self):
        return Clock(lambda: self.cpu, lambda: self.wall)


def test_ratios_are_those_within_rounds_whatever_a_round_suffers():
    time = FakeTime()

    def slower(_):
        time.burden *= 10  # every round is ten times as slow as the one before

    calls = {"copy": time.call(0.03), "ours": time.call(0.06)}
    found = interleave(calls, seconds=1e-9, clock=time.clock, each_round=slower)
    assert [len(samples.cpu) for samples in found.values()] == [3, 3]
    assert found["copy"].cpu == pytest.approx([0.03, 0.3, 3.0])
    assert found["copy"].wall == pytest.approx([0.06, 0.6, 6.0])
    seen = spread(found["ours"].cpu, found["copy"].cpu)
    assert seen == pytest.approx((2.0, 2.0, 2.0, 3))


def test_short_calls_are_repeated_and_the_time_is_kept():
    time = FakeTime()
    counts = {"short": 0, "long": 0}

    def counted(name, price):
        inner = time.call(price).run

        def run():
            counts[name] += 1
            inner()

        return Call(run)

    calls = {"short": counted("short", 0.001), "long": counted("long", 0.5)}
    found = interleave(calls, seconds=10.0, sample=0.02, clock=time.clock)
    rounds = len(found["long"].cpu)
    # Warming up takes 2 seconds of the wall and a round 1.04; the last one ends past the limit.
    assert rounds == 8
    assert counts == {"short": 2 + 20 * rounds, "long": 2 + rounds}
    assert found["short"].cpu == pytest.approx([0.001] * rounds)


def test_the_order_of_a_round_is_shuffled_by_the_seed():
    def orders(seed):
        time, order = FakeTime(), []

        def named(name):
            inner = time.call(1.0).run
            return Call(lambda: (order.append(name), inner()))

        interleave({n: named(n) for n in "abcd"}, seconds=1e-9, seed=seed, clock=time.clock)
        return order[8:]  # the first eight calls warm up

    assert orders(0) == orders(0)
    assert orders(0) != orders(1)
    assert sorted(orders(0)) == sorted("abcd" * 3)


def test_the_exact_rotation_is_a_rotation_worked_by_hand():
    quarter = (torch.tensor([[0.0]]), torch.tensor([[1.0]]))
    x = torch.tensor([[[[2.0, 3.0]]]])
    assert exact_rotation(x, quarter, "half").tolist() == [[[[-3.0, 2.0]]]]
    cos, sin = exact_table(torch.tensor([1]), 4)
    assert cos[0, 1].item() == pytest.approx(0.9999500004166653, abs=1e-15)  # cos 0.01
    four = torch.tensor([[[[1.0, 0.0, 0.0, 0.0]]]])
    assert exact_rotation(four, (cos, sin), "half")[0, 0, 0].nonzero().flatten().tolist() == [0, 2]
    turned = exact_rotation(four, (cos, sin), "interleaved")[0, 0, 0]
    assert turned.nonzero().flatten().tolist() == [0, 1]
    assert torch.isnan(torch.tensor(largest_error([cos * float("nan")], [cos])))


@pytest.mark.parametrize("mode", ["forward", "training"])
@pytest.mark.parametrize("layout", ["half", "interleaved"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_every_contender_that_is_installed_equals_the_float64_rotation(dtype, layout, mode):
    operands = Operands(Setting(TINY, dtype, layout, mode), seed=1)
    wanted = operands.wanted()
    found = {}
    for entry in entries(operands, peers=True, compiled=False):
        about = entry.contender if isinstance(entry, Entry) else entry
        if isinstance(entry, Entry):
            about = operator.check(entry, wanted)
            entry.call.run()  # what is timed runs too
        found[about.code, about.form, about.kernel] = about
    states = {about.status for about in found.values()}
    assert states <= {"measured", "absent"}, found
    assert found["ropewalk", "fresh", "reference"].status == "measured"
    assert (("ropewalk", "in place", "reference") in found) == (mode == "forward")
    peers = {peer.code for peer in PEERS if peer.layout == layout}
    assert peers <= {code for code, *_ in found}
    # float32 at positions up to 8: every code is right to rounding; bf16: three roundings.
    errors = [about.error for about in found.values() if about.error is not None]
    assert max(errors) < (2e-6 if dtype == "float32" else 0.06)


def test_every_kernel_is_checked_and_timed_as_itself(monkeypatch):
    taken = []

    @contextmanager
    def use_kernel(name):
        taken.append(name)
        yield

    monkeypatch.setattr(contenders, "available_kernels", lambda: ("reference", "native"))
    monkeypatch.setattr(contenders, "use_kernel", use_kernel)
    monkeypatch.setattr(kernels, "native_status", lambda: "native: avx2, threads through libgomp")
    setting = Setting(TINY, "float32", "half", "forward")
    settings = OperatorSettings(seconds=1e-6, peers="none")
    found = operator.measure_case("tiny", setting, settings, QUIET)
    for form in ("fresh", "out", "in place"):
        assert found.find("ropewalk", form=form, kernel="native") is not None
    # Once for the check, at least twice to warm up, and once in each of three rounds.
    assert taken.count("native") == taken.count("reference") >= 3 * (1 + 2 + 3)
    assert kernels.states()["native"] == "avx2, threads through libgomp"


@pytest.mark.parametrize("peer", PEERS, ids=lambda peer: peer.code)
def test_the_table_of_a_peer_is_that_of_the_stretch_asked_for(peer):
    reason = absent(peer)
    if reason:
        pytest.skip(f"{peer.code}: {reason}")
    prepared = peer.prepare(Setup(8, 5, 3, torch.float32))
    cos, sin = exact_table(torch.arange(5, 8), 8)
    # float32 angles up to 8 radians.
    torch.testing.assert_close(prepared.cos.double(), cos, rtol=0, atol=1e-6)
    torch.testing.assert_close(prepared.sin.double(), sin, rtol=0, atol=1e-6)


def entry(answer):
    return Entry(Contender("someone", bound=1e-3), Call(answer), answer)


def test_a_wrong_contender_is_flagged_and_one_that_raises_has_failed():
    wanted = [torch.zeros(2, dtype=torch.float64)]
    right = operator.check(entry(lambda: [torch.full((2,), 5e-4)]), wanted)
    assert (right.status, right.error) == ("measured", pytest.approx(5e-4))
    wrong = operator.check(entry(lambda: [torch.tensor([0.0, 0.5])]), wanted)
    assert (wrong.status, wrong.note) == ("wrong", "wrong by 0.5, not timed")
    unknown = operator.check(entry(lambda: [torch.tensor([0.0, float("nan")])]), wanted)
    assert (unknown.status, unknown.error) == ("wrong", None)
    other = operator.check(entry(lambda: [torch.zeros(3)]), wanted)
    assert other.status == "wrong"

    def fail():
        raise RuntimeError("no\nluck")

    failed = operator.check(entry(fail), wanted)
    assert (failed.status, failed.note) == ("failed", "RuntimeError: no luck")


def test_a_peer_that_turns_the_other_way_is_shown_and_not_timed(monkeypatch):
    peer = next(peer for peer in PEERS if peer.layout == "half")
    prepared = peer.prepare(Setup(8, 3, 6, torch.float32))

    def backwards(setup):
        return prepared._replace(
            rotate=lambda q, k: tuple(
                exact_rotation(x, (prepared.cos, -prepared.sin), "half").float() for x in (q, k)
            )
        )

    monkeypatch.setattr(
        "ropewalk.recipes.bench.contenders.PEERS", (replace(peer, prepare=backwards),)
    )
    settings = OperatorSettings(seconds=1e-6)
    case = operator.measure_case(
        "tiny", Setting(TINY, "float32", "half", "forward"), settings, QUIET
    )
    found = {contender.code: contender for contender in case.contenders}
    assert found[peer.code].status == "wrong"
    assert found[peer.code].samples.cpu == []
    assert len(found["ropewalk"].samples.cpu) == 3
    assert case.moved == 2 * 4 * (2 * 6 * 6 * 8)
    rows = next(s for s in table.sections(report(operator=[case])) if s.title.startswith("Oper"))
    row = next(row for row in rows.rows if row[0] == peer.code)
    assert row[1].startswith("wrong: wrong by ")


def case(mode="forward", shape="batch", layout="half", **times):
    """Return a case of which only the times are told, in seconds of copies."""
    names = {
        "copy": Contender("copy", "out"),
        "clone": Contender("clone"),
        "fresh": Contender("ropewalk", kernel="native"),
        "out": Contender("ropewalk", "out", "native"),
        "in_place": Contender("ropewalk", "in place", "native"),
        "eager": Contender("ropewalk", "in place", "eager"),
        "llama": Contender("transformers Llama"),
        "compiled": Contender("plain torch", compiled=True),
        "slow_compiled": Contender("transformers Llama", compiled=True),
    }
    found = [
        replace(names[name], samples=Samples([seconds] * 3, [seconds] * 3))
        for name, seconds in times.items()
    ]
    return Case(shape, "float32", layout, mode, 1024, found)


def report(**parts):
    return Report({"cores": "2"}, {"torch": "2"}, {"seed": 0}, {"reference": "plain"}, **parts)


def test_what_must_hold_is_judged_in_both_directions():
    measured = case(
        copy=1.0, clone=1.1, fresh=1.6, out=1.05, in_place=1.4, eager=4.0, llama=8.0,
        compiled=1.3, slow_compiled=9.0,
    )  # fmt: skip
    found = {summary.limit.name: summary for summary in limits.findings([measured])}

    def seen(name):
        summary = found[name]
        return summary.worst.seen.median, summary.verdict

    assert seen("in place, fp32: x copy") == (1.4, "within noise")
    assert seen("out=, fp32: x copy") == (1.05, "target")
    assert seen("out of place, fp32: x clone") == (pytest.approx(1.6 / 1.1), "holds")
    assert seen("out of place: faster than transformers' eager code") == (5.0, "target")
    assert seen("in place: faster than transformers' eager code") == (
        pytest.approx(8 / 1.4),
        "holds",
    )
    assert seen("in place, fp32: x the best compiled form") == (pytest.approx(1.4 / 1.3), "holds")
    assert seen("without a compiler, in place, fp32 half: x copy") == (4.0, "holds")
    assert found["in place, bf16: x copy"].verdict == "not measured"
    assert limits.all_hold([measured], [])
    slow = case(copy=1.0, in_place=1.6, llama=4.0)
    found = {summary.limit.name: summary for summary in limits.findings([measured, slow])}
    assert seen("in place, fp32: x copy") == (1.6, "no")
    assert seen("in place: faster than transformers' eager code") == (2.5, "no")
    assert not limits.all_hold([measured, slow], [])


def test_a_summary_names_its_worst_case_and_every_rival():
    cases = [case(copy=1.0, in_place=1.2), case(copy=1.0, in_place=1.1, layout="interleaved")]
    summary = limits.findings(cases)[0]
    assert summary.worst.case.layout == "half"
    assert [finding.verdict for finding in summary.findings] == ["holds", "holds"]
    assert {finding.rival for finding in summary.findings} == {"copy, given output"}


def test_a_wrong_answer_of_ours_breaks_what_must_hold():
    found = case(copy=1.0, in_place=1.2, fresh=1.0)
    assert limits.all_hold([found], [])
    found.contenders[1] = replace(found.contenders[1], status="wrong", samples=Samples())
    summary = limits.findings([found])[0]
    assert (summary.worst, summary.verdict) == (None, "no")
    assert not limits.all_hold([found], [])


def test_what_was_not_measured_is_counted_beside_the_verdict():
    both = [
        replace(case(in_place=1.0).contenders[0], kernel="native"),
        Contender("x-transformers", samples=Samples([10.0] * 3, [10.0] * 3)),
        Contender("rotary-embedding-torch", status="absent", note="needs einops"),
    ]
    found = Case("long", "float32", "interleaved", "forward", 1024, both)
    rows = {row[0]: row for row in table.must_hold(report(operator=[found])).rows}
    row = rows["in place, fp32: faster than rotary-embedding-torch and x-transformers"]
    assert row[1:5] == ("10.00", "at least 9", "-", "holds (1 of 2 not measured)")
    assert rows["in place, fp32: x the best compiled form"][4] == "not measured"


def test_errors_of_ours_are_judged_and_those_of_peers_are_not():
    ours = Accuracy("ropewalk", 1000, 3e-8, 3e-7, 1.0)
    peer = Accuracy("someone", 1000, 0.7, 2.1, 46.0)
    assert limits.all_hold([], [ours, peer])
    assert not limits.all_hold([], [ours, replace(ours, position=2000, bf16_rms=1.03)])


def test_our_tables_and_bf16_vectors_keep_their_limits_up_to_ten_million():
    rows = list(accuracy.measure(AccuracySettings(peers="none"), QUIET))
    assert [row.position for row in rows] == [10**3, 10**4, 10**5, 10**6, 10**7]
    for row in rows:
        assert row.table <= 6e-8  # one rounding to float32
        assert row.bf16_rms <= 1.02
        # Half an ulp of values up to 8, and the table's error times vectors up to 5.
        assert row.rotated <= 6e-7


def test_peers_errors_are_those_of_float32_angles():
    rows = list(accuracy.measure(AccuracySettings(positions=(1000,)), QUIET))
    errors = {row.code: row.table for row in rows}
    assert errors["transformers Llama"] == pytest.approx(5.6e-5, rel=0.2)
    assert errors["transformers RoFormer"] < 6e-8
    assert {row.code for row in rows} == {"ropewalk"} | {p.code for p in PEERS if not absent(p)}


@pytest.mark.parametrize("mode", ["forward", "training"])
def test_encoders_agree_before_they_are_timed(mode):
    rows = Rows(2, 3, 8, layers=1, hidden_size=16, heads=2, vocab_size=40)
    settings = EncoderSettings(seconds=1e-6)
    found = encoder.measure_case("tiny", rows, "float32", mode, settings, QUIET)
    assert 0 < found.difference < 1e-5
    assert len(found.ours.cpu) == len(found.theirs.cpu) == 3
    assert 8 < found.tokens <= 16


def test_encoders_that_differ_are_not_timed(monkeypatch):
    rows = Rows(1, 4, 4, layers=1, hidden_size=16, heads=2, vocab_size=40)
    monkeypatch.setitem(encoder._BOUNDS, "float32", 0.0)
    with pytest.raises(ConfigError, match="must agree within 0 to be compared; they differ by"):
        encoder.measure_case("tiny", rows, "float32", "forward", EncoderSettings(), QUIET)


def test_a_report_survives_its_json_and_becomes_a_page():
    errors = [Accuracy("ropewalk", 1000, 3e-8, 3e-7, 1.0), Accuracy("a|b", 1000, 1e-4, 1e-3, 1.6)]
    found = case(copy=1.0, in_place=1.2)
    found.contenders.append(Contender("torchtune", status="absent", note="needs torchtune"))
    whole = report(operator=[found], accuracy=errors)
    again = Report.from_json(whole.to_json())
    assert again == whole
    page = table.markdown(again)
    assert page == table.markdown(whole)
    lines = page.splitlines()
    assert lines[0] == "# Benchmarks"
    assert any(
        line.startswith("| in place, fp32: x copy | 1.20 | at most 1.3 | at most 1 | holds |")
        for line in lines
    )
    assert "| torchtune | absent: needs torchtune | - | - | - | - |  |" in lines
    assert "| ropewalk | 3.0e-08 |" in lines
    assert "| a\\|b | 1.0e-04 |" in lines
    tables = [line for line in lines if line.startswith("|")]
    assert all(line.endswith("|") for line in tables)
    assert "Interrupted" not in page
    assert "**Interrupted: some cases are missing.**" in table.markdown(
        replace(whole, complete=False)
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nothing", "got 'nothing'"),
        ("{}", "got '{}'"),
        ("[1]", r"got '\[1\]'"),
        ('{"schema": "other/1"}', "schema must be 'ropewalk.bench/1'; got 'other/1'"),
        ('{"schema": "ropewalk.bench/1", "operator": 3}', "ropewalk bench wrote"),
    ],
)
def test_what_is_no_report_is_refused(text, message):
    with pytest.raises(DataError, match=message):
        Report.from_json(text)


def test_an_interrupted_run_keeps_what_was_measured(monkeypatch):
    def measure(settings, show):
        yield Accuracy("ropewalk", 1000, 3e-8, 3e-7, 1.0)
        raise KeyboardInterrupt

    monkeypatch.setattr(accuracy, "measure", measure)
    plan = run.Plan(accuracy=AccuracySettings(peers="none"), threads=1)
    before = torch.get_num_threads()
    found = run.run(plan, threads_sleep=False, progress=False)
    assert torch.get_num_threads() == before
    assert not found.complete
    assert [row.position for row in found.accuracy] == [1000]
    assert found.settings["threads"] == 1
    assert found.versions["torch"].startswith(torch.__version__.partition("+")[0])


def test_all_peers_are_demanded_by_name(monkeypatch):
    def missing(_):
        raise ModuleNotFoundError("No module named 'nowhere'", name="nowhere")

    peer = replace(PEERS[0], code="nobody's", prepare=missing)
    assert absent(peer) == "needs nowhere"
    monkeypatch.setattr(operator, "PEERS", (peer,))
    with pytest.raises(ConfigError, match=r"missing: nobody's \(needs nowhere\)"):
        OperatorSettings(peers="all")


def test_estimates_grow_with_what_is_asked():
    few = OperatorSettings(shapes=("batch",), dtypes=("float32",), seconds=60)
    assert operator.estimate(few).startswith("4 cases, about 5 min and 0.5 GiB")
    assert operator.estimate(replace(few, compile=True)).startswith("4 cases, about 7 min")
    assert len(OperatorSettings().cases) == 20  # decoding is not trained
