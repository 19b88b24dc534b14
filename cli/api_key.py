"""What commands check of an API key."""

import typer

from pagelet.protocol.api_keys import BadKey, check_key


def checked_key(key: str | None) -> str | None:
    """For keys that a command sends. Raises `typer.BadParameter` for one that none can send."""
    if key:
        try:
            check_key(key)
        except BadKey as error:
            raise typer.BadParameter(str(error)) from None
    return key
