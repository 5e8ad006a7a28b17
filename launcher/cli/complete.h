// What may come next on a command line, from the tree of verbs and the table of config keys. The
// shells' scripts (completion.cc) only ask and show.
#pragma once

#include <CLI/App.hpp>
#include <string>
#include <utility>
#include <vector>

namespace sortie::launcher {

struct Completion {
  std::vector<std::pair<std::string, std::string>> words;  // with what they are
  bool files = false;                                      // file names may stand here
  bool no_space = false;                                   // the word goes on ("section.key=")
};

/// `words` is what follows "sortie" up to the cursor; the last one is what is being typed, perhaps
/// "". `runs` are the ids of runs, for verbs that take one.
Completion complete(const CLI::App& root, const std::vector<std::string>& words,
                    const std::vector<std::string>& runs);

/// A line "word<TAB>description" for each, then a last line ":words", ":files" or ":nospace".
std::string completion_lines(const Completion& completion);

}  // namespace sortie::launcher
