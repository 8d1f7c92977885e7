"""`fibration bench`: this machine's backends beside hand-written losses and the memory's own speed, in one run.

May import: `errors`, `files`, `language`, `laws`, `compiler`, `runtime`, `backends`, `pipeline`, `printing`,
`rollouts`, `plotting`.
"""
