"""Safety rules, switched off: each function makes one small change to the product's code.

`tests/chaos/ablation/ablations.py` says which rule each one switches off and which test must notice.
"""

import pytest

Patch = pytest.MonkeyPatch
