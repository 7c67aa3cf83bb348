from toolyard.sandboxes.native.backend import NativeBackend
from toolyard.testing import check_sandbox


def test_it_keeps_the_contract():
    report = check_sandbox(NativeBackend(), only=["files", "fork"])  # without only: all of it
    assert report.ok, str(report)
