"""The whole service: what it takes to import it."""

import subprocess
import sys


def test_importing_the_service_loads_neither_torch_nor_transformers() -> None:
    code = "import sys, server.app; print(*{'torch', 'transformers'} & set(sys.modules))"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == ""
