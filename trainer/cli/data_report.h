// Prints the results of the data commands.
#pragma once

#include <string_view>

#include "trainer/data/build.h"
#include "trainer/data/inspect.h"

namespace sortie::trainer {

/// Prints the summary of a build, which took `seconds`, to stdout.
void print_build(const BuildResult& result, const BuildOptions& options, double seconds);

/// Prints an inspection to stdout. If `tokenizer` is nullptr, shows ids instead of text.
void print_inspection(std::string_view prefix, const Inspection& inspection,
                      const Tokenizer* tokenizer, bool json);

}  // namespace sortie::trainer
