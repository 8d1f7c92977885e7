"""The operator inside other people's trainers, whose own loss it feeds: coefficients as advantages.

A trainer sees one micro-batch at a time, and coefficients belong to all rows of an optimizer step, on all ranks. So a
step's rows are laid one after the other (`window.py`, with labels from `labels.py`), coefficients are computed once,
and the trainer gets them in the place of its advantages, at a ratio of 1. What its loss makes of an advantage, by
accumulation steps, tokens or ranks, is undone beforehand (`advantages.py`, for trainers that have no file here) and
measured in its own backward pass (`scale.py`).

May import: `errors`, `files`, `language`, `laws`, `compiler`, `runtime`, `backends`, `pipeline`.
"""
