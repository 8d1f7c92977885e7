"""Hierarchies and reports for people: text, Python, mermaid, LaTeX, the formats of reports, the table of laws.

May import: `escaping`, `errors`, `files`, `language`, `configs`, `laws`, `auditing`.
"""
