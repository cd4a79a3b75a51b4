"""Parameters that carry marks, where several files have the same."""

import pytest

# XLA has no fp16 for some processors: such a test is skipped there. Where the same test runs in
# bfloat16 too, one half type is enough for `make test`.
FP16 = pytest.param("fp16", marks=(pytest.mark.fp16, pytest.mark.slow))

# Of a file whose tests fail to read checkpoints: TensorStore's other reads then report to an event
# loop that is gone, some of them in the test that follows.
FAILED_READS = [
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.usefixtures("collected"),
]
