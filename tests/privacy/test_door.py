"""The door: only sealed values leave, nothing costs more than was charged, and other releases have
other noise."""

import dataclasses
import math

import numpy as np
import pytest
from dp_accounting import (
    ComposedDpEvent,
    GaussianDpEvent,
    NonPrivateDpEvent,
    PoissonSampledDpEvent,
    ZCDpEvent,
)
from dp_accounting.pld import PLDAccountant
from hypothesis import given, settings
from hypothesis import strategies as st

from suture.errors import PrivacyError
from suture.models.dense import Dense
from suture.privacy import door
from suture.privacy.accounting.events import normal_form
from suture.privacy.door import LOCAL, Context, Sealed, Session, opened, protected, root_key
from suture.privacy.noise.mechanisms import Counts, Pick
from suture.privacy.noise.source import seeded_key
from suture.privacy.unit import Patients
from suture.protection.secure_sum import Grid, Share
from suture.training.local import Local
from suture.training.mechanism import DpSgd

KEY = seeded_key(1)
SHARE = Share(Grid(1.0, 0.5, 8))
CONTEXT = Context("plan", "boston", 1, "study/fedavg", "fedavg", 1, 0, 1, b"m" * 32, b"s")


def rows(patients=20, seed=0, declared=None):
    """Patients of one to three rows."""
    rng = np.random.default_rng(seed)
    counts = rng.integers(1, 4, patients)
    starts = np.append(0, np.cumsum(counts)).astype(np.int64)
    x = rng.normal(size=(int(starts[-1]), 8)).astype(np.float32)
    return Patients(x, rng.integers(0, 2, len(x)), starts, None, declared)


def session(data=None, charged=SHARE.event, key=KEY):
    return Session(
        rows() if data is None else data, charged, key, round_=1, site="boston", noise=1.0
    )


def every_row(data):
    return data.x, np.ones(data.rows)


def never(data):
    raise AssertionError("rows were touched")


def released(mechanism=SHARE, data=None, key=KEY, name="sum", each=every_row):
    return session(data, mechanism.event, key).release(name, mechanism, each).value


class TestSealed:
    def test_only_sealed_values_leave(self):
        fine = Sealed.public(np.ones(2))
        np.testing.assert_array_equal(opened({"a": fine})["a"], np.ones(2))
        with pytest.raises(PrivacyError, match="'b' did not pass the door"):
            opened({"a": fine, "b": np.ones(2)})

    def test_it_cannot_be_built(self):
        for stamp in (None, object(), True, Sealed.public(np.ones(1))):
            with pytest.raises(PrivacyError, match="only the door seals"):
                Sealed(np.ones(1), stamp)

    def test_it_cannot_be_filled_with_something_else(self):
        fine = Sealed.public(np.ones(1))
        with pytest.raises(PrivacyError, match="only the door seals"):
            dataclasses.replace(fine, value=np.zeros(1))
        with pytest.raises(dataclasses.FrozenInstanceError):
            fine.value = np.zeros(1)

    def test_a_subclass_is_not_sealed(self):
        class Mine(Sealed):
            def __post_init__(self, *_):
                pass

        with pytest.raises(PrivacyError, match="did not pass the door"):
            opened({"a": Mine(np.ones(1))})

    def test_post_processing_stays_sealed(self):
        found = Sealed.public(np.ones(2)).then(np.add, Sealed.public(np.full(2, 3.0)))
        assert opened({"a": found})["a"].tolist() == [4.0, 4.0]

    def test_what_stays_is_named_so_and_never_decides_what_leaves(self):
        kept = session().keep("own", lambda data, key: {"mean": data.x.mean(axis=0)})
        assert list(kept) == [LOCAL + "mean"]
        assert protected({**kept, "params": np.ones(1)}).keys() == {"params"}


class TestCharge:
    @pytest.mark.parametrize(
        ("mechanism", "charged"),
        [
            (SHARE, ZCDpEvent(9.0)),
            (SHARE, GaussianDpEvent(1.001)),
            (SHARE, PoissonSampledDpEvent(0.5, GaussianDpEvent(0.1))),
            (Counts(8, 1.0, 5.0), GaussianDpEvent(5.1)),
            (Counts(8, 1.0, 5.0), ZCDpEvent(9.0)),
            (Pick(2, 8, 0.5), ZCDpEvent(0.4)),
            (Share(Grid(1.0, None, 8)), ZCDpEvent(0.5)),
            (Share(Grid(1.0, 0.5, 8), unbounded=True), ZCDpEvent(0.5)),
            (Pick(2, 8, None), ZCDpEvent(0.5)),
            (Counts(8, 1.0, 0.0), GaussianDpEvent(5.0)),
        ],
    )
    def test_what_costs_more_than_was_charged_touches_no_row(self, mechanism, charged):
        with pytest.raises(PrivacyError, match="nothing may leave"):
            session(charged=charged).release("sum", mechanism, never)

    def test_a_training_that_costs_more_than_was_charged_touches_no_row(self):
        network, local = (
            Dense((8, 1)),
            Local(epochs=1, batch=5, rate=0.1, clip=1.0, noise_multiplier=2.0),
        )
        cheap = dataclasses.replace(local, noise_multiplier=1.0)
        start = np.zeros(network.n_params, np.float32)
        planned = DpSgd(network, local, 20, start)
        with pytest.raises(PrivacyError, match="costs more than was charged"):
            session(charged=planned.event).train("training", DpSgd(network, cheap, 20, start))
        with pytest.raises(PrivacyError, match="declared size"):
            session(rows(declared=40), charged=planned.event).train("training", planned)
        assert set(session(charged=planned.event).train("training", planned)) == {"params"}

    def test_a_charge_is_spent_once(self):
        open_ = session(charged=ComposedDpEvent([SHARE.event, SHARE.event]))
        open_.release("one", SHARE, every_row)
        open_.release("two", SHARE, every_row)
        with pytest.raises(PrivacyError, match="'three' costs more"):
            open_.release("three", SHARE, never)

    def test_zcdp_is_counted_by_rho(self):
        open_ = session(charged=ZCDpEvent(0.5))
        for part in range(5):
            open_.release(str(part), Pick(2, 8, 0.1), every_row)
        with pytest.raises(PrivacyError, match="costs more"):
            open_.release("more", Pick(2, 8, 0.001), never)

    def test_gaussian_releases_are_counted_by_their_precision(self):
        open_ = session(charged=GaussianDpEvent(1.0))
        for part in range(10):
            open_.release(str(part), Share(Grid(1.0, 0.05, 8)), every_row)
        with pytest.raises(PrivacyError, match="costs more"):
            open_.release("more", Share(Grid(1.0, 0.001, 8)), never)

    @settings(max_examples=25, deadline=None)
    @given(st.lists(st.floats(0.5, 6.0), min_size=1, max_size=4), st.lists(st.floats(0.5, 6.0)))
    def test_what_the_door_lets_out_costs_no_more_than_was_charged(self, charged, asked):
        """By the library's own accountant of loss distributions (its grid errs by 1e-3 at most)."""
        left = door._Left(normal_form(ComposedDpEvent([GaussianDpEvent(z) for z in charged])))
        taken = []
        for noise in asked:
            try:
                left.take(normal_form(GaussianDpEvent(noise)), "x")
            except PrivacyError:
                break
            taken.append(noise)

        def cost(noises):
            accountant = PLDAccountant()
            accountant.compose(ComposedDpEvent([GaussianDpEvent(z) for z in noises]))
            return accountant.get_epsilon(1e-5)

        assert not taken or cost(taken) <= cost(charged) + 1e-3

    def test_a_name_is_used_once(self):
        open_ = session(charged=ComposedDpEvent([SHARE.event, SHARE.event]))
        open_.release("sum", SHARE, every_row)
        with pytest.raises(PrivacyError, match="was released in this round already"):
            open_.release("sum", SHARE, never)

    def test_nothing_unprotected_leaves_under_a_promise(self):
        with pytest.raises(PrivacyError, match="without protection"):
            session().unprotected("rows", lambda data, key: never(data))
        free = session(charged=NonPrivateDpEvent()).unprotected(
            "rows", lambda data, key: {"x": data.x}
        )
        np.testing.assert_array_equal(opened(free)["x"], rows().x)

    def test_shapes_must_be_those_of_the_mechanism(self):
        for each in (
            lambda data: (data.x[:, :7], np.ones(data.rows)),
            lambda data: (data.x[1:], np.ones(data.rows - 1)),
            lambda data: (data.x, np.ones((data.rows, 1))),
        ):
            with pytest.raises(PrivacyError, match="other shapes"):
                released(each=each)


class TestNoise:
    def noise(self, context=CONTEXT, own=None, table=b"rows", software="x", secret=b"k" * 32):
        key = root_key(secret, context, own or {}, table, software)
        return released(data=rows(0), key=key).tolist()

    @settings(max_examples=60, deadline=None)
    @given(st.data())
    def test_another_context_is_other_noise_and_another_charge(self, data):
        kinds = {
            "str": st.text(max_size=8),
            "int": st.integers(-(2**70), 2**70),
            "bytes": st.binary(max_size=40),
        }
        fields = {field.name: kinds[field.type] for field in dataclasses.fields(Context)}
        one, two = (data.draw(st.builds(Context, **fields)) for _ in range(2))
        name = data.draw(st.sampled_from(sorted(fields)))
        near = dataclasses.replace(one, **{name: data.draw(fields[name])})
        for other in (near, two):
            assert (one == other) == (one.mark == other.mark)
            assert (one == other) == (self.noise(one) == self.noise(other))

    def test_neighbouring_fields_do_not_run_into_each_other(self):
        moved = dataclasses.replace(CONTEXT, account="study/fedav", method="gfedavg")
        assert moved.mark != CONTEXT.mark
        swapped = dataclasses.replace(CONTEXT, seed=CONTEXT.fold, fold=CONTEXT.seed)
        assert swapped.mark != CONTEXT.mark

    def test_own_state_rows_software_and_secret_each_move_it(self):
        found = [
            self.noise(),
            self.noise(own={"a": np.zeros(1)}),
            self.noise(own={"b": np.zeros(1)}),
            self.noise(own={"a": np.ones(1)}),
            self.noise(own={"a": np.zeros(1, np.float32)}),
            self.noise(own={"a": np.zeros((1, 1))}),
            self.noise(table=b"other"),
            self.noise(software="y"),
            self.noise(secret=b"l" * 32),
        ]
        assert len(set(map(tuple, found))) == len(found)
        assert self.noise() == self.noise()
        own = {"a": np.zeros(1), "b": np.ones(2)}
        assert self.noise(own=own) == self.noise(own=dict(reversed(own.items())))

    def test_rows_have_a_fingerprint_of_all_that_they_hold(self):
        table = rows()
        changed = [
            table,
            Patients(table.x + np.float32(1e-6), table.y, table.starts),
            Patients(table.x, 1 - table.y, table.starts),
            Patients(table.x, table.y, np.arange(table.rows + 1)),
            Patients(table.x, table.y, table.starts, np.zeros(table.patients, np.int32)),
            Patients(table.x, table.y, table.starts, None, 40),
            rows(19),
        ]
        assert len({one.fingerprint() for one in changed}) == len(changed)
        assert rows().fingerprint() == table.fingerprint()

    @pytest.mark.parametrize(
        ("first", "second"),
        [
            (SHARE, Share(Grid(1.0, 0.5, 8, honest=2))),
            (SHARE, Share(Grid(1.0, 0.5 + 1e-12, 8))),
            (SHARE, Share(Grid(1.0, 0.5, 8, step=2.0**-10))),
            (SHARE, Share(Grid(1.0 + 1e-12, 0.5, 8))),
            (Counts(8, 1.0, 5.0), Counts(8, 1.0, 5.0 + 1e-12)),
            (Counts(8, 1.0, 5.0), Counts(8, 1.0, 5.0, "gaussian")),
        ],
    )
    def test_another_mechanism_is_other_noise(self, first, second):
        empty = rows(0)
        assert released(first, empty).tolist() != released(second, empty).tolist()
        assert released(first, empty).tolist() == released(first, empty).tolist()

    def test_another_name_is_other_noise(self):
        assert (
            released(data=rows(0), name="a").tolist() != released(data=rows(0), name="b").tolist()
        )


class TestSums:
    FREE = Share(Grid(1.0, None, 8))

    def exact(self, data, each=every_row):
        return self.FREE.grid.open(released(self.FREE, data, each=each))

    def test_nobody_gives_noise_alone(self):
        assert self.exact(rows(0)).tolist() == [0.0] * 8
        assert np.any(released(data=rows(0, declared=40)) != 0)
        assert Pick(2, 8, 0.5).noised(np.zeros(8), seeded_key(1)).shape == (2, 2)
        assert released(Pick(2, 8, 0.5), rows(0)).shape == (2, 2)
        assert released(Counts(8, 1.0, 5.0), rows(0)).shape == (8,)

    @pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
    def test_what_is_not_finite_counts_as_zero(self, bad):
        table = rows()
        x = table.x.copy()
        x[table.starts[3], 2] = bad
        without = np.delete(np.arange(table.rows), np.arange(table.starts[3], table.starts[4]))
        counts = np.delete(np.diff(table.starts), 3)
        fewer = Patients(table.x[without], table.y[without], np.append(0, np.cumsum(counts)))
        np.testing.assert_array_equal(
            self.exact(Patients(x, table.y, table.starts)), self.exact(fewer)
        )

    @settings(max_examples=40, deadline=None)
    @given(seed=st.integers(0, 2**32 - 1), scale=st.sampled_from([1e-300, 1e-6, 1.0, 1e6, 1e300]))
    def test_one_patient_moves_a_sum_by_no_more_than_the_limit(self, seed, scale):
        def each(data):
            return data.x.astype(np.float64) * scale, np.full(data.rows, 3.0)

        table = rows(6, seed)
        end = int(table.starts[-2])
        fewer = Patients(table.x[:end], table.y[:end], table.starts[:-1])
        half = (
            0.5 / self.FREE.grid.steps
        )  # each of the two sums is put on the grid, without noise here
        moved = np.abs(self.exact(table, each) - self.exact(fewer, each))
        assert np.linalg.norm(np.maximum(moved - 2 * half, 0)) <= 1.0
        picks = Pick(1, 8, None)
        assert released(picks, table, each=each).shape == (2, 1)

    @pytest.mark.parametrize("block", [1, 8, 40, 100, 1 << 22])
    def test_the_sum_is_the_same_whatever_the_size_of_blocks(self, block, monkeypatch):
        whole = [released(mechanism, rows(200)).tolist() for mechanism in (SHARE, Pick(3, 8, 0.5))]
        seen = []

        def each(data):
            seen.append(data.patients)
            return every_row(data)

        monkeypatch.setattr(door, "_BLOCK", block)
        parts = [
            released(mechanism, rows(200), each=each).tolist()
            for mechanism in (SHARE, Pick(3, 8, 0.5))
        ]
        assert parts == whole
        assert sum(seen) == 400
        assert len(seen) == 2 or max(seen) <= max(1, block // 8)

    def test_blocks_carry_groups_and_the_declared_size(self, monkeypatch):
        table = rows(30)
        grouped = Patients(table.x, table.y, table.starts, np.arange(30) % 3, 64)
        seen = []

        def each(data):
            seen.append((data.group.tolist(), data.size))
            return every_row(data)

        monkeypatch.setattr(door, "_BLOCK", 64)
        released(data=grouped, each=each)
        assert [group for groups, _ in seen for group in groups] == grouped.group.tolist()
        assert {size for _, size in seen} == {64}

    def test_without_a_limit_sums_are_plain(self):
        free = Share(Grid(1.0, None, 8), unbounded=True)
        assert math.isinf(free.limit)
        found = free.grid.open(released(free, rows()))
        np.testing.assert_allclose(found, rows().x.sum(axis=0), atol=1e-3)


class TestMechanisms:
    def test_an_unknown_mechanism_is_refused(self):
        @dataclasses.dataclass(frozen=True)
        class Mine:
            event = SHARE.event
            size, limit, entrywise = 8, 1.0, False

            def noised(self, total, key):
                return total

        with pytest.raises(PrivacyError, match="is not a mechanism that this door knows"):
            session().release("sum", Mine(), never)

    def test_a_mechanism_of_the_same_name_is_refused(self):
        class Quiet(Share):
            def noised(self, total, key):
                return total

        Quiet.__name__, Quiet.__qualname__, Quiet.__module__ = "Share", "Share", Share.__module__
        with pytest.raises(PrivacyError, match="is not a mechanism that this door knows"):
            session().release("sum", Quiet(SHARE.grid), never)

    def test_the_list_is_closed(self):
        with pytest.raises(PrivacyError, match="not on the door's list"):

            @door.mechanism
            class Mine:
                pass

        class Quiet:
            pass

        Quiet.__qualname__, Quiet.__module__ = "Share", Share.__module__
        with pytest.raises(PrivacyError, match="not on the door's list"):
            door.mechanism(Quiet)
        assert set(Session.kinds.values()) == {Share, Pick, Counts, DpSgd}

    @pytest.mark.parametrize(
        ("mechanism", "setting"),
        [
            (Pick(2, 8, 0.5), {"limit": 5.0}),
            (Pick(2, 8, 0.5), {"entrywise": False}),
            (SHARE, {"entrywise": True}),
            (Counts(8, 1.0, 5.0), {"entrywise": True}),
            (Counts(8, 1.0, 5.0), {"whole": False}),
        ],
    )
    def test_no_setting_loosens_the_limit_at_the_same_cost(self, mechanism, setting):
        with pytest.raises((TypeError, ValueError)):
            dataclasses.replace(mechanism, **setting)


class TestCounts:
    """What a patient adds to counts is whole and within the sensitivity, or nothing."""

    def counted(self, each, sensitivity=1.0, data=None):
        """The count, of which the noise (the same for nobody at all) is taken off."""
        data, mechanism = rows() if data is None else data, Counts(8, sensitivity, 5.0)
        return (released(mechanism, data, each=each) - released(mechanism, rows(0))).tolist()

    def each(self, patient):
        """Every patient adds 1 to the first count, but for the fourth."""

        def found(data):
            values = np.zeros((data.rows, 8))
            values[data.starts[:-1], 0] = 1.0
            values[data.starts[3]] = patient
            return values, np.ones(data.rows)

        return found

    def test_whole_numbers_count(self):
        assert self.counted(self.each([0, 1, 0, 0, 0, 0, 0, 0])) == [19, 1, 0, 0, 0, 0, 0, 0]
        assert self.counted(self.each([0, -1, 0, 0, 0, 0, 0, 0])) == [19, -1, 0, 0, 0, 0, 0, 0]
        assert self.counted(self.each([1] * 8), math.sqrt(8)) == [20, 1, 1, 1, 1, 1, 1, 1]

    @pytest.mark.parametrize(
        "patient",
        [
            [0.5, 0, 0, 0, 0, 0, 0, 0],
            [1e-9, 0, 0, 0, 0, 0, 0, 0],
            [1 - 1e-9, 0, 0, 0, 0, 0, 0, 0],
            [0.35] * 8,
            [1, 1, 0, 0, 0, 0, 0, 0],
            [2, 0, 0, 0, 0, 0, 0, 0],
            [1e300] * 8,
            [np.nan, 0, 0, 0, 0, 0, 0, 0],
            [np.inf, 0, 0, 0, 0, 0, 0, 0],
        ],
    )
    def test_what_is_not_whole_or_too_much_counts_as_nothing(self, patient):
        assert self.counted(self.each(patient)) == [19, 0, 0, 0, 0, 0, 0, 0]

    def test_many_fractions_do_not_add_up(self):
        def half(data):
            values = np.zeros((data.rows, 8))
            values[data.starts[:-1]] = (
                0.35  # norm below 1 each; together they could push eight counts over a half
            )
            return values, np.ones(data.rows)

        assert self.counted(half) == [0] * 8

    def test_rows_of_a_patient_are_added_before_they_are_looked_at(self):
        table = Patients(np.zeros((4, 8)), np.zeros(4), np.array([0, 2, 4]))

        def halves(data):
            values = np.zeros((data.rows, 8))
            values[:2, 0], values[2:, 1] = 0.5, 1.0
            return values, np.ones(data.rows)

        assert self.counted(halves, data=table) == [1, 0, 0, 0, 0, 0, 0, 0]
