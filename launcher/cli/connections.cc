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
  sortie connections ls                                                      lists the kept connections and when they end
  sortie connections close                                                   closes all kept connections

exec, push, pull, check, image push, ssh and shell use kept connections. run uses them only with
runner.on_launcher_loss = "hold T"; otherwise it signs in itself.
)";

constexpr const char* kConnectionsLsFooter = R"(Examples:
  sortie connections ls           host, state, idle time and end of each connection, and a row for
                                  each session of `sortie ssh` (state terminal or command)
  sortie connections ls --json    as JSON (schema sortie/connections/1)
)";

constexpr const char* kConnectionsCloseFooter = R"(Examples:
  sortie connections close                   closes all kept connections
  sortie connections close 'gpu[01-08],h7'   closes the connections to these hosts

A connection in use is closed when its command or session ends.
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
  add_hosts_argument(*close, options->job, "; none = all");
  add_groups_option(*close, options->job);
  verbs.push_back({close, [options] {
                     if (options->job.hosts.empty())
                       return print_connections(warm::close_connections({}));
                     const auto hosts = named_hosts(options->job);
                     if (!hosts) return print_error(hosts.error());
                     return print_connections(warm::close_connections(*hosts));
                   }});
}

}  // namespace sortie::launcher
