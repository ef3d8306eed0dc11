"""server.app: importing it is cheap."""

import subprocess
import sys


def test_importing_the_app_loads_neither_torch_nor_transformers() -> None:
    code = "import sys, server.app; print(*{'torch', 'transformers'} & set(sys.modules))"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == ""
