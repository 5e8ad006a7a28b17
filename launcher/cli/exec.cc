// `sortie exec`.
#include <CLI/CLI.hpp>
#include <memory>

#include "launcher/cli/verb.h"
#include "launcher/exec/exec_command.h"

namespace sortie::launcher {
namespace {

constexpr const char* kExecFooter = R"(Examples:
  sortie exec --hosts 'gpu[01-64]' -- uptime                       prints lines as they arrive, with [host]
  sortie exec --hosts @gpu --exclude gpu07 --fold -- uname -r      folds equal output
  sortie exec --hosts @gpu --shell -- 'df -h / | tail -1'          through /bin/sh there
  sortie exec --hosts @gpu --timeout 30s -- nvidia-smi             timeout of 30 s per host
  sortie exec --hosts @gpu --stdin -- tee /tmp/list < list         sends stdin to all of them

Everything after -- is the command and its arguments, passed on byte for byte. It runs in the home
folder, with nothing left of it when it has ended. Hosts have nothing to do with each other: one that
fails stops no other. The exit code is 0 when it was 0 everywhere, else that of the first to fail:
its own (128 + signal), 124 after --timeout, 127 and 126 for a program that is not there or may not
be run, 4 for a host that was not reached, 5 for one that went away; 130 after Ctrl-C.
)";

}  // namespace

void add_exec_verb(CLI::App& root, std::vector<Verb>& verbs, const Program& program) {
  const auto options = std::make_shared<ExecOptions>();
  CLI::App* exec = root.add_subcommand("exec", "Run one command on many hosts");
  exec->footer(kExecFooter);
  add_config_option(*exec, options->job);
  add_host_options(*exec, options->job);
  exec->add_option("--fanout", options->fanout, "Hosts at the same time (runner.ssh.fanout, 64)")
      ->check(CLI::Range(1, 4096));
  exec->add_option("--timeout", options->timeout,
                   "Time for the command on each host (30s, 5m); then TERM, and KILL after the "
                   "grace");
  exec->add_option("--grace", options->grace, "Between TERM and KILL (runner.grace, 10s)");
  add_shell_flag(*exec, options->job);
  exec->add_flag("--stdin", options->send_stdin,
                 "Send stdin to all hosts; without it they have /dev/null");
  exec->add_flag("--fold", options->fold,
                 "Show output at the end; fold hosts with the same output and exit code");
  exec->add_flag("--json", options->json, "A line of JSON per event (schema sortie/exec/1)");
  exec->add_flag("--no-prefix", options->no_prefix, "No [host] before lines");
  exec->add_option("--output-dir", options->output_dir,
                   "Folder for HOST.out and HOST.err, with the unchanged output");
  verbs.push_back({exec,
                   [options, &program] {
                     options->job.program = program;
                     return exec_command(*options);
                   },
                   true});
}

}  // namespace sortie::launcher
