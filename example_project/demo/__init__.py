"""Run the shop: `python -m demo` starts it with traffic, `python -m demo.check` proves that it sells nothing twice."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parent.parent.parent / "tests"))  # for `support.ensemble`
