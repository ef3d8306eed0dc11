"""The confidence head computes in float32."""

import torch

from draft.network.heads import ConfidenceHead


def test_confidence_logits_are_float32_for_every_dtype_of_hidden_states() -> None:
    head = ConfidenceHead(hidden_size=5, rank=3)
    hidden, previous = torch.randn(2, 4, 5), torch.randn(2, 4, 3)
    expected = torch.cat([hidden, previous], -1) @ head.proj.weight[0] + head.proj.bias
    torch.testing.assert_close(head(hidden, previous), expected)
    for dtype in (torch.float16, torch.bfloat16):
        found = head(hidden.to(dtype), previous.to(dtype))
        assert found.dtype == torch.float32
        torch.testing.assert_close(found, expected, rtol=2e-2, atol=2e-2)
    assert head.to(torch.bfloat16)(hidden, previous).dtype == torch.float32
