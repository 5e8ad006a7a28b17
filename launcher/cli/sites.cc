// `sortie sites`: the sites of a run that is alive.
#include <CLI/CLI.hpp>
#include <memory>

#include "launcher/cli/verb.h"
#include "launcher/control/site_orders_client.h"

namespace sortie::launcher {
namespace {

constexpr const char* kSitesFooter = R"(Examples:
  sortie sites ls                                     lists the sites of the last run and their state
  sortie sites add oslo 'gpu[01-04] slots=8'          adds a site; it starts with the weights of another site
  sortie sites remove oslo --run k3f9                 removes a site; the other sites continue
)";

constexpr const char* kSitesLsFooter = R"(Examples:
  sortie sites ls                  the sites of the last run: hosts, number of ranks, state and round
  sortie sites ls --json k3f9      as JSON (schema sortie/sites/1)
)";

constexpr const char* kSitesAddFooter = R"(Examples:
  sortie sites add oslo 'gpu[01-04] slots=8'
  sortie sites add oslo gpu01 gpu02 --run k3f9     two hosts with runner.default_slots ranks each

The ranks of the new site start with the config of the run. The site joins the run between two rounds.
)";

constexpr const char* kSitesRemoveFooter = R"(Examples:
  sortie sites remove oslo
  sortie sites remove oslo --run k3f9

A site that has failed can also be removed. The exit code of the run then ignores that of the site.
)";

}  // namespace

void add_sites_verb(CLI::App& root, std::vector<Verb>& verbs) {
  CLI::App* const sites =
      root.add_subcommand("sites", "List, add or remove the sites of an active run");
  sites->require_subcommand(1);
  sites->footer(kSitesFooter);
  const auto request = std::make_shared<SitesRequest>();
  request->run = "last";
  const auto add_run = [request](CLI::App& app) {
    app.add_option("--run", request->run,
                   "Id of a run, its unique beginning or end, or its folder; none = `last`");
    add_log_dir(app, request->log_dir);
  };

  CLI::App* const ls = sites->add_subcommand("ls", "List the sites and their state");
  ls->footer(kSitesLsFooter);
  add_run_name(*ls, request->run, request->log_dir);
  ls->add_flag("--json", request->json, "As JSON (schema sortie/sites/1)");
  verbs.push_back({ls, [request] { return order_sites(*request); }});

  CLI::App* const add = sites->add_subcommand("add", "Add a site to the run");
  add->footer(kSitesAddFooter);
  add->add_option("site", request->site, "Name of the site; must be new in this run")->required();
  add->add_option("hosts", request->hosts,
                  "Its hosts, each a host line of the config: 'gpu[01-04] slots=8'")
      ->required();
  add_run(*add);
  verbs.push_back({add, [request] {
                     request->order = "add";
                     return order_sites(*request);
                   }});

  CLI::App* const remove = sites->add_subcommand("remove", "Remove a site and stop its ranks");
  remove->footer(kSitesRemoveFooter);
  remove->add_option("site", request->site, "Its name")->required();
  add_run(*remove);
  verbs.push_back({remove, [request] {
                     request->order = "remove";
                     return order_sites(*request);
                   }});
}

}  // namespace sortie::launcher
