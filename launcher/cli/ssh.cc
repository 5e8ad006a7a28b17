// `sortie ssh`.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <utility>

#include "common/cli/tree.h"
#include "launcher/cli/verb.h"
#include "launcher/terminal/ssh_command.h"

namespace sortie::launcher {
namespace {

constexpr const char* kSshFooter = R"(Examples:
  sortie ssh gpu07                                  opens a terminal on the host
  sortie ssh --config job.toml gpu07                uses the job's user, keys and jump hosts
  sortie ssh gpu07 tail -n 20 /var/log/syslog       runs a command and returns its exit code
  sortie ssh -t gpu07 top                           runs a command with a terminal
  sortie ssh @login                                 the only host of a group

The words after the host, or after --, are joined by spaces and interpreted by the login shell of the host, as with ssh;
`sortie exec` passes them unchanged. In a terminal, ~. at the start of a line ends the connection and ~? lists the other escapes.
Exit code: that of the shell or command (128 + signal), 4 if the host could not be reached, 5 if the connection was lost,
130 after ~.
)";

}  // namespace

void mark_ssh_command(const CLI::App& root, std::vector<std::string>& words) {
  const auto verbs = cli::subverbs(root);
  const auto found =
      std::ranges::find_if(verbs, [](const CLI::App* verb) { return verb->get_name() == "ssh"; });
  const CLI::App* ssh = found != verbs.end() ? *found : nullptr;
  auto word =
      std::ranges::find_if(words, [](const std::string& text) { return !text.starts_with('-'); });
  if (ssh == nullptr || word == words.end() || *word != ssh->get_name()) return;
  bool has_host = false;
  for (++word; word != words.end() && *word != "--"; ++word) {
    if (word->starts_with('-') && word->size() > 1) {
      const CLI::Option* option = ssh->get_option_no_throw(*word);
      const bool takes_next = option != nullptr && option->get_items_expected_max() > 0;
      if (takes_next && std::next(word) != words.end()) ++word;
    } else if (std::exchange(has_host, true)) {
      words.insert(word, "--");
      return;
    }
  }
}

void add_ssh_verb(CLI::App& root, std::vector<Verb>& verbs, const Program& program) {
  const auto options = std::make_shared<SshOptions>();
  CLI::App* ssh = root.add_subcommand("ssh", "Terminal or command on one host");
  ssh->footer(kSshFooter);
  ssh->add_option("host", options->host, "[user@]host[:port], or an expression for one host")
      ->required();
  add_config_option(*ssh, options->job);
  add_way_options(*ssh, options->job);
  CLI::Option* with =
      ssh->add_flag("-t,--terminal", options->terminal, "A terminal there, also for a command");
  ssh->add_flag("-T,--no-terminal", options->no_terminal, "No terminal, also without a command")
      ->excludes(with);
  ssh->add_flag("--no-escapes", options->no_escapes, "Send ~. and other escapes to the host");
  verbs.push_back({ssh,
                   [options, &program] {
                     options->command = program;
                     return ssh_command(*options);
                   },
                   true});
}

}  // namespace sortie::launcher
