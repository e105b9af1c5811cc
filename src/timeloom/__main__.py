"""`python -m timeloom` is the command `timeloom`."""

from timeloom.cli import main

if __name__ == "__main__":
    main()
