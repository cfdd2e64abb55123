"""Run the command line: ``python -m evalmon``."""

from evalmon.cli import main

main()
