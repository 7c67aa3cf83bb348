import asyncio

from sums import Sums

from toolyard.testing import running
from toolyard.testing.conformance import KITS, Target, conform


def test_no_case_of_ors_fails():
    with running([Sums]) as server:
        results = asyncio.run(conform(Target(server.url), [KITS["ors"]]))
    assert [one for one in results if one.verdict == "fail"] == []
