"""What all tests share: random tests that say the same on every machine, however slow it is.

`HYPOTHESIS_PROFILE=search make test` looks in new places instead.
"""

import os

from hypothesis import settings

settings.register_profile("same", derandomize=True, deadline=None)
settings.register_profile("search", deadline=None, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same"))
