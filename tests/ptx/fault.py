"""What no correct kernel does."""


class Fault(Exception):
    """A kernel did what a GPU punishes, or answers with anything at all; or what nobody has taught the emulator."""
