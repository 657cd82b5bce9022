"""``python -m tests.golden METHOD …`` writes the summaries of methods; ``--all`` those of every method."""

import sys

from tests.golden.cases import CASES
from tests.golden.summaries import write, written

chosen = list(CASES) if sys.argv[1:] == ["--all"] else sys.argv[1:]
unknown = [name for name in chosen if name not in CASES]
if unknown or not chosen:
    sys.exit(f"python -m tests.golden: expected names of methods or --all, got {' '.join(unknown) or 'nothing'}")
for name in chosen:
    write(name)
    print(written(name))
