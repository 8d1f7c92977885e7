"""The command line, and the pytest plugin: they call the other rooms, and nothing calls them.

May import: `errors`, `files`, `language`, `laws`, `compiler`, `runtime`, `backends`, `pipeline`, `printing`,
`rollouts`, `plotting`, `bench`.
"""
