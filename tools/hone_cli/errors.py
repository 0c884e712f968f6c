"""What the command says when something is wrong: one sentence and an exit code, never a traceback."""

USAGE = 2
"""Bad input: a wrong option, file or id."""
FAILED = 1
"""The work itself failed, or a check found something."""
UNREACHABLE = 3
"""A service is not there."""
INTERRUPTED = 130
"""Ended by Ctrl-C."""

QUIET_GRPC = ("GRPC_VERBOSITY", "NONE")
"""A variable and its value: gRPC's own log of connections would stand between the sentences."""


class CliError(Exception):
    """A sentence for stderr and the exit code that goes with it."""

    def __init__(self, message: str, exit_code: int = FAILED) -> None:
        """Keeps both."""
        super().__init__(message)
        self.exit_code = exit_code


def service_error(error: Exception, service: str, address: str) -> CliError:
    """Turns a typed error of a call into a sentence for people."""
    from servicekit.errors import (
        Cancelled,
        DeadlineExceeded,
        HoneError,
        InvalidArgument,
        NotFound,
        OutOfRange,
        Unavailable,
        Unimplemented,
    )

    assert isinstance(error, HoneError)
    if isinstance(error, Unavailable) and error.reason == Unavailable.code:
        return unreachable(service, address)
    if isinstance(error, DeadlineExceeded):
        message = f"the {service} at {address} did not answer in time; see its log in .hone/logs"
        return CliError(message, UNREACHABLE)
    if isinstance(error, Unimplemented):
        message = f"the {service} at {address} does not know this call; is it an older version?"
        return CliError(message, FAILED)
    text = error.message
    if error.violations:
        text += "".join(
            f"\n  {field}: {what}"
            for field, what in error.violations.items()
            # Most services say them in the message too.
            if f"{field}: {what}" not in error.message and f"{field} {what}" not in error.message
        )
    bad_input = isinstance(error, InvalidArgument | NotFound | OutOfRange | Cancelled)
    return CliError(text, USAGE if bad_input else FAILED)


def unreachable(service: str, address: str) -> CliError:
    """The sentence for a service that does not answer at its address."""
    return CliError(
        f"cannot reach the {service} at {address}; start the suite with `hone up`", UNREACHABLE
    )
