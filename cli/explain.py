"""`pagelet explain`: how a router treated a request."""

import http.client
import urllib.error
import urllib.parse
import urllib.request
from typing import Annotated

import msgspec
import typer

from pagelet.cli.api_key import checked_key
from pagelet.cli.no_redirects import open_directly
from pagelet.process.output import output_console
from pagelet.protocol.openai.errors import ErrorResponse
from pagelet.router.explain_view import explain as render
from pagelet.router.record import RequestRecord

app = typer.Typer(rich_markup_mode=None, add_completion=False)

_TIMEOUT = 10.0


@app.command()
def explain(
    request_id: Annotated[
        str,
        typer.Argument(
            metavar="REQUEST_ID", help="As in the header X-Request-Id of the answer, and in logs."
        ),
    ],
    router: Annotated[
        str,
        typer.Option(
            metavar="URL", help="Where the router answers; that of `pagelet up` is at port 8000."
        ),
    ] = "http://127.0.0.1:8080",
    api_key: Annotated[
        str | None,
        typer.Option(
            envvar="PAGELET_API_KEY",
            callback=checked_key,
            help="A key of the request's tenant, or of one that is an admin.",
            show_default=False,
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="All that is known, as JSON.")] = False,
) -> None:
    """Show every replica that a request could have gone to, why one was chosen, what was predicted
    and what happened."""
    router = router.rstrip("/").removesuffix("/v1")
    if "://" not in router:
        router = f"http://{router}"
    data = _fetch(router, request_id, api_key)
    try:
        record = msgspec.json.decode(data, type=RequestRecord)
    except ValueError as error:  # msgspec's errors are some
        raise _failure(
            f"what answers at {router} is no router of this version ({error}); say where one is "
            "with --router URL"
        ) from None
    if as_json:
        typer.echo(msgspec.json.format(data, indent=2))
        return
    console = output_console()
    for part in render(record):
        console.print(part)


def _fetch(router: str, request_id: str, api_key: str | None) -> bytes:
    url = f"{router}/v1/explain/{urllib.parse.quote(request_id)}"
    headers = {} if api_key is None else {"Authorization": f"Bearer {api_key}"}
    try:
        request = urllib.request.Request(url, headers=headers)
        with open_directly(request, _TIMEOUT) as response:
            return response.read()
    except urllib.error.HTTPError as error:
        message = _message(error) or str(error)
        if 300 <= error.code < 400:
            elsewhere = " ".join(str(error.headers.get("Location")).split())
            message = (
                f"{router} sends to {elsewhere}, which is not followed with a key; say where the "
                "router is with --router URL"
            )
    except (OSError, ValueError, http.client.HTTPException) as error:
        cause = error.reason if isinstance(error, urllib.error.URLError) else error
        why = " ".join(str(cause).split())  # it may be what somebody else wrote
        message = f"no router answers at {router} ({why}); say where with --router URL"
    raise _failure(message)


def _failure(message: str) -> typer.Exit:
    typer.echo(f"Error: {message}", err=True)
    return typer.Exit(1)


def _message(answer: urllib.error.HTTPError) -> str | None:
    try:
        return msgspec.json.decode(answer.read(), type=ErrorResponse).error.message
    except (OSError, ValueError, http.client.HTTPException):
        return None
