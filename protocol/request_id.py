"""The id of a request: made by a client, or by the first of our servers that sees it."""

import re
import uuid


def clean_request_id(given: str | None) -> str:
    """A client's id without what could break a header or a log, at most 128 characters; a new one
    if nothing is left."""
    return re.sub(r"[^A-Za-z0-9._:-]", "", given or "")[:128] or uuid.uuid4().hex
