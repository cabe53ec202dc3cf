"""`python -m cellium_fast`: the same as the command `cellium-fast`."""

from cellium_fast.cli import main

main()
