// `sortie shell`.
#include <CLI/CLI.hpp>
#include <memory>

#include "launcher/cli/verb.h"
#include "launcher/shell/shell_command.h"

namespace sortie::launcher {
namespace {

constexpr const char* kShellFooter = R"(Examples:
  sortie shell --hosts @gpu                       a prompt; each line runs on all hosts of the group
  sortie shell --hosts 'gpu[01-64]' < script      runs the lines of a file
  echo 'cd /data; du -s .' | sortie shell --hosts @gpu

Each host runs one shell (bash, else sh) until the prompt ends: cd and variables persist from line
to line. Hosts with equal output are shown together. At the prompt:
  @gpu07 CMD, @rack1 CMD    run CMD only on these hosts
  @gpu07                    send the following lines only to this host
  @                         send the following lines to all hosts again
  !CMD                      run CMD on this machine
  +gpu09, -gpu07            add a host, remove a host
  ?                         list the hosts, and which of them are lost
  =                         show output as it arrives; = again folds it
  Tab                       complete @hosts and @groups
  exit [N], quit, Ctrl-D    leave the prompt
A line that ends with \ continues on the next line.
Ctrl-C sends INT to the processes of the current line, a second Ctrl-C sends TERM, and a third one ends the shells of
the hosts where the line still runs. Commands have no stdin. The exit code is that of the last line, as with
`sortie exec`, or that of `exit N`.
)";

}  // namespace

void add_shell_verb(CLI::App& root, std::vector<Verb>& verbs) {
  const auto options = std::make_shared<ShellOptions>();
  CLI::App* shell = root.add_subcommand("shell", "Interactive shell on many hosts");
  shell->footer(kShellFooter);
  add_config_option(*shell, options->job);
  add_host_options(*shell, options->job);
  shell->add_flag("--no-history", options->no_history, "Do not read or write the history file");
  verbs.push_back({shell, [options] { return shell_command(*options); }});
}

}  // namespace sortie::launcher
