// A verb of `sortie`: each file of this folder declares one and says what runs it. What the command
// line says stays in the closure of `run`, which is called once, after everything was parsed.
#pragma once

#include <CLI/App.hpp>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/result.h"
#include "launcher/run/run_command.h"

namespace sortie::launcher {

struct Verb {
  CLI::App* app = nullptr;     // of the root, or of another verb ("config show")
  std::function<int()> run;    // returns the exit code
  bool takes_program = false;  // `-- PROGRAM ARGS...` may follow
};

/// What follows `--`, byte for byte: no flag of a program can be taken for one of ours. Filled
/// before any verb runs; lives as long as the verbs.
using Program = std::vector<std::string>;

// The verbs, in the order of `sortie --help`. Each adds itself (and its own sub-verbs) to `root`.
void add_run_verbs(CLI::App& root, std::vector<Verb>& verbs, const Program& program);
void add_runs_verbs(CLI::App& root, std::vector<Verb>& verbs, const Program& program);
void add_follow_verbs(CLI::App& root, std::vector<Verb>& verbs, const Program& program);
void add_exec_verb(CLI::App& root, std::vector<Verb>& verbs, const Program& program);
void add_check_verbs(CLI::App& root, std::vector<Verb>& verbs, const Program& program);
void add_copy_verbs(CLI::App& root, std::vector<Verb>& verbs, const Program& program);
void add_image_verbs(CLI::App& root, std::vector<Verb>& verbs, const Program& program);
void add_config_verbs(CLI::App& root, std::vector<Verb>& verbs, const Program& program);
void add_explain_verb(CLI::App& root, std::vector<Verb>& verbs);
void add_man_verb(CLI::App& root, std::vector<Verb>& verbs);
void add_completion_verbs(CLI::App& root, std::vector<Verb>& verbs, const Program& program);

void add_report_verb(CLI::App& root, std::vector<Verb>& verbs);

/// Config file, --set, --hosts, --slots, --ssh-config: how every verb that concerns a job names it.
void add_job_options(CLI::App& app, JobOptions& options);

/// RUN and --log-dir: how every verb about a run that was started names it.
void add_run_name(CLI::App& app, std::string& run, std::string& log_dir);
void add_log_dir(CLI::App& app, std::string& log_dir);

/// The message of the error on stderr; its exit code.
int print_error(const Error& error);

/// All of `text` on stdout or an error: a full disk must not leave half an answer behind an exit
/// code of 0.
int print_text(std::string_view text);

}  // namespace sortie::launcher
