// `sortie config show|schema|init|reference`.
#include <CLI/CLI.hpp>
#include <memory>

#include "common/config/describe.h"
#include "launcher/cli/tree.h"

namespace sortie::launcher {
namespace {

constexpr const char* kConfigFooter = R"(Examples:
  sortie config init > job.toml           a commented config with every key
  sortie config show job.toml --origin    what a job's config comes to, and from where
  sortie config schema > sortie.json      for an editor that completes TOML
  sortie config reference                 the page docs/config.md
)";

}  // namespace

void add_config_verbs(CLI::App& root, std::vector<Verb>& verbs, const Program& program) {
  CLI::App* config = root.add_subcommand("config", "Show, describe or start a config");
  config->footer(kConfigFooter);
  config->require_subcommand(1);

  const auto options = std::make_shared<JobOptions>();
  const auto origin = std::make_shared<bool>(false);
  CLI::App* show = config->add_subcommand("show", "The resolved config of a job");
  add_job_options(*show, *options);
  show->add_flag("--origin", *origin, "With the place that each value comes from");
  verbs.push_back({show,
                   [options, origin, &program] {
                     options->program = program;
                     const auto loaded = load_options(*options);
                     return loaded ? print_text(config::show(*loaded, *origin))
                                   : print_error(loaded.error());
                   },
                   true});

  verbs.push_back({config->add_subcommand("schema", "JSON schema of the config"),
                   [] { return print_text(config::json_schema()); }});
  verbs.push_back({config->add_subcommand("init", "A commented config with every key"), [&root] {
                     const int code = print_text(config::init_text());
                     if (code == 0)
                       print_next_steps(root, {"config show FILE --origin", "plan FILE"});
                     return code;
                   }});
  verbs.push_back({config->add_subcommand("reference", "The reference page, in Markdown"),
                   [] { return print_text(config::reference_markdown()); }});
}

}  // namespace sortie::launcher
