"""The operator inside other trainers: their own loss gets coefficients in place of advantages.

A trainer sees one micro-batch at a time; coefficients need all rows of an optimizer step, on all ranks. So the rows of
a step are concatenated (`window.py`, with labels from `intake.py`), and coefficients are computed once. The trainer
gets them as advantages, at a ratio of 1. Its divisions by accumulation steps, tokens or ranks are undone beforehand
(`advantages.py`, for trainers without a file here), and measured in its own backward pass (`scale.py`).

Tinker's client and torchrl call a loss on all rows of a step: `tinker.py` and `torchrl.py` have such losses.

May import: `errors`, `files`, `language`, `configs`, `laws`, `compiler`, `runtime`, `backends`, `pipeline`, `auditing`.
"""
