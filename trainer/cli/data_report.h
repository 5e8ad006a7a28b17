// What the data commands print.
#pragma once

#include <string_view>

#include "trainer/data/build.h"
#include "trainer/data/inspect.h"

namespace sortie::trainer {

/// The summary of a build that took so long, on stdout.
void print_build(const BuildResult& result, const BuildOptions& options, double seconds);

/// `tokenizer` may be null: then ids are shown, not text.
void print_inspection(std::string_view prefix, const Inspection& inspection,
                      const Tokenizer* tokenizer, bool json);

}  // namespace sortie::trainer
