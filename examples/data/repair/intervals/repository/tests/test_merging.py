from intervals import merge


def test_bookings_that_overlap_are_joined():
    assert merge([(9, 11), (10, 12)]) == [(9, 12)]
