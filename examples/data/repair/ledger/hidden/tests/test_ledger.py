import pytest
from ledger import balances, read, report


class TestKept:
    """What works before."""

    def test_entries_are_read_as_cents(self):
        assert read("ana 12.50\n\nbob 0.07\n") == [("ana", 1250), ("bob", 7)]

    def test_what_is_no_entry_is_refused(self):
        with pytest.raises(ValueError, match="not an entry"):
            read("ana twelve")

    def test_entries_are_added_up(self):
        assert balances([("ana", 100), ("bob", 5), ("ana", 1)]) == {"ana": 101, "bob": 5}

    def test_one_balance_is_shown(self):
        assert report({"ana": 1250}) == "ana 12.50"


class TestRepaired:
    """What does not."""

    def test_a_refund_is_read_as_one(self):
        assert read("ana -5.07") == [("ana", -507)]

    def test_a_refund_is_taken_off(self):
        assert balances([("ana", 1200), ("ana", -500)]) == {"ana": 700}

    def test_the_largest_balance_comes_first(self):
        assert report({"ana": 2000, "bob": 10000, "cem": 300000}) == "cem 3000.00\nbob 100.00\nana 20.00"

    def test_names_are_in_order_where_balances_are_the_same(self):
        assert report({"cem": 100, "ana": 100, "bob": 200}).splitlines() == ["bob 2.00", "ana 1.00", "cem 1.00"]
