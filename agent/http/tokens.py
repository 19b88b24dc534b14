"""`POST /tokenize` and `POST /detokenize`."""

from fastapi import APIRouter, Request
from starlette.responses import Response

from pagelet.agent.http.body import parse_body
from pagelet.agent.http.conversation import renamed
from pagelet.agent.http.server import Server, server_of
from pagelet.protocol.errors import InvalidRequest
from pagelet.protocol.openai.tokenize import (
    DetokenizeRequest,
    DetokenizeResponse,
    TokenizeRequest,
    TokenizeResponse,
)

router = APIRouter()


@router.post("/tokenize")
async def tokenize(request: Request) -> Response:
    """Token ids of a text, or of a conversation by the model's chat template."""
    server = server_of(request)
    body = await parse_body(request, TokenizeRequest, server.settings.max_body_bytes)
    if body.model is not None:
        server.check_model(body.model)
    tokens = await _token_ids(server, body)
    texts = None
    if body.return_token_strs:
        texts = [server.llm.tokenizer.token_text(token_id)[0] for token_id in tokens]
    answer = TokenizeResponse(
        count=len(tokens),
        max_model_len=server.llm.max_model_len,
        tokens=tokens,
        token_strs=texts,
    )
    return Response(answer.model_dump_json(), media_type="application/json")


async def _token_ids(server: Server, body: TokenizeRequest) -> list[int]:
    if body.messages is not None:
        messages = [message.for_template() for message in body.messages]
        try:
            return await server.llm.render_chat(
                messages,
                add_special_tokens=body.add_special_tokens is True,
                **body.template_options(),
            )
        except InvalidRequest as error:
            raise renamed(error, {"prompt": "messages"}) from error
    assert body.prompt is not None
    return await server.llm.encode(body.prompt, body.add_special_tokens is not False)


@router.post("/detokenize")
async def detokenize(request: Request) -> Response:
    """The text of token ids, special tokens included."""
    server = server_of(request)
    body = await parse_body(request, DetokenizeRequest, server.settings.max_body_bytes)
    if body.model is not None:
        server.check_model(body.model)
    server.llm.prompts.check_token_ids("tokens", body.tokens)
    text = await server.llm.decode(body.tokens, skip_special_tokens=False)
    return Response(
        DetokenizeResponse(prompt=text).model_dump_json(), media_type="application/json"
    )
