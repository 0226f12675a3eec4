"""Run the `holdfast` command as `python -m holdfast`."""

from holdfast.cli.main import main

main()
