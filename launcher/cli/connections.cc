// `sortie connections ls|close`.
#include <CLI/CLI.hpp>
#include <memory>

#include "launcher/cli/verb.h"
#include "launcher/warm/connections_command.h"

namespace sortie::launcher {
namespace {

constexpr const char* kConnectionsFooter = R"(Examples:
  sortie exec --hosts 'gpu[01-64]' --set runner.ssh.persist=10m -- uptime    keeps the connections
  sortie exec --hosts 'gpu[01-64]' --set runner.ssh.persist=10m -- uptime    reuses them
  sortie connections ls                                                      kept connections, and for how long
  sortie connections close                                                   closes all

exec, push, pull, check, image push, ssh and shell use connections that are kept; run does with
on_launcher_loss = "hold T", and else signs in by itself.
)";

constexpr const char* kConnectionsLsFooter = R"(Examples:
  sortie connections ls           host, state, since when it is idle, when it ends; a row for each
                                  session of `sortie ssh`, too (state terminal or command)
  sortie connections ls --json    as JSON (schema sortie/connections/1)
)";

constexpr const char* kConnectionsCloseFooter = R"(Examples:
  sortie connections close                   all of them
  sortie connections close 'gpu[01-08],h7'   those to these hosts

One that a command or a session is using is closed when that ends.
)";

int print_connections(const Result<std::string>& text) {
  return text ? print_text(*text) : print_error(text.error());
}

}  // namespace

void add_connections_verbs(CLI::App& root, std::vector<Verb>& verbs) {
  struct Options {
    JobOptions job;
    bool json = false;
  };
  const auto options = std::make_shared<Options>();
  CLI::App* connections = root.add_subcommand("connections", "Kept SSH connections");
  connections->footer(kConnectionsFooter);
  connections->require_subcommand(1);

  CLI::App* ls = connections->add_subcommand("ls", "List kept connections");
  ls->footer(kConnectionsLsFooter);
  ls->add_flag("--json", options->json, "As JSON (schema sortie/connections/1)");
  verbs.push_back(
      {ls, [options] { return print_connections(warm::list_connections(options->json)); }});

  CLI::App* close = connections->add_subcommand("close", "Close kept connections");
  close->footer(kConnectionsCloseFooter);
  close->add_option("hosts", options->job.hosts,
                    "Hosts: 'gpu[01-04],h7,@group,!gpu03'; none = all");
  close->add_option("--groups", options->job.groups,
                    "Groups file: gpu = \"gpu[01-64]\"; default ~/.config/sortie/groups.toml");
  verbs.push_back({close, [options] {
                     if (options->job.hosts.empty())
                       return print_connections(warm::close_connections({}));
                     config::RunnerConfig runner;
                     runner.groups_file = options->job.groups;
                     const auto hosts = expand_hosts(options->job.hosts, runner);
                     if (!hosts) return print_error(hosts.error());
                     return print_connections(warm::close_connections(*hosts));
                   }});
}

}  // namespace sortie::launcher
