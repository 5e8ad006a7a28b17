// `sortie shell`.
#include <CLI/CLI.hpp>
#include <memory>

#include "launcher/cli/verb.h"
#include "launcher/shell/shell_command.h"

namespace sortie::launcher {
namespace {

constexpr const char* kShellFooter = R"(Examples:
  sortie shell --hosts @gpu                       a prompt; each line runs on all hosts of the group
  sortie shell --hosts 'gpu[01-64]' < script      the lines of a file
  echo 'cd /data; du -s .' | sortie shell --hosts @gpu

Each host has one shell (bash, else sh) as long as the prompt lasts: cd and variables hold from line
to line. Hosts with the same output are shown together. At the prompt:
  @gpu07 CMD, @rack1 CMD    on these hosts alone        @gpu07, @    lines go there from now on, to all
  !CMD                      on this machine             ?            the hosts, and which are lost
  +gpu09, -gpu07            these too, these no more    =            folded output, or as it comes
  exit [N], quit, Ctrl-D    leave                       Tab          completes @hosts and @groups
A line that ends with \ goes on in the next one.
Ctrl-C ends what the running line has started (once more: TERM; a third time: the shells of hosts
where it still runs). Commands have no stdin. The exit code is that of the last line, as `sortie
exec` has it, or of `exit N`.
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
