"""The command line and the pytest plugin. They import the other packages; no package imports them.

May import: `escaping`, `errors`, `files`, `cache`, `language`, `configs`, `laws`, `compiler`, `runtime`,
`backends`, `pipeline`, `auditing`, `printing`, `rollouts`, `plotting`, `bench`.
"""
