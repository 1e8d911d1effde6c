// Instead of xgrammar_compiler.cpp in a server that is built without xgrammar.
#include "server/grammar/grammar_compiler.h"

namespace tessera {

std::unique_ptr<GrammarCompiler> GrammarCompiler::create(GrammarVocabulary /*vocabulary*/,
                                                         std::chrono::milliseconds /*time*/,
                                                         int64_t /*mask_bytes*/) {
  return nullptr;
}

}  // namespace tessera
