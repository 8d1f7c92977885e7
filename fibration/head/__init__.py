"""The loss from hidden states and the head's weight, without the logits of the whole batch.

`call.py` has the public function and its autograd function; `stream.py` goes over the batch chunk by chunk.
`parts.py` cuts the batch, `logits.py` computes log-probs and the gradient of logits, `products.py` multiplies, and
`checks.py` refuses bad inputs.

May import: `errors`, `runtime`.
"""

from fibration.head.call import HeadLoss, loss

__all__ = ["HeadLoss", "loss"]
