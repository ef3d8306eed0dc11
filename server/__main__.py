"""`python -m server` is `dspark`."""

from server.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
