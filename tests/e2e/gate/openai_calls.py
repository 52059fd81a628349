# The vendor's package, told by the environment alone where to go; prints one JSON document.
import json, os, sys
import openai

client = openai.OpenAI(max_retries=0, timeout=30)
PIXEL = "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
TOOL = {"type": "function", "function": {"name": "read_file", "parameters": {"type": "object", "properties": {"path": {"type": "string"}}}}}

def chat(text, model="gpt-tiny", **more):
    return client.chat.completions.create(model=model, messages=[{"role": "user", "content": text}], **more)

def failure(call):
    try:
        call()
    except openai.APIStatusError as error:
        return [type(error).__name__, error.message, error.status_code, error.body, error.response.headers.get("retry-after")]
    return None

def stream():
    text, finish, usage = "", None, False
    for chunk in chat("write:4 hello", stream=True):
        usage = usage or chunk.usage is not None or not chunk.choices
        for choice in chunk.choices:
            text += choice.delta.content or ""
            finish = choice.finish_reason or finish
    return [text, finish, usage]

def stream_usage():
    chunks = list(chat("write:4 hello", stream=True, stream_options={"include_usage": True}))
    usage = chunks[-1].usage
    return [usage.prompt_tokens, usage.completion_tokens, usage.total_tokens]

def tool():
    choice = chat("call:read_file now", tools=[TOOL]).choices[0]
    call = choice.message.tool_calls[0].function
    return [call.name, call.arguments, choice.finish_reason]

def tool_stream():
    text = ""
    for chunk in chat("call:read_file now", tools=[TOOL], stream=True):
        for choice in chunk.choices:
            for call in choice.delta.tool_calls or []:
                text += call.function.arguments or ""
    return text

def image():
    content = [{"type": "text", "text": "what is"}, {"type": "image_url", "image_url": {"url": PIXEL, "detail": "low"}}]
    return chat(content).usage.prompt_tokens

def embedding():
    answer = client.embeddings.create(model="embed-tiny", input="three small words")
    return [len(answer.data[0].embedding), answer.usage.total_tokens]

def response():
    answer = client.responses.create(model="gpt-tiny", input="write:2 hello")
    return [answer.output_text, answer.status]

def response_stream():
    text, last = "", None
    for event in client.responses.create(model="gpt-tiny", input="write:2 hello", stream=True):
        text += event.delta if event.type == "response.output_text.delta" else ""
        last = event.type
    return [text, last]

def one(streamed):
    answers = []
    def call():
        answers.extend(chat("hello", stream=True) if streamed else [chat("hello")])
    return {"error": failure(call), "model": answers[0].model if answers else None}

way = sys.argv[1]
if way == "calls":
    print(json.dumps({
        "chat": chat("write:3 hello").choices[0].message.content,
        "stream": stream(), "stream_usage": stream_usage(), "tool": tool(), "tool_stream": tool_stream(),
        "image": image(), "embedding": embedding(), "response": response(), "response_stream": response_stream(),
        "models": sorted(model.id for model in client.models.list()),
        "unknown": failure(lambda: chat("hello", model="no-such-model")),
        "failed": failure(lambda: chat("fail:503 now")), "limited": failure(lambda: chat("fail:429 now")),
    }))
elif way in ["leave", "stay"]:
    for chunk in chat("write:40 pause:50 hello", stream=True):
        print("begun", flush=True)
        if way == "leave":
            os._exit(0)
elif way == "heavy":
    print(json.dumps({"error": failure(lambda: chat("write:500 hello", max_completion_tokens=600))}))
else:
    print(json.dumps(one(way == "streamed")))
