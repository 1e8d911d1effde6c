#!/bin/sh
# Runs clang-tidy over the C++ sources of the release build, with the checks of .clang-tidy.
#   tests/clang_tidy.sh FILE...            these
#   tests/clang_tidy.sh --changed [MOST]   at most MOST that tests/changed.sh names
#   tests/clang_tidy.sh --every            all of them: an hour of CPU time
# It needs a release build (cmake --preset release); without clang-tidy-14: exit status 77.
set -eu
cd "$(dirname "$0")/.."
tidy=$(command -v clang-tidy-14) || { echo "skipped: no clang-tidy-14 here" >&2; exit 77; }
[ -f build/release/build.ninja ] || { echo "first: cmake --preset release" >&2; exit 1; }
# The flags of each source alone, with the headers that the release build generates.
cmake --preset release -B build/clang-tidy -DTESSERA_TESTS=ON -DTESSERA_MERGE_SOURCES=OFF >/dev/null

most=1000
case "${1:-}" in
  --changed) most=${2:-$most}; files=$(sh tests/changed.sh | grep '\.cpp$' || true) ;;
  --every) files=$(git ls-files '*.cpp') ;;
  *) files="$*" ;;
esac

chosen="" left=0
for file in $files; do
  grep -q "/$file\"" build/clang-tidy/compile_commands.json || continue
  if [ "$(echo "$chosen" | wc -w)" -lt "$most" ]; then chosen="$chosen $file"; else left=$((left + 1)); fi
done
[ "$left" -eq 0 ] || echo "clang-tidy: $left changed files are left out, tests/clang_tidy.sh --changed takes all"
[ -n "$chosen" ] || { echo "clang-tidy: no source to check"; exit 0; }
# The build is GCC's: clang cannot read its precompiled headers and does not know its -fno-tree flags.
sed -i -E 's# -include [^ ]*cmake_pch\.hxx##g; s# -fno-tree-[a-z-]+##g; s#/build/clang-tidy/#/build/release/#g' \
  build/clang-tidy/compile_commands.json
echo $chosen | xargs -P "$(nproc)" -n 1 "$tidy" -p build/clang-tidy --quiet \
  --extra-arg=-Wno-unknown-warning-option --extra-arg=-Wno-ignored-optimization-argument \
  --extra-arg=-Wno-error
echo "clang-tidy: $(echo "$chosen" | wc -w) files are clean"
