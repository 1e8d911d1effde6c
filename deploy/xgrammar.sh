#!/bin/sh
# Prints the folder of xgrammar, built for constrained decoding: include/ and libxgrammar.a (2.7 MB
# of sources, Apache-2.0). The first call downloads the Python package of its sources and compiles
# it into the user's cache folder: about a CPU minute. Later calls of this script and compiler
# find it there. With --find nothing is downloaded.
# Exit status: 0; 69 if it is not there and the package index is not reached; 1 for anything else.
set -eu
cd "$(dirname "$0")/.."

package=xgrammar==0.2.8
sha256=8305646fd2b319d6c3003f51a1665e54cbbe9cba1fb636bc41d0b46434ccbb80
compiler=${CXX:-c++}
key=$({ "$compiler" -dumpfullversion -dumpversion; uname -m; cat deploy/xgrammar.sh; } | sha256sum | cut -c 1-16)
cache=${XDG_CACHE_HOME:-$HOME/.cache}/tessera
folder=$cache/xgrammar-$key

if [ -f "$folder/libxgrammar.a" ]; then echo "$folder"; exit 0; fi
[ "${1:-}" != --find ] || exit 69

sh deploy/dependencies.sh model
mkdir -p "$cache"
partial=$(mktemp -d "$cache/partial.XXXXXX")
trap 'rm -rf "$partial"' EXIT
# --no-binary: the package's binary form lacks the headers.
python3 -m pip download --no-deps --no-cache-dir --disable-pip-version-check --retries 1 --timeout 20 \
  --no-binary xgrammar -d "$partial" "$package" >&2 || exit 69
archive=$(echo "$partial"/*.tar.gz)
echo "$sha256  $archive" | sha256sum --quiet -c - >&2 || {
  echo "$package has a content that is not expected: not SHA-256 $sha256" >&2
  exit 1
}
tar -xzf "$archive" -C "$partial"
source=$(echo "$partial"/xgrammar-*/)

# Its own CMake builds Python bindings, with -O3 and link-time optimisation. Few large files compile
# in half the time of many, and -O1 in half that of -O2. The engine's steps wait for the matcher alone.
cd "$source"
mkdir build
# The library cannot be stopped, and some grammars take exponential time. So the checks that a
# release leaves out ask instead whether its time is over (server/grammar/xgrammar_compiler.cpp),
# and like other failed checks may throw. One file has such a check in a destructor.
cat >build/checkpoint.h <<'END'
#pragma once
extern "C" bool tessera_grammar_checkpoint();
// One check in so many looks at the clock.
inline bool tessera_checkpoint_is_due() {
  static thread_local unsigned checks = 0;
  return ++checks % 256 == 0 && tessera_grammar_checkpoint();
}
END
sed -i 's/while (false) XGRAMMAR_ICHECK(x)/while (tessera_checkpoint_is_due()) XGRAMMAR_ICHECK(x)/' cpp/support/logging.h
grep -q 'while (tessera_checkpoint_is_due())' cpp/support/logging.h
sed -i '/XGRAMMAR_DCHECK/d' cpp/support/recursion_guard.h
# Most masks of a schema come again: in its next answer, or in the next element of a list. The server keeps them, by the
# part of the parser's state that they were computed from (server/grammar/mask_key.h). That is the newest row of its
# table, and those earlier rows in which a rule ended. The library tells which it reads, and gives the fields of a row.
cat >>build/checkpoint.h <<'END'
extern "C" void tessera_grammar_reads_row(int row);
END
sed -i '/^ *const auto& parent_states_map = rule_id_to_completable_states_\[state.rule_start_pos\];$/i\
  tessera_grammar_reads_row(state.rule_start_pos);' cpp/earley_parser.cc
[ "$(grep -c 'tessera_grammar_reads_row' cpp/earley_parser.cc)" -eq 3 ]
cat >build/rows.h <<'END'
  int32_t NewestRow() const { return scanable_state_history_.size() - 1; }
  // Returns: false if the masks of the row's states depend on more than their fields: on a count of characters or tokens.
  bool AppendRow(int32_t row, std::vector<int32_t>& fields) const {
    if (has_budget_rules_ || has_budget_marker_rules_) return false;
    bool counts = false;
    const auto append = [&](int32_t rule, const ParserState& s) {
      counts = counts || s.char_budget_deadline >= 0;
      fields.insert(fields.end(), {s.rule_start_pos, rule, s.rule_id, s.sequence_id, s.element_id, s.sub_element_id,
                                   s.repeat_count, s.partial_codepoint, s.active_temperature_rule_id});
    };
    if (row == NewestRow()) {
      append(is_completed_[row] ? -3 : -2, ParserState());
      for (const ParserState& state : scanable_state_history_[row]) append(-1, state);
    }
    for (const auto& [rule, state] : rule_id_to_completable_states_[row]) append(rule, state);
    return !counts;
  }
END
sed -i '/^  bool IsTerminated() const;$/r build/rows.h' cpp/grammar_matcher.cc
grep -q AppendRow cpp/grammar_matcher.cc
cat >build/rows.cc <<'END'
int32_t tessera_newest_row(const xgrammar::GrammarMatcher& matcher) { return matcher->NewestRow(); }
bool tessera_append_row(const xgrammar::GrammarMatcher& matcher, int32_t row, std::vector<int32_t>& fields) {
  return matcher->AppendRow(row, fields);
}
END
# Texts with minLength or maxLength may hold control characters there, which JSON does not allow.
sed -i "s/AddCharacterClass({{'\"', '\"'}/AddCharacterClass({{0, 0x1f}, {'\"', '\"'}/" cpp/json_schema_converter.cc
grep -q "AddCharacterClass({{0, 0x1f}, {'\"', '\"'}" cpp/json_schema_converter.cc
# A bounded text becomes a rule for each character there: two seconds for maxLength 1000 with 49,152 tokens. Instead
# one rule counts its characters. Its tokens that lead beyond the bound are rejected without a trial, for the quote
# behind them is not a character of it. Nor is each rejected token tried again as one that a rule may name.
sed -i 's/^      int32_t body = Repeat(rule_name + "_characters", character, spec.min_length, spec.max_length);/\
      int32_t body;\
      if (spec.max_length < spec.min_length + 2) {\
        body = Repeat(rule_name + "_characters", character, spec.min_length, spec.max_length);\
      } else {\
        const int32_t counted = builder_.AddRuleWithHint(\
            rule_name + "_counted_characters", Repeat(rule_name, character, 0, -1));\
        builder_.UpdateMaxChars(counted, spec.max_length - spec.min_length);\
        body = Sequence({Repeat(rule_name, character, spec.min_length, spec.min_length), RuleRef(counted)});\
      }/' cpp/json_schema_converter.cc
grep -q 'UpdateMaxChars(counted' cpp/json_schema_converter.cc
sed -i -e 's/(adaptive_token_mask, std::max(remaining_chars, 0));/(adaptive_token_mask, std::max(remaining_chars, 0),\
            grammar_->GetRule(state.rule_id).name.find("_counted_characters") != std::string::npos);/' \
  -e 's/const AdaptiveTokenMask& adaptive_token_mask, int32_t remaining_chars$/&, bool ends_at_quote/' \
  -e '/^void GrammarMatcher::Impl::FillBitmaskForCharBudgetBoundary($/,/^}/{
    s/^        } else {$/        } else if (!ends_at_quote) {/
    s/} else if (!std::binary_search($/} else if (!ends_at_quote \&\& !std::binary_search(/
  }' \
  -e 's/^  for (int32_t index : byte_rejected_tokens) {$/  if (has_token_edges_) for (int32_t index : byte_rejected_tokens) {/' \
  cpp/grammar_matcher.cc
[ "$(grep -c 'ends_at_quote\|counted_characters\|if (has_token_edges_) for' cpp/grammar_matcher.cc)" -ge 7 ]
# It forgets that a token entered such a rule behind the end of another one.
sed -i 's/^          } else if (HasEnteredCharBudget()) {$/          } else if (has_char_budget_rules_) {/' cpp/grammar_compiler.cc
grep -q '          } else if (has_char_budget_rules_) {' cpp/grammar_compiler.cc
# Its characters hold surrogates, which UTF-8 does not: a client would read three characters for one.
sed -i '/^void AddPackedUTF8RangeEdges(FSM& fsm,.*{$/a if (min >= 0xEDA080 && min <= 0xEDBFBF) min = 0xEE8080;\
  if (max >= 0xEDA080 && max <= 0xEDBFBF) max = 0xED9FBF;\
  if (min > max) return;\
  if (min < 0xEDA080 && max > 0xEDBFBF) { AddPackedUTF8RangeEdges(fsm, from, to, min, 0xED9FBF); min = 0xEE8080; }' \
  cpp/fsm_builder.cc
grep -q 'min < 0xEDA080' cpp/fsm_builder.cc
unit() {  # unit LEVEL NAME FILE...
  level=$1; name=$2; shift 2
  for file in "$@"; do echo "#include \"$file\""; done >"build/$name.cc"
  "$compiler" -std=c++17 "$level" -include build/checkpoint.h -fPIC -w -DNDEBUG -DXGRAMMAR_ENABLE_CPPTRACE=0 -DXGRAMMAR_ENABLE_INTERNAL_CHECK=0 \
    -DXGRAMMAR_LOG_CUSTOMIZE=1 \
    -I. -Iinclude -Icpp -isystem 3rdparty/picojson -isystem 3rdparty/dlpack/include \
    -c "build/$name.cc" -o "build/$name.o"
}
paths() { for file in "$@"; do echo "cpp/$file.cc"; done; }
unit -O1 grammar $(paths compiled_grammar config grammar grammar_builder grammar_compiler grammar_functor \
  grammar_parser grammar_printer lark_converter suffix_automata support/logging support/recursion_guard)
unit -O2 matcher $(paths earley_parser fsm fsm_builder grammar_matcher testing tokenizer_info) build/rows.cc
unit -O1 schema $(paths json_schema_converter regex_converter structural_tag converter_ext/cohere converter_ext/deepseek \
  converter_ext/glm converter_ext/kimi_k3 converter_ext/minimax converter_ext/qwen)
unit -O1 minimax $(paths converter_ext/minimax_m3)
mkdir "$partial/made"
ar crs "$partial/made/libxgrammar.a" build/*.o
mkdir "$partial/made/include"
cp -R include/xgrammar 3rdparty/dlpack/include/dlpack "$partial/made/include/"
cp LICENSE NOTICE "$partial/made/"
mv -T "$partial/made" "$folder" 2>/dev/null || [ -f "$folder/libxgrammar.a" ]  # another call was faster
echo "$folder"
