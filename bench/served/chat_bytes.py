"""KV bytes and time to the first token of each turn of a chat, of a server that has just started.

    python3 bench/served/chat_bytes.py http://localhost:8080 --text NOVEL.txt

A turn sends all earlier turns and answers, and a piece of the text. It is sent twice: under a salt
of its own, where nothing is cached, and as a turn of the chat. Bytes are those that the server
allocated for the sequence at its end, as a share of f16's keys and values without overhead.
"""

import argparse
import http.client
import json
import time
import urllib.parse


def complete(url, prompt, tokens, salt):
    """Returns: the text, the seconds to the first token, and the usage."""
    connection = http.client.HTTPConnection(url.hostname, url.port, timeout=600)
    body = {
        "prompt": prompt,
        "max_tokens": tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
        "cache_salt": salt,
    }
    began = time.monotonic()
    connection.request(
        "POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"}
    )
    response = connection.getresponse()
    if response.status != 200:
        raise SystemExit(response.read().decode())
    text, first, usage = "", None, None
    for line in response:
        if not line.startswith(b"data: {"):
            continue
        event = json.loads(line[6:])
        usage = event.get("usage") or usage
        for choice in event["choices"]:
            first = first or time.monotonic() - began
            text += choice["text"]
    return text, first, usage


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("url", type=urllib.parse.urlsplit)
    parser.add_argument("--text", required=True)
    parser.add_argument("--turns", type=int, nargs="+", default=[1600, 3800, 5300, 7300])
    parser.add_argument("--answer", type=int, default=32, help="tokens of an answer")
    args = parser.parse_args()
    with open(args.text, encoding="utf-8") as file:
        text = " ".join(file.read().split())
    chat, taken = "", 0
    print("tokens  cached  MiB  % of f16  TTFT s  TTFT of a miss s")
    for turn, end in enumerate(args.turns):
        chat += text[taken:end]
        taken = end
        _, miss, _ = complete(args.url, chat, 1, f"turn {turn}")
        answer, hit, usage = complete(args.url, chat, args.answer, "")
        kv = usage["kv_cache"]
        print(
            f"{usage['total_tokens']:6}  {usage['prompt_tokens_details']['cached_tokens']:6}"
            f"  {kv['bytes'] / 2**20:4.1f}  {100 * kv['bytes'] / kv['f16_bytes']:7.1f}"
            f"  {hit:6.2f}  {miss:6.2f}"
        )
        chat += answer + "\n\n"


if __name__ == "__main__":
    main()
