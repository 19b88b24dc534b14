"""What an answer says of its client's limits, under the names of OpenAI's API."""


def format_duration(seconds: float) -> str:
    """`6m0s`, `1.5s`, `120ms`: as OpenAI writes durations, to the millisecond, rounded up."""
    milliseconds = max(0, -int(-seconds * 1000 // 1))
    if milliseconds < 1000:
        return f"{milliseconds}ms"
    minutes, milliseconds = divmod(milliseconds, 60_000)
    hours, minutes = divmod(minutes, 60)
    text = f"{milliseconds / 1000:.3f}".rstrip("0").rstrip(".") + "s"
    if hours or minutes:
        text = f"{minutes}m{text}"
    return f"{hours}h{text}" if hours else text


def rate_limit_headers(
    what: str, limit: int, remaining: float, reset_after: float
) -> list[tuple[str, str]]:
    """Headers for a limit a minute on `what`, "requests" or "tokens".

    `reset_after` is the time in seconds until the whole limit is there again.
    """
    values = (str(limit), str(max(0, int(remaining))), format_duration(reset_after))
    return list(zip(rate_limit_names(what), values, strict=True))


def rate_limit_names(what: str) -> list[str]:
    """The headers' names."""
    return [f"x-ratelimit-{value}-{what}" for value in ("limit", "remaining", "reset")]
