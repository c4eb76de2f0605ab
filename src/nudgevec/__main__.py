"""``python -m nudgevec`` is the ``nudgevec`` command."""

import sys

from nudgevec.cli import main

sys.exit(main())
