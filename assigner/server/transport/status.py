"""Translates errors to gRPC statuses; no other module does.

The message of an `AssignerError` is written for the caller and is sent. Any other exception is a defect: the caller
gets an id, and the log gets the details under that id.
"""

from __future__ import annotations

import secrets

from grpclib.const import Status
from grpclib.exceptions import GRPCError

from assigner import errors
from assigner.logs import get_logger

ERROR_KEY = "assigner-error"
"""Trailing metadata: the error's class, for clients that must distinguish errors with the same status."""

MAX_TEXT = 512
"""Of a status message. Clients refuse trailers of more than a few KiB, and quoting may triple it."""

STATUSES: dict[type[errors.AssignerError], Status] = {
    errors.AssignerError: Status.INTERNAL,
    errors.InvalidName: Status.INVALID_ARGUMENT,
    errors.InvalidInput: Status.INVALID_ARGUMENT,
    errors.NotRegistered: Status.NOT_FOUND,
    errors.NotTheTarget: Status.NOT_FOUND,
    errors.UnknownTopic: Status.NOT_FOUND,
    errors.SourceUnavailable: Status.UNAVAILABLE,
    errors.UnknownGroup: Status.NOT_FOUND,
    errors.FailedPrecondition: Status.FAILED_PRECONDITION,
    errors.GroupKindMismatch: Status.FAILED_PRECONDITION,
    errors.Unauthenticated: Status.UNAUTHENTICATED,
    errors.PermissionDenied: Status.PERMISSION_DENIED,
    errors.Superseded: Status.ABORTED,
    errors.SessionHeld: Status.ALREADY_EXISTS,
    # Not ABORTED, which ends a client permanently: the session is still registered, maybe by this process only.
    errors.StreamReplaced: Status.UNAVAILABLE,
    errors.Evicted: Status.ABORTED,
    errors.TooSlow: Status.RESOURCE_EXHAUSTED,
    errors.LimitReached: Status.RESOURCE_EXHAUSTED,
    errors.StoreError: Status.UNAVAILABLE,
    errors.StoreUnavailable: Status.UNAVAILABLE,
    # Every call is idempotent, so a retry is right even if the first try took effect.
    errors.OutcomeUnknown: Status.UNAVAILABLE,
    # The caller did nothing wrong: the service's own access to the store was refused.
    errors.StoreRefused: Status.FAILED_PRECONDITION,
    errors.StoreReadOnly: Status.UNAVAILABLE,
    errors.StoreReplaced: Status.UNAVAILABLE,
    errors.TransactionTooLarge: Status.RESOURCE_EXHAUSTED,
    errors.LeaseNotFound: Status.UNAVAILABLE,
    errors.Compacted: Status.UNAVAILABLE,
    errors.WatchEnded: Status.UNAVAILABLE,
    errors.UnreadableRecord: Status.DATA_LOSS,
}

_log = get_logger(__name__)


class CallStatus(GRPCError):
    """A status with the name of the error it came from."""

    def __init__(self, status: Status, message: str, error: str) -> None:
        super().__init__(status, message)
        self.error = error


def status_of(error: Exception, method: str) -> CallStatus:
    """Translate the error to the status that the method's caller gets, and log it if it is a defect."""
    match error:
        case CallStatus():
            return error
        case GRPCError():
            return CallStatus(error.status, short(error.message or ""), "")
        case errors.AssignerError():
            return CallStatus(_status(type(error)), short(str(error)), type(error).__name__)
        case NotImplementedError():
            # What grpclib raises for a compressed message.
            return CallStatus(Status.UNIMPLEMENTED, "compression is not supported; send messages uncompressed", "")
    defect = secrets.token_hex(6)
    _log.error("grpc_call_failed", defect_id=defect, method=method, exc_info=error)
    return CallStatus(Status.INTERNAL, f"internal error {defect}; the service's log tells more under this id", "")


def reason_for(error: Exception, method: str) -> str:
    """The reason of one refusal in a response that lists several."""
    return status_of(error, method).message or ""


def _status(kind: type) -> Status:
    return next(STATUSES[base] for base in kind.__mro__ if base in STATUSES)


def short(text: str) -> str:
    return text if len(text) <= MAX_TEXT else text[: MAX_TEXT - 3] + "..."
