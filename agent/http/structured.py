"""What an answer must match, from the several fields that a request may say it in."""

from pagelet.engine.structured.requested import RequestedGrammar, of_structured_outputs
from pagelet.protocol.errors import InvalidRequest
from pagelet.protocol.openai.generation import GenerationRequest
from pagelet.protocol.openai.structured import ResponseFormat


def requested_grammar(body: GenerationRequest) -> RequestedGrammar | None:
    """None if any text will do. Raises `InvalidRequest` if several fields say what must match."""
    found = []
    if body.response_format is not None and body.response_format.type != "text":
        found.append(_of_response_format(body.response_format))
    if body.structured_outputs is not None:
        found.append(of_structured_outputs(body.structured_outputs, "structured_outputs"))
    if body.guided_json is not None:
        found.append(RequestedGrammar(param="guided_json", json=body.guided_json))
    if body.guided_regex is not None:
        found.append(RequestedGrammar(param="guided_regex", regex=body.guided_regex))
    if body.guided_choice is not None:
        found.append(RequestedGrammar(param="guided_choice", choice=body.guided_choice))
    if body.guided_grammar is not None:
        found.append(RequestedGrammar(param="guided_grammar", grammar=body.guided_grammar))
    if len(found) > 1:
        raise InvalidRequest(
            f"'{found[0].param}' and '{found[1].param}' both say what the answer must match; give "
            "only one",
            found[1].param,
        )
    return found[0] if found else None


def _of_response_format(wanted: ResponseFormat) -> RequestedGrammar:
    param = "response_format"
    if wanted.type == "structural_tag":
        tag = wanted.model_dump(exclude_none=True)
        return RequestedGrammar(param=param, structural_tag=tag)
    if wanted.json_schema is None or wanted.json_schema.schema_ is None:
        return RequestedGrammar(param=param, json_object=True)
    return RequestedGrammar(param=param, json=wanted.json_schema.schema_)
