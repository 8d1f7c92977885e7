"""The command line, and the pytest plugin: they call the other rooms, and nothing calls them.

May import: `errors`, `owners`, `files`, `cache`, `language`, `laws`, `compiler`, `runtime`, `backends`, `pipeline`,
`printing`, `rollouts`, `plotting`, `bench`.
"""
