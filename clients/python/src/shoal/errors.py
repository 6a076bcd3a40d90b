"""What can go wrong, sorted by what the caller can do about it.

A write that fails with anything but :class:`UnknownOutcomeError` had no effect.
"""

from __future__ import annotations

import enum


class Rule(enum.Enum):
    """Which condition of a write did not hold, by the name of the argument that set it."""

    IF_MISSING = "if_missing"
    IF_EXISTS = "if_exists"
    IF_VERSION_AT = "if_version_at"
    IF_VERSION_ABOVE = "if_version_above"


class ShoalError(Exception):
    """Any failure of a call. `str()` of it is for people."""


class ConditionFailedError(ShoalError):
    """A condition of the write does not hold; nothing was done."""

    def __init__(self, rule: Rule | None, current_version: int | None) -> None:
        """The rule that rejected, where the server said so; the version now, `None` where there is no object."""
        what = "a condition" if rule is None else rule.value
        now = "does not exist" if current_version is None else f"has version {current_version}"
        super().__init__(f"{what} does not hold: the object {now}")
        self.rule = rule
        self.current_version = current_version

    def __reduce__(self) -> tuple[type[ConditionFailedError], tuple[Rule | None, int | None]]:
        """For pickle, as between processes."""
        return type(self), (self.rule, self.current_version)


class NotFoundError(ShoalError):
    """There is no such object. Only :meth:`~shoal.Client.get_stream` raises it: other reads answer `None`."""


class InvalidError(ShoalError):
    """The request, or an option of the client, is wrong."""


class FullError(ShoalError):
    """The device is full. Deletes still work."""


class BusyError(ShoalError):
    """Too much is going on, also after several attempts; try again later."""


class CorruptError(ShoalError):
    """Stored bytes of this object are damaged."""


class DeviceError(ShoalError):
    """The server's device failed to read."""


class UnknownOutcomeError(ShoalError):
    """The write may or may not have been applied: read the object to find out."""


class ReadOnlyError(ShoalError):
    """An earlier failure of the device made the store read-only."""


class ChangedError(ShoalError):
    """The object changed while it was read in pieces, or is not of the version that was asked for."""

    def __init__(self, message: str, current_version: int | None = None) -> None:
        """The version now, where it is known."""
        super().__init__(message)
        self.current_version = current_version

    def __reduce__(self) -> tuple[type[ChangedError], tuple[str, int | None]]:
        """For pickle, as between processes."""
        return type(self), (str(self), self.current_version)


class DeniedError(ShoalError):
    """The caller may not do this: no token, a wrong one, or not allowed from there."""


class UnavailableError(ShoalError):
    """No server answers, or it is shutting down."""


class TimedOutError(UnavailableError):
    """The server was silent for too long, or the call's own `timeout` is over."""


class ProtocolError(ShoalError):
    """The server answered what this client does not understand; are both of the same version?"""


class SourceError(ShoalError):
    """The caller's source of a value failed (its exception is the cause); nothing was stored."""
