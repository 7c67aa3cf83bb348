import pytest
from intervals import merge, parse, total


class TestKept:
    """What works before."""

    def test_bookings_that_overlap_are_joined(self):
        assert merge([(9, 11), (10, 12)]) == [(9, 12)]

    def test_bookings_apart_stay_apart(self):
        assert merge([(9, 10), (12, 14)]) == [(9, 10), (12, 14)]
        assert total([(9, 10), (12, 14)]) == 3

    def test_bookings_are_read(self):
        assert parse("9-10, 12-14") == [(9, 10), (12, 14)]
        with pytest.raises(ValueError, match="not a booking"):
            parse("10-9")


class TestRepaired:
    """What does not."""

    @pytest.mark.parametrize(
        ("bookings", "merged"),
        [
            ([(9, 10), (10, 11)], [(9, 11)]),
            ([(1, 2), (2, 3), (3, 5)], [(1, 5)]),
        ],
    )
    def test_bookings_that_touch_are_joined(self, bookings, merged):
        assert merge(bookings) == merged

    def test_order_does_not_matter(self):
        assert merge([(12, 14), (9, 13)]) == [(9, 14)]

    def test_a_booking_inside_another_changes_nothing(self):
        assert merge([(9, 17), (10, 11)]) == [(9, 17)]
        assert total([(9, 17), (10, 11)]) == 8
