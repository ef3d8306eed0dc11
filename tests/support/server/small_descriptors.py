"""Serves a scripted engine with 160 file descriptors; writes its address."""

import resource
import sys

from tests.support.server.fakes import FakeEngine, app_with, served


def main() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (160, hard))
    with served(app_with(FakeEngine("hello"), log_requests=False)) as address:
        sys.stdout.write(f"{address}\n")
        sys.stdout.flush()
        sys.stdin.read()


if __name__ == "__main__":
    main()
