"""Prints how often a compiled forward pass recompiles over many lengths, as JSON.

Also prints the largest difference from the plain pass. Runs in a separate process without the
shape checks of the tests, which cannot be compiled.
"""

import json
import sys
from functools import partial
from typing import Any

import torch

from dspark.training.model.blocks import MicroBatch, draw_anchors
from dspark.training.model.compiling import compile_for_any_length, compile_forward
from dspark.training.model.forward import forward_blocks
from tests.support.draft.tiny import CONFIG
from tests.support.training.sequences import examples_of, tiny_network

LENGTHS = (
    (25, 5),
    (40, 9),
    (57, 12),
    (60, 7),
    (22, 2),
)


def batch_of(length: int, num_anchors: int) -> MicroBatch:
    examples = [examples_of(CONFIG, 2, length=length).example(i) for i in range(2)]
    generator = torch.Generator().manual_seed(1)
    anchors = [draw_anchors(e.is_answer, count=num_anchors, generator=generator) for e in examples]
    return MicroBatch.of(examples, anchors, block_size=CONFIG.block_size)


def main() -> None:
    torch.set_num_threads(1)
    num_compiled = 0

    def counting(graph: Any, inputs: Any) -> Any:
        nonlocal num_compiled
        num_compiled += 1
        return graph.forward

    network = tiny_network(CONFIG)
    compiler = partial(compile_for_any_length, backend=counting)
    forward = compile_forward(network, batch_of(18, 4), autocast=False, compiler=compiler)
    difference = 0.0
    for length, num_anchors in LENGTHS:
        batch = batch_of(length, num_anchors)
        found, expected = forward(network, batch), forward_blocks(network, batch)
        difference = max(difference, float((found.logits - expected.logits).abs().max()))
    found = {
        "is_compiled": forward is not forward_blocks,
        "num_compiled": num_compiled,
        "difference": difference,
    }
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    main()
