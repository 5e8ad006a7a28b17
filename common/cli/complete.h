// What may come next on a command line, from the tree of verbs and the table of config keys. The
// shells' scripts (completion.cc) only ask and show.
#pragma once

#include <CLI/App.hpp>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace sortie::cli {

struct Completion {
  std::vector<std::pair<std::string, std::string>> words;  // with what they are
  bool files = false;                                      // file names may stand here
  bool no_space = false;                                   // the word goes on ("section.key=")
};

/// Words that only the program itself can list; each may be empty.
struct Known {
  std::function<std::vector<std::string>()> runs;  // ids, for verbs that take one
};

/// `words` is what follows the program's name up to the cursor; the last one is what is being
/// typed, perhaps "".
Completion complete(const CLI::App& root, const std::vector<std::string>& words,
                    const Known& known);

/// A line "word<TAB>description" for each, then a last line ":words", ":files" or ":nospace".
std::string completion_lines(const Completion& completion);

}  // namespace sortie::cli
