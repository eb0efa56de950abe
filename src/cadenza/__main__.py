"""The program `cadenza`, also as `python -m cadenza`."""

import sys


def main() -> None:
    """Run the command line; Ctrl-C while it is imported ends it without a traceback, too."""
    try:
        from cadenza.cli.main import main as command_line
    except KeyboardInterrupt:
        sys.exit(130)
    command_line()


if __name__ == "__main__":
    main()
