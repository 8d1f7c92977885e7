"""The command line, and the pytest plugin: they call the rooms before them, and nothing calls them.

May import: every room.
"""
