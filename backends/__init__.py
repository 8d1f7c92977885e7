"""One folder per target. Each turns a plan into standalone, readable source, and calls it. No front end here.

May import: `errors`, `files`, `cache`, `compiler`, `runtime`.
"""

if __name__ == "backends":
    raise ImportError("import fibration.backends, not backends: the folder is linked into the package")
