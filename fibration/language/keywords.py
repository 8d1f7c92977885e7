"""Argument names that trainers use; never names of strata."""

MASKS = ("response_mask", "loss_mask", "completion_mask", "action_mask", "token_mask")
WHOLE_MASKS = ("attention_mask", "padding_mask")  # True on prompts too
OFFSETS = ("cu_seqlens", "cu_seq_lens", "cu_seqlens_q", "cu_seq_lens_q", "starts")
LENGTHS = ("lengths", "seq_lens", "seqlens", "seq_lengths", "sequence_lengths", "response_lengths")
