"""The exception for behaviour that no correct kernel has."""


class Fault(Exception):
    """A kernel did what a GPU punishes, or answers with anything at all; or what nobody has taught the emulator."""
