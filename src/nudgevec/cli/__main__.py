"""``python -m nudgevec.cli`` is the ``nudgevec`` command."""

import sys

from nudgevec.cli import main

sys.exit(main())
