"""For spark-submit: `spark-submit … submit.py archive --lake s3://…` is `holdfast pipeline archive --lake s3://…`.

spark-submit wants a file; this one hands its arguments to the command, which takes the session that is there.
"""

import sys


def main() -> None:
    from holdfast.cli.main import main as holdfast

    sys.argv = ["holdfast", "pipeline", *sys.argv[1:]]
    holdfast()


if __name__ == "__main__":
    main()
