// A verb of a program: an entry of its command line, and what runs it. What the command line says
// stays in the closure of `run`, which is called once, after everything was parsed.
#pragma once

#include <CLI/App.hpp>
#include <functional>
#include <string>
#include <vector>

namespace sortie::cli {

struct Verb {
  CLI::App* app = nullptr;     // of the root, or of another verb ("config show")
  std::function<int()> run;    // returns the exit code
  bool takes_program = false;  // `-- PROGRAM ARGS...` may follow
};
using Verbs = std::vector<Verb>;

/// What follows `--`, byte for byte: no flag of a program can be taken for one of ours. Filled
/// before any verb runs; lives as long as the verbs.
using Program = std::vector<std::string>;

}  // namespace sortie::cli
