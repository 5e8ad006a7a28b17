// Runs the built `sortie`, and lists its verbs.
#pragma once

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <sstream>
#include <string>
#include <vector>

#include "tests/support/child.h"
#include "tests/support/temp_dir.h"
#include "tests/support/text.h"

namespace sortie::test {

using testing::Finished;

/// The program is found by PATH, so that the commands that it suggests begin with its name.
inline Finished sortie(std::vector<std::string> arguments) {
  const std::filesystem::path binary = SORTIE_BINARY;
  const char* path = std::getenv("PATH");
  arguments.insert(arguments.begin(), {"/usr/bin/env",
                                       fmt::format("PATH={}:{}", binary.parent_path().string(),
                                                   path != nullptr ? path : ""),
                                       binary.filename().string()});
  return testing::run(arguments);
}

inline Finished shell(const std::string& command) {
  return testing::run({"/bin/sh", "-c", command});
}

inline std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> out;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) out.push_back(line);
  return out;
}

/// The completions of `words`, without descriptions. The last one is the mode.
inline std::vector<std::string> after(std::vector<std::string> words) {
  words.insert(words.begin(), {"__complete", "--"});
  std::vector<std::string> out = lines_of(sortie(words).output);
  for (std::string& line : out) line = line.substr(0, line.find('\t'));
  return out;
}

inline bool holds(const std::vector<std::string>& words, std::string_view word) {
  return std::ranges::find(words, word) != words.end();
}

/// Every verb and subverb: {"run"}, {"config"}, {"config", "show"} ...
inline std::vector<std::vector<std::string>> all_verbs() {
  std::vector<std::vector<std::string>> out;
  std::vector<std::string> top = after({""});
  top.pop_back();
  for (const std::string& verb : top) {
    out.push_back({verb});
    if (!has(sortie({verb, "--help"}).output, " VERB\n")) continue;
    std::vector<std::string> below = after({verb, ""});
    below.pop_back();
    for (const std::string& sub : below) out.push_back({verb, sub});
  }
  return out;
}

}  // namespace sortie::test
