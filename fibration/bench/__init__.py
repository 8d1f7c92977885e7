"""`fibration bench`: times this machine's backends, hand-written losses and plain memory copies in one run.

May import: `errors`, `files`, `language`, `configs`, `laws`, `compiler`, `runtime`, `backends`, `pipeline`, `printing`,
`rollouts`, `plotting`.
"""
