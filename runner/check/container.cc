#include <fmt/core.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>

#include "common/base/json_member.h"
#include "common/base/json_text.h"
#include "common/container/engine_command.h"
#include "runner/check/child.h"
#include "runner/check/parts.h"
#include "runner/container/engine.h"
#include "runner/container/image.h"

namespace sortie::runner::check {
namespace {

using container::CallOutput;
using container::Client;
using container::EngineFacts;
using Json = nlohmann::json;
using sortie::container::Engine;

/// Allows for a daemon that hangs or is busy with many requests.
constexpr std::chrono::milliseconds kEngineLimit{15000};
constexpr std::size_t kMaxMounts = 256;
constexpr const char* kContainerdRoot = "/var/lib/containerd";

/// Splits the output of a client, both streams in one text, into its JSON object and the other
/// text.
CallOutput apart(Engine engine, const ChildOutput& output) {
  CallOutput parts{output.status, output.text, ""};
  const Json object = engine == Engine::ctr ? Json::object() : json_object_in(output.text);
  if (!object.empty()) parts.out = json_text(object);
  for (std::size_t at = 0; at < output.text.size();) {
    const std::size_t end = std::min(output.text.find('\n', at), output.text.size());
    if (output.text[at] != '{') parts.err += output.text.substr(at, end - at) + '\n';
    at = end + 1;
  }
  return parts;
}

/// One word for why an engine does not answer; the launcher knows what to do about each.
const char* problem_of(const std::string& message) {
  if (message.find("may not use the engine") != message.npos) return "denied";
  return message.find("the engine does not run") != message.npos ? "stopped" : "other";
}

void put_space(Json& part, const std::string& root) {
  struct statvfs space {};
  if (root.empty() || ::statvfs(root.c_str(), &space) != 0) return;
  part["root"] = root;
  part["free_bytes"] = std::uint64_t{space.f_bavail} * space.f_frsize;
  part["total_bytes"] = std::uint64_t{space.f_blocks} * space.f_frsize;
}

bool exists(const char* path) {
  return ::access(path, F_OK) == 0;
}

bool has_gpu_runtime(const EngineFacts& facts) {
  return facts.nvidia_runtime ||
         !container::find_program("nvidia-container-runtime-hook").empty() ||
         !container::find_program("nvidia-ctk").empty() || exists("/etc/cdi/nvidia.yaml") ||
         exists("/var/run/cdi/nvidia.yaml");
}

void put_engine(Json& part, const EngineFacts& facts) {
  part["client"] = sortie::container::engine_name(facts.client.engine);
  part["version"] = facts.version.substr(facts.version.find(' ') + 1);
  part["rootless"] = facts.rootless;
  part["gpu_runtime"] = has_gpu_runtime(facts);
  put_space(part, facts.root.empty() ? kContainerdRoot : facts.root);
}

/// Reports the image's id if it exists. ctr lists no config id, so only its presence is reported.
void put_image(Json& part, const Client& client, const std::string& image,
               const ProcessDefaults& defaults) {
  const auto output =
      run_child(client.program,
                sortie::container::inspect_image_command(client.engine, client.program, image),
                nullptr, kEngineLimit, defaults);
  if (!output) {
    part["image_error"] = output.error().message;
    return;
  }
  if (client.engine == Engine::ctr) {
    part["image_present"] = output->status.success() &&
                            sortie::container::listed_image(image, output->text).has_value();
    return;
  }
  const auto found = container::read_image_json(apart(client.engine, *output).out);
  if (!output->status.success() || !found) return;
  part["image_present"] = true;
  part["image_id"] = found->id;
}

}  // namespace

Json container_part(const Json& request, const ProcessDefaults& defaults) {
  Json part = {{"part", "container"}};
  Json missing = Json::array();
  if (const auto mounts = request.find("mounts"); mounts != request.end() && mounts->is_array())
    for (const Json& source : *mounts) {
      struct stat info {};
      if (!source.is_string() || missing.size() >= kMaxMounts) continue;
      if (::stat(source.get<std::string>().c_str(), &info) != 0)
        missing.push_back(fmt::format("{}: {}", source.get<std::string>(), std::strerror(errno)));
    }
  part["missing_mounts"] = missing;
  const Result<Client> client = container::find_client(json_member::text(request, "engine"));
  if (!client) {
    part["problem"] = "absent";
    part["error"] = client.error().message;
    return part;
  }
  part["client"] = sortie::container::engine_name(client->engine);
  if (const Result<> may = container::may_start(*client); !may) {
    part["problem"] = "root";
    part["error"] = may.error().message.substr(0, may.error().message.find(';'));
    return part;
  }
  const auto info =
      run_child(client->program, sortie::container::info_command(client->engine, client->program),
                nullptr, kEngineLimit, defaults);
  if (!info) {
    part["problem"] = "stopped";
    part["error"] = info.error().message;
    return part;
  }
  const auto facts = container::understand_engine(*client, apart(client->engine, *info));
  if (!facts) {
    part["problem"] = problem_of(facts.error().message);
    part["error"] = facts.error().message;
    return part;
  }
  put_engine(part, *facts);
  if (const std::string image = json_member::text(request, "image"); !image.empty())
    put_image(part, facts->client, image, defaults);
  return part;
}

}  // namespace sortie::runner::check
