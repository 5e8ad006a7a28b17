// `sortie push` and `sortie pull`.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>

#include "launcher/cli/verb.h"
#include "launcher/copy/copy_command.h"

namespace sortie::launcher {
namespace {

constexpr const char* kPushFooter = R"(Examples:
  sortie push --hosts 'gpu[01-16]' data/ /scratch/            the folder becomes /scratch/data on each host
  sortie push --hosts 'gpu[01-16]' model.bin /scratch/m.bin   one file, under another name
  sortie push --config job.toml a.bin b.bin work/             to work/ in the home folder, on the hosts of a job

If REMOTE ends with /, or there are several LOCALs, it is the folder that receives them; otherwise it is the new name of LOCAL.
Only pieces that differ are sent. An interrupted push continues where it stopped. Each file is replaced as a whole.
With two or more hosts and 4 MiB or more, hosts forward pieces to each other, so that this machine sends each piece once.
That is several times as fast with many hosts behind a slow link of this machine. With --relay off this machine sends
everything itself, for hosts that can not reach each other.
)";

constexpr const char* kPullFooter = R"(Examples:
  sortie pull --hosts 'gpu[01-04]' /scratch/run7/metrics results   results/gpu01/metrics, results/gpu02/...
  sortie pull --config job.toml /var/log/nvidia.log work/out logs  several paths, to logs/HOST/
  sortie pull --hosts @gpu --exclude gpu07 '/scratch/run7/*/metrics.json' m    patterns, expanded on the hosts: m/HOST/eval/metrics.json

Patterns are expanded on each host: * and ? match characters within a name, [a-c] matches one character. Quote them, so that your
shell does not expand them. A match keeps its path, starting at the first component with a wildcard. A path that a host lacks is
reported with exit code 9; all other paths are copied. Only pieces that differ are transferred. Nothing is written outside LOCALDIR.
The umask applies to modes. Symlinks are copied as symlinks; those that point outside the copy are skipped, with a message.
)";

void add_copy_options(CLI::App& app, CopyOptions& options) {
  add_config_option(app, options.job);
  add_host_options(app, options.job);
  app.add_flag("--json", options.json, fmt::format("As JSON (schema sortie/{}/1)", app.get_name()));
}

}  // namespace

void add_copy_verbs(CLI::App& root, std::vector<Verb>& verbs, const Program&) {
  const auto pushed = std::make_shared<CopyOptions>();
  CLI::App* push = root.add_subcommand("push", "Copy files and folders to all hosts");
  push->footer(kPushFooter);
  push->add_option("paths", pushed->paths, "LOCAL... REMOTE")->required()->expected(2, 100000);
  add_copy_options(*push, *pushed);
  const std::map<std::string, RelayMode> modes = {
      {"auto", RelayMode::automatic}, {"on", RelayMode::on}, {"off", RelayMode::off}};
  push->add_option("--relay", pushed->relay,
                   "Forward pieces from host to host: auto (from 2 hosts and 4 MiB), on, off")
      ->transform(CLI::CheckedTransformer(modes))
      ->option_text("auto|on|off");
  verbs.push_back({push, [pushed] { return push_files(*pushed); }});

  const auto pulled = std::make_shared<CopyOptions>();
  CLI::App* pull = root.add_subcommand("pull", "Copy files and folders from all hosts");
  pull->footer(kPullFooter);
  pull->add_option("paths", pulled->paths, "REMOTE... LOCALDIR")->required()->expected(2, 100000);
  add_copy_options(*pull, *pulled);
  verbs.push_back({pull, [pulled] { return pull_files(*pulled); }});
}

}  // namespace sortie::launcher
