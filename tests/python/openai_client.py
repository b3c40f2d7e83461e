"""The official Python client of OpenAI against a model of `openai_model.py`, or what is in front of it:
`openai_client.py BASE_URL TOKEN MODEL [direct]` (direct: nothing is in front). Prints `ok` when all of it was as it should be.
"""

import sys
import time

import openai

base_url, token, model = sys.argv[1:4]
is_direct = sys.argv[4:] == ["direct"]
client = openai.OpenAI(base_url=base_url, api_key=token, max_retries=0, timeout=30)


def user(content):
    return [{"role": "user", "content": content}]


def chat():
    answer = client.chat.completions.create(model=model, messages=user("one two three"), temperature=0.5, extra_body={"of_tests": [1]})
    assert answer.choices[0].message.content == "one two three", answer
    assert answer.usage.completion_tokens == 3, answer.usage
    echo = answer.model_extra["echo"]
    assert (echo["temperature"], echo["of_tests"]) == (0.5, [1]), echo
    assert is_direct or "authorization" not in answer.model_extra["headers"], answer.model_extra


def stream():
    chunks, times = [], []
    asked = client.chat.completions.create(
        model=model, messages=user("one two three four"), stream=True, stream_options={"include_usage": True}
    )
    for chunk in asked:
        chunks.append(chunk)
        times.append(time.monotonic())
    words = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
    assert "".join(words) == "one two three four", words
    assert chunks[-1].usage.total_tokens == 8, chunks[-1]
    # Four words with 50 ms after each: all at once would be a stream that something held back.
    assert times[-1] - times[0] > 0.15, times


def tools():
    function = {"name": "look_up", "parameters": {"type": "object", "properties": {"said": {"type": "string"}}}}
    answer = client.chat.completions.create(
        model=model, messages=user("weather"), tools=[{"type": "function", "function": function}], tool_choice="auto"
    )
    (call,) = answer.choices[0].message.tool_calls
    assert (call.function.name, call.function.arguments) == ("look_up", '{"said": "weather"}'), call
    assert answer.choices[0].finish_reason == "tool_calls"


def parts():
    content = [{"type": "text", "text": "see"}, {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}]
    answer = client.chat.completions.create(model=model, messages=user(content))
    assert answer.choices[0].message.content == "see [image_url]", answer


def other_endpoints():
    assert client.completions.create(model=model, prompt="a b").choices[0].text == "a b"
    vectors = client.embeddings.create(model=model, input=["a", "bcd"], encoding_format="float")
    assert [vector.embedding[0] for vector in vectors.data] == [1.0, 3.0], vectors
    assert client.responses.create(model=model, input="a b").output_text == "a b"


def listed():
    assert model in [listed.id for listed in client.models.list()]


def raises(kind, text, ask):
    try:
        ask()
    except kind as error:
        # The client puts `error.message` into the text; what has only `detail` is in the body.
        assert text in f"{error} {getattr(error, 'body', '')}", error
        return error
    raise AssertionError(f"not refused: {text}")


def errors():
    unknown = lambda: client.chat.completions.create(model="nope", messages=user("hi"))
    raises(openai.NotFoundError, "nope", unknown)
    failing = lambda: client.chat.completions.create(model=model, messages=user("fail"))
    error = raises(openai.BadRequestError, "told to fail", failing)
    assert error.type == "invalid_request_error", error.type
    breaking = lambda: list(client.chat.completions.create(model=model, messages=user("break"), stream=True))
    raises(Exception if is_direct else openai.APIError, "", breaking)


for part in (listed, chat, stream, tools, parts, other_endpoints, errors):
    part()
print("ok")
