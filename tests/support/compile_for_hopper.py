"""Compiles a kernel for a device that need not be there: a program for test_layer_kernels_compile.

Apart from pytest, for there kernels are interpreted, and what is interpreted cannot be compiled.
"""

import importlib
import json
import sys

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

HOPPER = GPUTarget("cuda", 90, 32)


def compile_kernel(
    module: str, kernel: str, types: dict[str, str], constants: dict[str, object]
) -> int:
    """Bytes of machine code; `types` of all arguments that are not constants."""
    function = getattr(importlib.import_module(module), kernel)
    signature = {name: types.get(name, "constexpr") for name in function.arg_names}
    source = ASTSource(fn=function, signature=signature, constexprs=constants)
    return len(triton.compile(source, target=HOPPER, options={"num_warps": 4}).asm["cubin"])


if __name__ == "__main__":
    print(compile_kernel(**json.loads(sys.argv[1])))  # noqa: T201
