"""Checks the names of groups, consumers, topics and sessions.

Kafka's own rule for topics (letters, digits, `.`, `_`, `-`, up to 249), opened to any printable text for the other
names because they are percent-encoded where it matters. Refused: nothing at all, control and format characters, blanks
around a name, `.` and `..` (they mean a folder to too many tools), and more bytes than a key should have.

Not refused: names that look alike in different scripts. Teams write in their own, names are compared by their exact
characters, and no rule tells a homograph from a word.
"""

from __future__ import annotations

import hashlib
import re

from assigner.errors import InvalidName

MAX_NAME_BYTES = 249
_TOPIC = re.compile(r"[A-Za-z0-9._-]+")


def check_name(kind: str, name: str) -> str:
    if not name:
        raise InvalidName(f"{kind} is empty; give it a name of 1 to {MAX_NAME_BYTES} bytes")
    if len(name) > MAX_NAME_BYTES or len(name.encode("utf-8", "surrogatepass")) > MAX_NAME_BYTES:
        raise InvalidName(f"{kind} {name[:20]!r}... is longer than {MAX_NAME_BYTES} bytes; shorten it")
    if not name.isprintable():
        raise InvalidName(f"{kind} {name!r} holds a character that can't be printed; use printable text only")
    if name != name.strip():
        raise InvalidName(f"{kind} {name!r} begins or ends with a blank; a reader would not see it: leave it out")
    if name in (".", ".."):
        raise InvalidName(f"{kind} {name!r} is reserved; choose another name")
    return name


def session_digest(session: str) -> str:
    """Compute a digest that identifies a session in logs, replies and errors, and can't be used as a session.

    It is the same on every instance and in every version, so that log lines of different places can be joined."""
    return hashlib.blake2b(session.encode("utf-8", "surrogatepass"), digest_size=6).hexdigest() if session else ""


def check_topic(name: str) -> str:
    check_name("topic", name)
    if not _TOPIC.fullmatch(name):
        raise InvalidName(f"topic {name!r} is not a Kafka topic name; letters, digits, '.', '_' and '-' only")
    return name


def qualified_group(org: str, group: str) -> str:
    """The group that an organization's Kafka group is: of the default organization, which has no name, the one of the
    same name, and of any other `org/group`. So the pattern `org/*` stands for all groups of an organization."""
    return f"{org}/{group}" if org else group


def org_and_group(group: str) -> tuple[str, str]:
    """The organization and the Kafka group that a group is. No organization's name holds a slash."""
    org, slash, name = group.partition("/")
    return (org, name) if slash and org and name else ("", group)
