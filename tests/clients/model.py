#!/usr/bin/env python3
"""A model that plays a script and records what clients send it, on loopback.

    model.py SCRIPT RECORD

SCRIPT is a JSON list of calls: [{"tool": "bash", "arguments": {...}}, ...]. A request of a client is answered with the
call that follows the results which it holds, and with `done` once all have been made. Spoken are Anthropic's Messages
(POST /v1/messages), OpenAI's Responses (POST /v1/responses) and Chat Completions (POST /v1/chat/completions), and
Google's Gemini (POST /v1beta/models/NAME:streamGenerateContent), all as streams of events. Each result of a call, as the
client sent it to the model, becomes a line of RECORD. The port is the first line of standard output.
"""
import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

SCRIPT = json.load(open(sys.argv[1]))
RECORD = sys.argv[2]
SEEN = set()


def record(identity, shown):
    """Writes down what the model was shown of a call's result, once."""
    if identity in SEEN:
        return
    SEEN.add(identity)
    with open(RECORD, "a") as file:
        file.write(json.dumps({"call": identity, "shown": shown}) + "\n")


def tool_name(offered, wanted):
    """Returns the name under which a client offers a tool of the server: a client may have one of that name itself."""
    ours = [name for name in offered if "cofferdam" in name and name.endswith("_" + wanted)]
    others = [name for name in offered if name == wanted]
    return next(iter(ours + others), None)


class Model(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_GET(self):
        self.answer(200, "application/json", json.dumps({"data": [], "models": []}).encode())

    def do_HEAD(self):
        self.answer(200, "application/json", b"")

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        path = self.path.split("?")[0]
        if path.endswith("/messages"):
            self.speak_messages(json.loads(body))
        elif path.endswith("/responses"):
            self.speak_responses(json.loads(body))
        elif path.endswith("/chat/completions"):
            self.speak_chat(json.loads(body))
        elif ":" in path.rsplit("/", 1)[-1]:
            self.speak_gemini(json.loads(body), path.rsplit(":", 1)[-1])
        elif path.endswith("/count_tokens"):
            self.answer(200, "application/json", b'{"input_tokens": 1}')
        else:
            self.answer(404, "application/json", b"{}")

    def answer(self, code, kind, body):
        self.send_response(code)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def send_events(self, events):
        text = "".join(f"event: {one['type']}\ndata: {json.dumps(one)}\n\n" for one in events)
        self.answer(200, "text/event-stream", text.encode())

    def speak_messages(self, asked):
        results = 0
        for message in asked.get("messages", []):
            if not isinstance(message["content"], list):
                continue
            for part in message["content"]:
                if part["type"] == "tool_result" and part["tool_use_id"].startswith("toolu_script"):
                    results += 1
                    record(part["tool_use_id"], part.get("content"))
        offered = [tool["name"] for tool in asked.get("tools", [])]
        call = SCRIPT[results] if results < len(SCRIPT) else None
        name = call and tool_name(offered, call["tool"])
        if name:
            block = {"type": "tool_use", "id": f"toolu_script{results}", "name": name, "input": {}}
            delta = {"type": "input_json_delta", "partial_json": json.dumps(call["arguments"])}
            stop = "tool_use"
        else:
            block, stop = {"type": "text", "text": ""}, "end_turn"
            delta = {"type": "text_delta", "text": "done"}
        usage = {"input_tokens": 1, "output_tokens": 1}
        message = {"id": "msg_1", "type": "message", "role": "assistant", "model": asked["model"],
                   "content": [], "stop_reason": None, "stop_sequence": None, "usage": usage}
        if not asked.get("stream"):
            block.update({"input": call["arguments"]} if name else {"text": "done"})
            message.update(content=[block], stop_reason=stop)
            return self.answer(200, "application/json", json.dumps(message).encode())
        self.send_events([
            {"type": "message_start", "message": message},
            {"type": "content_block_start", "index": 0, "content_block": block},
            {"type": "content_block_delta", "index": 0, "delta": delta},
            {"type": "content_block_stop", "index": 0},
            {"type": "message_delta", "delta": {"stop_reason": stop, "stop_sequence": None},
             "usage": {"output_tokens": 1}},
            {"type": "message_stop"},
        ])

    def send_data(self, objects, end=""):
        """Sends events that have data alone."""
        text = "".join(f"data: {json.dumps(one)}\n\n" for one in objects)
        self.answer(200, "text/event-stream", (text + end).encode())

    def speak_chat(self, asked):
        results = 0
        for message in asked.get("messages", []):
            if message["role"] == "tool":
                results += 1
                record(message["tool_call_id"], message.get("content"))
        offered = [tool["function"]["name"] for tool in asked.get("tools", [])]
        call = SCRIPT[results] if results < len(SCRIPT) else None
        name = call and tool_name(offered, call["tool"])
        delta, reason = {"role": "assistant", "content": "done"}, "stop"
        if name:
            function = {"name": name, "arguments": json.dumps(call["arguments"])}
            called = {"index": 0, "id": f"call_script{results}", "type": "function", "function": function}
            delta, reason = {"role": "assistant", "content": None, "tool_calls": [called]}, "tool_calls"
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        whole = {"id": f"chat_{results}", "created": 1, "model": asked["model"]}
        if not asked.get("stream"):
            choice = {"index": 0, "message": delta, "finish_reason": reason}
            answer = dict(whole, object="chat.completion", choices=[choice], usage=usage)
            return self.answer(200, "application/json", json.dumps(answer).encode())
        part = dict(whole, object="chat.completion.chunk")
        self.send_data([
            dict(part, choices=[{"index": 0, "delta": delta, "finish_reason": None}]),
            dict(part, choices=[{"index": 0, "delta": {}, "finish_reason": reason}], usage=usage),
        ], "data: [DONE]\n\n")

    def speak_gemini(self, asked, action):
        results = 0
        for content in asked.get("contents", []):
            for part in content.get("parts", []):
                if "functionResponse" in part:
                    results += 1
                    shown = part["functionResponse"].get("response") or {}
                    record(f"call_script{results - 1}", shown.get("output") or shown.get("error"))
        offered = []
        for tool in asked.get("tools", []):
            offered += [one["name"] for one in tool.get("functionDeclarations", [])]
        call = SCRIPT[results] if results < len(SCRIPT) else None
        name = call and tool_name(offered, call["tool"])
        part = {"functionCall": {"name": name, "args": call["arguments"]}} if name else {"text": "done"}
        candidate = {"content": {"role": "model", "parts": [part]}, "finishReason": "STOP", "index": 0}
        usage = {"promptTokenCount": 1, "candidatesTokenCount": 1, "totalTokenCount": 2}
        answer = {"candidates": [candidate], "usageMetadata": usage, "modelVersion": "none"}
        if action == "streamGenerateContent":
            return self.send_data([answer])
        if action == "countTokens":
            answer = {"totalTokens": 1}
        self.answer(200, "application/json", json.dumps(answer).encode())

    def speak_responses(self, asked):
        results = 0
        for item in asked.get("input", []):
            if isinstance(item, dict) and item.get("type") == "function_call_output":
                results += 1
                record(item["call_id"], item.get("output"))
        # Servers are offered as functions by name, or as a namespace of functions.
        offered = {}
        for tool in asked.get("tools", []):
            for inner in tool.get("tools", []) or [tool]:
                space = tool["name"] if tool.get("tools") else None
                if "name" in inner:
                    offered[inner["name"]] = space
        call = SCRIPT[results] if results < len(SCRIPT) else None
        name = call and tool_name(offered, call["tool"])
        if name:
            item = {"type": "function_call", "id": f"fc_{results}", "call_id": f"call_script{results}",
                    "name": name, "arguments": json.dumps(call["arguments"]), "status": "completed"}
            if offered[name]:
                item["namespace"] = offered[name]
        else:
            item = {"type": "message", "id": "m_1", "role": "assistant", "status": "completed",
                    "content": [{"type": "output_text", "text": "done", "annotations": []}]}
        usage = {"input_tokens": 1, "output_tokens": 1, "total_tokens": 2,
                 "input_tokens_details": {"cached_tokens": 0}, "output_tokens_details": {"reasoning_tokens": 0}}
        answer = {"id": f"resp_{results}", "object": "response", "status": "in_progress", "output": []}
        done = dict(answer, status="completed", output=[item], usage=usage)
        self.send_events([
            {"type": "response.created", "response": answer},
            {"type": "response.output_item.added", "output_index": 0, "item": item},
            {"type": "response.output_item.done", "output_index": 0, "item": item},
            {"type": "response.completed", "response": done},
        ])


server = ThreadingHTTPServer(("127.0.0.1", 0), Model)
print(server.server_address[1], flush=True)
server.serve_forever()
