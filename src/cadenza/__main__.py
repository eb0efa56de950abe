"""`python -m cadenza`."""

from cadenza.cli.main import main

main()
