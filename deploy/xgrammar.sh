#!/bin/sh
# Prints the folder of xgrammar, built for constrained decoding: include/ and libxgrammar.a (2.7 MB
# of sources, Apache-2.0). The first call downloads the Python package of its sources and compiles
# it into the user's cache folder: about 50 CPU seconds. Later calls of this script and compiler
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
# in half the time of many, and -O1 in half that of -O2.
cd "$source"
mkdir build
# The library cannot be stopped, and some grammars take exponential time. So the checks that a
# release leaves out ask instead whether its time is over (server/grammar/xgrammar_compiler.cpp),
# and like other failed checks may throw. One file has such a check in a destructor.
sed -i -e '1i extern "C" bool tessera_grammar_checkpoint();' \
  -e 's/while (false) XGRAMMAR_ICHECK(x)/while (tessera_grammar_checkpoint()) XGRAMMAR_ICHECK(x)/' cpp/support/logging.h
grep -q 'while (tessera_grammar_checkpoint())' cpp/support/logging.h
sed -i '/XGRAMMAR_DCHECK/d' cpp/support/recursion_guard.h
unit() {  # unit NAME FILE...
  name=$1; shift
  for file in "$@"; do echo "#include \"$file\""; done >"build/$name.cc"
  "$compiler" -std=c++17 -O1 -fPIC -w -DNDEBUG -DXGRAMMAR_ENABLE_CPPTRACE=0 -DXGRAMMAR_ENABLE_INTERNAL_CHECK=0 \
    -DXGRAMMAR_LOG_CUSTOMIZE=1 \
    -I. -Iinclude -Icpp -isystem 3rdparty/picojson -isystem 3rdparty/dlpack/include \
    -c "build/$name.cc" -o "build/$name.o"
}
paths() { for file in "$@"; do echo "cpp/$file.cc"; done; }
unit grammar $(paths compiled_grammar config grammar grammar_builder grammar_compiler grammar_functor \
  grammar_parser grammar_printer lark_converter suffix_automata support/logging support/recursion_guard)
unit matcher $(paths earley_parser fsm fsm_builder grammar_matcher testing tokenizer_info)
unit schema $(paths json_schema_converter regex_converter structural_tag converter_ext/cohere converter_ext/deepseek \
  converter_ext/glm converter_ext/kimi_k3 converter_ext/minimax converter_ext/qwen)
unit minimax $(paths converter_ext/minimax_m3)
mkdir "$partial/made"
ar crs "$partial/made/libxgrammar.a" build/*.o
mkdir "$partial/made/include"
cp -R include/xgrammar 3rdparty/dlpack/include/dlpack "$partial/made/include/"
cp LICENSE NOTICE "$partial/made/"
mv -T "$partial/made" "$folder" 2>/dev/null || [ -f "$folder/libxgrammar.a" ]  # another call was faster
echo "$folder"
