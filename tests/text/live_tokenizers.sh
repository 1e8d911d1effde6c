#!/bin/sh
# Compares the tokenizers with PyPI's tiktoken, mistral-common and tokenizers on 5,000 random texts each, with whole
# vocabularies. Needs build/release/bin/tokenizer_test. Exit status 69: the package index is not reached.
set -eu
cd "$(dirname "$0")/../../.."
venv=build/live_tokenizers/venv
[ -d "$venv" ] || python3 -m venv "$venv"
"$venv/bin/pip" install -q --disable-pip-version-check tiktoken==0.14.0 mistral-common==1.13.1 tokenizers==0.23.3 \
  sentencepiece || exit 69
"$venv/bin/python" tests/text/tokenizers_golden.py build/live_tokenizers/cases.json --live
TESSERA_TOKENIZER_CASES=build/live_tokenizers/cases.json build/release/bin/tokenizer_test --gtest_brief=1 \
  --gtest_filter='*TokenizerOracle*'
