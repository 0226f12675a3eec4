"""The file for spark-submit: `spark-submit … submit.py archive --lake s3://…` is `holdfast pipeline archive --lake s3://…`.

spark-submit needs a Python file. This one passes its arguments to the command, which uses the active session.
"""

import sys


def main() -> None:
    """Run `holdfast pipeline` with the arguments of this program."""
    from holdfast.cli.main import main as holdfast

    sys.argv = ["holdfast", "pipeline", *sys.argv[1:]]
    holdfast()


if __name__ == "__main__":
    main()
