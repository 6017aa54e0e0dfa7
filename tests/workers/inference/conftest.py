"""The small gRPC scheduler of the runtime's tests serves here too."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "runtime"))
