"""A fake engine whose chat template is that of a model that thinks and calls tools."""

from types import SimpleNamespace

from .fake_llm import CharTokenizer, FakeLLM

CALL = '<tool_call>\n{"name": "look_up", "arguments": {"word": "a b"}}\n</tool_call>'
ANSWER = f"<think>\nLet me see.\n</think>\n\nI look it up.\n{CALL}"
LOOK_UP = {
    "type": "object",
    "properties": {"word": {"type": "string"}},
    "required": ["word"],
}


class NamingTokenizer(CharTokenizer):
    def token_id(self, text):
        return None


class ThinkingLLM(FakeLLM):
    def __init__(self, observer=None):
        super().__init__(observer)
        self.tokenizer = NamingTokenizer()
        self.prompts.tokenizer = self.tokenizer
        source = "<think></think><tool_call>{{ tools }}</tool_call>"
        self.prompts.chat_template = SimpleNamespace(source=source)
        self.behaviour.text = ANSWER
        self.rendered = []

    async def render_chat(self, messages, *, add_special_tokens, **options):
        self.rendered.append((messages, options))
        return await super().render_chat(messages, add_special_tokens=add_special_tokens, **options)


async def make_thinking_llm(metrics):
    """For `serving`."""
    return ThinkingLLM(metrics)
