import json

import pytest

from pagelet.router.conversation import conversation_key

SYSTEM = {"role": "system", "content": "You are helpful. " * 500}
FIRST = {"role": "user", "content": "How do plants make food?"}
TURN = [{"role": "assistant", "content": "With light."}, {"role": "user", "content": "And water?"}]


def key(session=None, **fields):
    return conversation_key(json.dumps(fields).encode(), session)


def test_all_turns_of_a_chat_have_one_key():
    assert key(messages=[SYSTEM, FIRST]) == key(messages=[SYSTEM, FIRST, *TURN], temperature=1)


def test_chats_that_share_a_long_system_prompt_have_keys_of_their_own():
    other = {"role": "user", "content": "How do birds fly?"}
    assert key(messages=[SYSTEM, FIRST]) != key(messages=[SYSTEM, other])


def test_a_session_or_a_user_is_one_conversation():
    assert key("s", messages=[FIRST]) == key("s", messages=TURN) != key("t", messages=[FIRST])
    assert key(user="u", messages=[FIRST]) == key(user="u", messages=TURN)
    assert key("x", prompt="p") != key(user="x", prompt="p") != key(user="y", prompt="p")


def test_a_prompt_that_grows_keeps_its_key():
    text = "x" * 2000
    assert key(prompt=text) == key(prompt=text + "more") != key(prompt="y" + text)
    assert key(input=text) == key(input=text + "more")


@pytest.mark.parametrize(
    "body", [b"", b"[]", b'{"messages": 5}', b'{"messages": [5]}', b"{" * 9999]
)
def test_any_body_has_a_key(body):
    assert conversation_key(body, None) == conversation_key(body, None)
