"""`python3 scripts/gpu_check`, from a checkout; nothing need be installed."""

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
# The first entry is this folder itself, whose files would stand for modules of the same names.
sys.path[0:1] = [str(HERE.parents[1]), str(HERE.parent)]

from gpu_check import again  # noqa: E402

if __name__ == "__main__":
    if any(each.startswith(("--here", "--profile")) for each in sys.argv):
        from gpu_check.main import main

        sys.exit(main())
    sys.exit(again.main(sys.argv[1:], [sys.executable, str(HERE)]))
