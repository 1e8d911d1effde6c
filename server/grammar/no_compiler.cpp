// Instead of xgrammar_compiler.cpp in a server that is built without xgrammar.
#include "server/grammar/grammar_compiler.h"

namespace tessera {

std::unique_ptr<GrammarCompiler> GrammarCompiler::create(GrammarVocabulary /*vocabulary*/,
                                                         const Limits& /*limits*/) {
  return nullptr;
}

}  // namespace tessera
