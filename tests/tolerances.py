"""Every tolerance of the tests, with its reason. Where none is named, equality is exact."""

# fp32 sums in another order: the same network over other batch shapes, or with keys from a cache instead of one pass.
SAME_NETWORK = {"rtol": 1e-4, "atol": 2e-5}
# A loss in fp32 against loops in fp64: softmax over about a hundred logits and a few hundred summands.
LOSS = {"rtol": 2e-5, "atol": 1e-6}
# Chunks change the order of fp32 sums in matrix products of gradients.
CHUNKED = {"rtol": 1e-4, "atol": 1e-6}
# An fp32 angle of a few thousand radians is known to about 2.5e-4; bf16 would be off by whole radians.
ROTARY_ANGLE = {"rtol": 0.0, "atol": 1e-3}
# Two networks written by different people, both in fp32: another order of every sum, through every layer.
OTHER_IMPLEMENTATION = {"rtol": 1e-3, "atol": 1e-4}
# The same gradients, summed in another order.
ACCUMULATED = {"rtol": 1e-4, "atol": 1e-5}
