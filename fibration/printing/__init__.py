"""A hierarchy and what was found of it, for reading: text, mermaid, LaTeX, the formats of reports, the table of laws.

May import: `errors`, `files`, `language`, `laws`.
"""
