"""``python -m liftenvelope``: runs the ``liftenvelope`` command."""

from liftenvelope.cli import main

if __name__ == "__main__":
    main()
