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
  sortie exec --hosts @gpu --shell -- 'df -h / | tail -1'          runs a line with /bin/sh of the hosts
  sortie exec --hosts @gpu --timeout 30s -- nvidia-smi             timeout of 30 s per host
  sortie exec --hosts @gpu --stdin -- tee /tmp/list < list         sends stdin to all of them

Everything after -- is the command and its arguments. They reach the hosts unchanged; no remote shell parses them.
The command runs in the home folder. When it ends, all its child processes are killed, also those in the background.
A host that fails does not stop the others. Exit code: 0 if the command returned 0 on all hosts, else that of the host
that failed first: the exit code of the command (128 + signal), 124 after --timeout, 127 if the program was not found,
126 if it could not be run, 4 if the host could not be reached, 5 if it was lost. 130 after Ctrl-C.
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
