// `sortie config init|show|diff|schema|reference`.
#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <memory>
#include <optional>

#include "common/base/exit_code.h"
#include "common/cli/tree.h"
#include "common/config/describe.h"
#include "common/config/forms.h"
#include "common/config/user_file.h"
#include "launcher/cli/verb.h"
#include "launcher/control/run_index.h"

namespace sortie::launcher {
namespace {

constexpr const char* kConfigFooter = R"(Examples:
  sortie config init > job.toml                      a commented config with the most common keys
  sortie config init --preset gpt2-124m > job.toml   a config for a published model
  sortie config init --all > job.toml                every key
  sortie config show job.toml --origin               the values that differ from the defaults, and where they were set
  sortie config diff job.toml other.toml             the differences between two configs
  sortie config schema > sortie.json                 a JSON schema, for editors that complete TOML
  sortie config reference                            all keys, as in docs/config.md
)";

constexpr const char* kDiffExamples = R"(Examples:
  sortie config diff job.toml other.toml     two files
  sortie config diff last job.toml           the config of the last run and a file
  sortie config diff k3f9 x7q2               the configs of two runs, by their ids

Prints a line per key: `model.hidden_size: 256 -> 768`. Values are compared after defaults are filled in.
Exit code: 0 no differences, 1 differences, 2 a wrong config.
)";

int init(const config::InitOptions& options, const CLI::App& root) {
  if (const std::string error = config::check_preset(options.preset); !error.empty())
    return print_error({ErrorCode::usage, fmt::format("sortie: --preset: {}", error)});
  const int code = print_text(config::init_text(options));
  if (code == kExitOk)
    print_next_steps(root, {{"config", "show", "FILE", "--origin"}, {"plan", "FILE"}});
  return code;
}

/// Reads a config file, or the config of a run.
Result<config::JobConfig> config_of(const std::string& name) {
  std::filesystem::path file = name;
  std::error_code error;
  std::optional<config::UserFile> user;  // not applied to the config of a run, which includes it
  if (!std::filesystem::is_regular_file(file, error)) {
    SORTIE_ASSIGN_OR_RETURN(const RunIndex index, RunIndex::open(""));
    const auto run = index.find(name);
    if (!run)
      return fail(ErrorCode::not_found,
                  fmt::format("{}: neither a file nor a run; `sortie ps --all` lists runs", name));
    file = *run / "config.toml";
  } else {
    SORTIE_ASSIGN_OR_RETURN(user, config::read_user_file());
  }
  SORTIE_ASSIGN_OR_RETURN(config::LoadedJob loaded,
                          config::load_job(file, {}, {}, user ? &*user : nullptr));
  // A run's config has absolute paths.
  resolve_job_paths(loaded.job);
  return std::move(loaded.job);
}

int diff(const std::vector<std::string>& names) {
  const auto before = config_of(names[0]);
  if (!before) return print_error(before.error());
  const auto after = config_of(names[1]);
  if (!after) return print_error(after.error());
  const std::string text = config::difference(*before, *after);
  if (const int code = print_text(text); code != kExitOk) return code;
  return text.empty() ? kExitOk : kExitFailed;
}

}  // namespace

void add_config_verbs(CLI::App& root, std::vector<Verb>& verbs, const Program& program) {
  CLI::App* config = root.add_subcommand("config", "Start, show, compare or describe a config");
  config->footer(kConfigFooter);
  config->require_subcommand(1);

  const auto start = std::make_shared<config::InitOptions>();
  CLI::App* init_verb =
      config->add_subcommand("init", "A commented config to start from, with the most common keys");
  init_verb->add_flag("--all", start->all, "Every key");
  init_verb->add_option("--preset", start->preset, "A published model, like gpt2-124m");
  verbs.push_back({init_verb, [start, &root] { return init(*start, root); }});

  const auto options = std::make_shared<JobOptions>();
  const auto how = std::make_shared<config::ShowOptions>();
  CLI::App* show = config->add_subcommand(
      "show", "The resolved config of a job: what differs from the defaults");
  add_job_options(*show, *options);
  add_shell_flag(*show, *options);
  show->add_flag("--all", how->all, "Every key");
  show->add_flag("--origin", how->origin, "With the place that each value comes from");
  verbs.push_back({show,
                   [options, how, &program] {
                     options->program = program;
                     const auto loaded = load_options(*options);
                     if (!loaded) return print_error(loaded.error());
                     print_warnings(*loaded);
                     return print_text(config::show(*loaded, *how));
                   },
                   true});

  const auto names = std::make_shared<std::vector<std::string>>();
  CLI::App* diff_verb = config->add_subcommand("diff", "What differs between two configs");
  diff_verb->footer(kDiffExamples);
  diff_verb->add_option("configs", *names, "A and B: config files, or runs")
      ->required()
      ->expected(2);
  verbs.push_back({diff_verb, [names] { return diff(*names); }});

  verbs.push_back({config->add_subcommand("schema", "JSON schema of the config"),
                   [] { return print_text(config::json_schema()); }});
  verbs.push_back({config->add_subcommand("reference", "The reference page, in Markdown"),
                   [] { return print_text(config::reference_markdown()); }});
}

}  // namespace sortie::launcher
