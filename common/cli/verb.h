// A verb of a program: its entry on the command line and the function that runs it. Values from the
// command line are in the closure of `run`, which is called once, after all arguments are parsed.
#pragma once

#include <CLI/App.hpp>
#include <functional>
#include <string>
#include <vector>

namespace sortie::cli {

struct Verb {
  CLI::App* app = nullptr;     // child of the root, or of another verb ("config show")
  std::function<int()> run;    // returns the exit code
  bool takes_program = false;  // `-- PROGRAM ARGS...` may follow
};
using Verbs = std::vector<Verb>;

/// The words after `--`, unchanged. They are cut off before parsing, so that no flag of a program
/// is taken for one of Sortie's. Filled before any verb runs; must outlive the verbs.
using Program = std::vector<std::string>;

}  // namespace sortie::cli
