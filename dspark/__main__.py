"""`python -m dspark` is `dspark`."""

from dspark.cli.main import main

if __name__ == "__main__":
    raise SystemExit(main())
