// `sortie image push`.
#include <CLI/CLI.hpp>
#include <memory>

#include "launcher/cli/verb.h"
#include "launcher/copy/image_push.h"

namespace sortie::launcher {
namespace {

constexpr const char* kImageFooter = R"(Examples:
  sortie image push trainer:1 --hosts 'gpu[01-16]'   copies an image of this machine to hosts, without a registry
  sortie image push trainer:1 --config job.toml      copies it to the hosts of a job, for its container engine
)";

constexpr const char* kImagePushFooter = R"(Examples:
  sortie image push trainer:1 --hosts 'gpu[01-16]'                   from this machine's Docker to theirs
  sortie image push trainer:1 --hosts h1,h2 --engine containerd      to containerd
  sortie image push trainer:1 --config job.toml --json               as JSON

The image is saved once on this machine. Hosts that have the image receive nothing; hosts that have its first layers receive
the others (Docker). Hosts forward the data to each other. The command fails unless all hosts have the same image id at the end.
)";

}  // namespace

void add_image_verbs(CLI::App& root, std::vector<Verb>& verbs, const Program&) {
  CLI::App* image = root.add_subcommand("image", "Copy container images to hosts");
  image->footer(kImageFooter);
  image->require_subcommand(1);

  const auto options = std::make_shared<ImagePushOptions>();
  CLI::App* push = image->add_subcommand("push", "Copy an image from this machine to all hosts");
  push->footer(kImagePushFooter);
  push->add_option("image", options->image, "IMAGE, as the engine here knows it")->required();
  add_config_option(*push, options->job);
  add_host_options(*push, options->job);
  push->add_option("--engine", options->engine,
                   "Engine of the hosts; without it the config's, else docker")
      ->check(CLI::IsMember({"docker", "podman", "containerd"}))
      ->option_text("docker|podman|containerd");
  push->add_option("--from", options->from, "Engine of this machine; without it the same")
      ->check(CLI::IsMember({"docker", "podman", "containerd"}))
      ->option_text("docker|podman|containerd");
  const std::map<std::string, RelayMode> modes = {
      {"auto", RelayMode::automatic}, {"on", RelayMode::on}, {"off", RelayMode::off}};
  push->add_option("--relay", options->relay,
                   "Forward pieces from host to host: auto (from 2 hosts and 4 MiB), on, off")
      ->transform(CLI::CheckedTransformer(modes))
      ->option_text("auto|on|off");
  push->add_flag("--json", options->json, "As JSON (schema sortie/image_push/1)");
  verbs.push_back({push, [options] { return push_image(*options); }});
}

}  // namespace sortie::launcher
