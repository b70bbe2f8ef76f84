"""The scenarios stand in a module that test files import: its assertions are told in full, too."""

import pytest

pytest.register_assert_rewrite("scenarios")
