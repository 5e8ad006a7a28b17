// Candidates for the next word of a command line, from the tree of verbs and the table of config
// keys. The shell scripts (completion.cc) only call this code and show the result.
#pragma once

#include <CLI/App.hpp>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace sortie::cli {

struct Completion {
  std::vector<std::pair<std::string, std::string>> words;  // with their descriptions
  bool files = false;                                      // file names are candidates too
  bool no_space = false;                                   // the word continues ("section.key=")
};

/// Sources of words that only the program itself can list; each function may be empty.
struct Known {
  std::function<std::vector<std::string>()> runs;  // ids, for verbs that take one
  std::vector<std::string> faults;                 // of `chaos --faults`, a list with commas
};

/// `words` are the words after the program's name up to the cursor. The last one is being typed
/// and may be "".
Completion complete(const CLI::App& root, const std::vector<std::string>& words,
                    const Known& known);

/// One line "word<TAB>description" per candidate, then a last line
/// ":words", ":files" or ":nospace".
std::string completion_lines(const Completion& completion);

}  // namespace sortie::cli
