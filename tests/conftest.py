import pytest

# The laws are ordinary modules of the package: without this their assertions would fail without saying why.
pytest.register_assert_rewrite("holdfast.testing.laws", "holdfast.testing.machine")
