"""Pictures: a recorded batch at every level of its hierarchy, gates as curves, the paper's figures.

May import: `errors`, `files`, `language`, `laws`, `compiler`, `runtime`, `backends`, `pipeline`, `printing`,
`rollouts`.
"""
