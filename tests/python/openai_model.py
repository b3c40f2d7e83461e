"""A model with OpenAI's API for tests: `openai_model.py PORT [NAME]` (port 0: any). Prints `listening on PORT`, then a line for
each request: method and path.

It repeats what it is asked: a chat is answered with the text of its last message, word by word in a stream; when there are tools,
with a call of the first one. Members of requests that tests look at come back as `echo`, the request's headers as well. The
message `fail` is answered 400 in OpenAI's shape, `break` with a stream that breaks off.
"""

import json
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

NAME = sys.argv[2] if len(sys.argv) > 2 else "echo"


def text_of(content):
    """Of a message, which may consist of parts."""
    if isinstance(content, list):
        return " ".join(part.get("text", f"[{part['type']}]") for part in content)
    return content or ""


def usage(prompt, completion):
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


class Model(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, format, *arguments):
        print(self.command, self.path, flush=True)

    def do_GET(self):
        if self.path == "/v1/models":
            return self.answer({"object": "list", "data": [{"id": NAME, "object": "model", "created": 1, "owned_by": "tests"}]})
        if self.path == "/health":
            return self.answer({})
        self.error(404, f"no {self.path}")

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        routes = {
            "/v1/chat/completions": self.chat,
            "/v1/completions": self.completion,
            "/v1/embeddings": self.embeddings,
            "/v1/responses": self.response,
        }
        if body.get("model") != NAME:
            return self.error(404, f"no model {body.get('model')}")
        route = routes.get(self.path)
        return route(body) if route else self.error(404, f"no {self.path}")

    def answer(self, value, status=200):
        data = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def error(self, status, message):
        self.answer({"error": {"message": message, "type": "invalid_request_error", "param": None, "code": None}}, status)

    def chunk(self, data):
        """A piece of a body without a length."""
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.wfile.flush()

    def event(self, value):
        text = value if isinstance(value, str) else json.dumps(value)
        self.chunk(f"data: {text}\n\n".encode())

    def begin_stream(self):
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream; charset=utf-8")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()

    def chat(self, body):
        messages = body["messages"]
        said = text_of(messages[-1].get("content"))
        if said == "fail":
            return self.error(400, "told to fail")
        if body.get("stream"):
            return self.stream(body, said)
        prompt = sum(len(text_of(message.get("content")).split()) for message in messages)
        message, reason = {"role": "assistant", "content": said}, "stop"
        if body.get("tools"):
            name = body["tools"][0]["function"]["name"]
            call = {"id": "call-1", "type": "function", "function": {"name": name, "arguments": json.dumps({"said": said})}}
            message, reason = {"role": "assistant", "content": None, "tool_calls": [call]}, "tool_calls"
        self.answer({
            "id": "chatcmpl-1",
            "object": "chat.completion",
            "created": int(time.time()),
            "model": NAME,
            "choices": [{"index": 0, "message": message, "logprobs": None, "finish_reason": reason}],
            "usage": usage(prompt, len(said.split())),
            "echo": {name: value for name, value in body.items() if name != "messages"},
            "headers": {name.lower(): value for name, value in self.headers.items()},
        })

    def stream(self, body, said):
        self.begin_stream()
        base = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": int(time.time()), "model": NAME}

        def choice(delta, reason=None):
            return {**base, "choices": [{"index": 0, "delta": delta, "finish_reason": reason}]}

        self.event(choice({"role": "assistant", "content": ""}))
        words = said.split()
        for number, word in enumerate(words):
            self.event(choice({"content": word if number == 0 else f" {word}"}))
            # A client that gets words as they are made can tell from their times.
            time.sleep(0.05)
            if said == "break":
                self.close_connection = True
                return
        self.event(choice({}, "stop"))
        if (body.get("stream_options") or {}).get("include_usage"):
            self.event({**base, "choices": [], "usage": usage(len(words), len(words))})
        self.event("[DONE]")
        self.chunk(b"")

    def completion(self, body):
        text = body["prompt"]
        choices = [{"index": 0, "text": text, "logprobs": None, "finish_reason": "length"}]
        count = len(text.split())
        self.answer({"id": "cmpl-1", "object": "text_completion", "created": 1, "model": NAME, "choices": choices, "usage": usage(count, count)})

    def embeddings(self, body):
        texts = body["input"] if isinstance(body["input"], list) else [body["input"]]
        data = [{"object": "embedding", "index": index, "embedding": [float(len(text)), 0.5]} for index, text in enumerate(texts)]
        self.answer({"object": "list", "data": data, "model": NAME, "usage": {"prompt_tokens": len(texts), "total_tokens": len(texts)}})

    def response(self, body):
        text = {"type": "output_text", "text": body["input"], "annotations": []}
        output = [{"id": "msg-1", "type": "message", "status": "completed", "role": "assistant", "content": [text]}]
        count = len(body["input"].split())
        self.answer({
            "id": "resp-1",
            "object": "response",
            "created_at": 1,
            "status": "completed",
            "model": NAME,
            "output": output,
            "parallel_tool_calls": True,
            "tool_choice": "auto",
            "tools": [],
            "usage": {"input_tokens": count, "output_tokens": count, "total_tokens": 2 * count},
        })


server = ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Model)
print(f"listening on {server.server_address[1]}", flush=True)
server.serve_forever()
