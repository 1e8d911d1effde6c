"""KV bytes and time to the first token of each turn of a chat, of a server that has just started.

    python3 bench/served/chat_bytes.py http://localhost:8080 --text NOVEL.txt

A turn sends all earlier turns and answers, and a piece of the text. It is sent twice: under a salt
of its own, where nothing is cached, and as a turn of the chat. Bytes are those that the server
allocated for the sequence at its end, as a share of f16's keys and values without overhead.
"""

import argparse
import urllib.parse

from completions import complete


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
        _, miss, _ = complete(args.url, chat, 1, ignore_eos=True, cache_salt=f"turn {turn}")
        answer, hit, usage = complete(args.url, chat, args.answer, ignore_eos=True, cache_salt="")
        kv = usage["kv_cache"]
        print(
            f"{usage['total_tokens']:6}  {usage['prompt_tokens_details']['cached_tokens']:6}"
            f"  {kv['bytes'] / 2**20:4.1f}  {100 * kv['bytes'] / kv['f16_bytes']:7.1f}"
            f"  {hit[0]:6.2f}  {miss[0]:6.2f}"
        )
        chat += answer + "\n\n"


if __name__ == "__main__":
    main()
