"""How a command refuses."""


class RefusedError(Exception):
    """A command ends with this text on stderr."""

    def __init__(self, text, code=255):
        super().__init__(text)
        self.text = text
        self.code = code


def not_submitted(reason):
    """As bsub says it."""
    return RefusedError(f"{reason}. Job not submitted.")
