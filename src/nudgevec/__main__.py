"""``python -m nudgevec`` is the ``nudgevec`` command."""

import sys


def main() -> int:
    """Run the command. Nothing is imported before it can be interrupted."""
    try:
        from nudgevec.cli import main as run

        return run()
    except KeyboardInterrupt:
        print("nudgevec: interrupted", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
