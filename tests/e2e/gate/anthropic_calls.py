# The vendor's package, told by the environment alone where to go; prints one JSON document.
import json, os, sys
import anthropic

client = anthropic.Anthropic(max_retries=0, timeout=30)
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
TOOL = {"name": "read_file", "input_schema": {"type": "object", "properties": {"path": {"type": "string"}}}}

def asked(text, model="claude-tiny", **more):
    return {"model": model, "max_tokens": 100, "messages": [{"role": "user", "content": text}], **more}

def create(text, **more):
    return client.messages.create(**asked(text, **more))

def failure(call):
    try:
        call()
    except anthropic.APIStatusError as error:
        return [type(error).__name__, error.message, error.status_code, error.body, error.response.headers.get("retry-after")]
    return None

def message():
    answer = create("write:3 hello")
    return [answer.content[0].text, answer.stop_reason, answer.usage.input_tokens, answer.usage.output_tokens]

def stream():
    with client.messages.stream(**asked("write:4 hello")) as events:
        text = "".join(events.text_stream)
        final = events.get_final_message()
    return [text, final.stop_reason, final.usage.input_tokens, final.usage.output_tokens]

def tool():
    answer = create("call:read_file now", tools=[TOOL])
    return [answer.content[0].name, answer.content[0].input, answer.stop_reason]

def image():
    picture = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PIXEL}}
    return create([{"type": "text", "text": "what is"}, picture]).usage.input_tokens

def one(streamed):
    def call():
        if not streamed:
            return create("hello")
        with client.messages.stream(**asked("hello")) as events:
            return events.get_final_message()
    return {"error": failure(call)}

way = sys.argv[1]
if way == "calls":
    counted = client.messages.count_tokens(model="claude-tiny", messages=[{"role": "user", "content": "three small words"}])
    print(json.dumps({
        "message": message(), "stream": stream(), "tool": tool(), "image": image(), "count": counted.input_tokens,
        "unknown": failure(lambda: create("hello", model="no-such-model")),
        "failed": failure(lambda: create("fail:503 now")), "limited": failure(lambda: create("fail:429 now")),
    }))
elif way == "leave":
    with client.messages.stream(**asked("write:40 pause:50 hello")) as events:
        for event in events:
            print("begun", flush=True)
            os._exit(0)
else:
    print(json.dumps(one(way == "streamed")))
