"""What holds for all tests."""

import os

# A test that fails should show where in penstock it did.
os.environ.setdefault("PENSTOCK_FULL_TRACEBACK", "1")
