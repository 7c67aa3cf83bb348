"""`python -m toolyard`, the same as the command `toolyard`."""

import sys

from toolyard.cli import main

sys.exit(main())
