"""What each stage of DyGNeX is worth on this machine: see `real.py`, which does the work.

    .venv/bin/python benchmarks/dygnex.py [the options of real.py]
"""

from real import main

if __name__ == "__main__":
    main("dygnex")
