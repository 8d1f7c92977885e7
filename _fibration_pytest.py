"""The pytest plugin's options, outside the package: pytest imports every plugin that is installed.

`fibration.cli.pytest_plugin` and `fibration.cli.pytest_audits` do the work. They load once specs or functions are
named, so that nobody else waits for them.
"""

from __future__ import annotations

from importlib import import_module

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("fibration", "hierarchies of importance-ratio gates")
    group.addoption(
        "--fibration",
        action="append",
        default=[],
        metavar="SPEC|DIR",
        help="Verify the laws of these hierarchies: a file, file.py:NAME, a folder, a shipped name. May be repeated.",
    )
    seconds = "Seconds for the laws of a hierarchy, or for an audit; inf for no limit."
    group.addoption("--fibration-timeout", metavar="S", help=seconds)
    parser.addini(
        "fibration_specs",
        "Specs and folders whose hierarchies are tests; relative to this file.",
        type="args",
    )
    parser.addini(
        "fibration_audits",
        'Loss functions whose audits are tests, each with the loss that it should be: {"my_loss.py:loss": "grpo"}.',
        type="string",
    )
    parser.addini("fibration_timeout", seconds)


def pytest_configure(config: pytest.Config) -> None:
    asked, listed = config.getoption("--fibration"), config.getini("fibration_specs")
    if asked or listed:
        specs = import_module("fibration.cli.pytest_plugin").Specs
        config.pluginmanager.register(specs(config, asked, listed), "fibration-specs")
    audits = config.getini("fibration_audits")
    if audits:
        audited = import_module("fibration.cli.pytest_audits").Audits
        config.pluginmanager.register(audited(config, audits), "fibration-audits")
