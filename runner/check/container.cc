#include <fmt/core.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <nlohmann/json.hpp>

#include "common/container/engine_command.h"
#include "runner/check/child.h"
#include "runner/check/parts.h"
#include "runner/environment.h"

namespace sortie::runner::check {
namespace {

using nlohmann::json;

/// A daemon that hangs, or is asked by many at once.
constexpr std::chrono::milliseconds kEngineLimit{15000};
constexpr std::size_t kMaxSaid = 400;
constexpr std::size_t kMaxMounts = 256;
/// Where engines are, for users whose PATH over ssh is short.
constexpr const char* kMorePaths = ":/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin";

std::string text_in(const json& object, const char* key) {
  const auto it = object.find(key);
  return it != object.end() && it->is_string() ? it->get<std::string>() : std::string();
}

const json& object_in(const json& object, const char* key) {
  static const json empty = json::object();
  const auto it = object.find(key);
  return it != object.end() && it->is_object() ? *it : empty;
}

std::string find_in_path(const std::string& name) {
  const char* path = std::getenv("PATH");
  for (const std::string& candidate :
       program_candidates(name, std::string(path ? path : "") + kMorePaths))
    if (candidate.starts_with('/') && ::access(candidate.c_str(), X_OK) == 0) return candidate;
  return "";
}

/// What a client printed, on one line.
std::string said(const std::string& text) {
  std::string line;
  for (const char c : text.substr(0, kMaxSaid)) line += c == '\n' ? ' ' : c;
  while (line.ends_with(' ')) line.pop_back();
  return line;
}

/// Clients print warnings around the object.
json object_of(const std::string& text) {
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    if (text[at] == '{') {
      json whole = json::parse(text.substr(at), nullptr, false);
      if (whole.is_object()) return whole;
      json line = json::parse(text.substr(at, end - at), nullptr, false);
      if (line.is_object()) return line;
    }
    at = end + 1;
  }
  return json::object();
}

/// Why an engine does not answer, in one word: the launcher knows what to do about each.
const char* problem_of(const std::string& text) {
  const auto has = [&](const char* part) { return text.find(part) != text.npos; };
  if (has("permission denied") || has("Permission denied")) return "denied";
  if (has("Cannot connect") || has("cannot connect") || has("connection refused") ||
      has("no such file") || has("Is the docker daemon running") || has("failed to dial"))
    return "stopped";
  return "other";
}

/// "  Version:  1.6.20" below "Server:", as ctr says it.
std::string server_version(const std::string& text) {
  const std::size_t server = text.find("Server:");
  const std::size_t at = server == text.npos ? server : text.find("Version:", server);
  if (at == text.npos) return "";
  const std::size_t begin = text.find_first_not_of(" \t", at + 8);
  if (begin == text.npos) return "";
  return text.substr(begin, text.find_first_of(" \n", begin) - begin);
}

void put_space(json& part, const std::string& root) {
  struct statvfs space {};
  if (root.empty() || ::statvfs(root.c_str(), &space) != 0) return;
  part["root"] = root;
  part["free_bytes"] = std::uint64_t{space.f_bavail} * space.f_frsize;
  part["total_bytes"] = std::uint64_t{space.f_blocks} * space.f_frsize;
}

bool exists(const char* path) {
  return ::access(path, F_OK) == 0;
}

bool has_gpu_runtime(const json& info) {
  return object_in(info, "Runtimes").contains("nvidia") ||
         !find_in_path("nvidia-container-runtime-hook").empty() ||
         !find_in_path("nvidia-ctk").empty() || exists("/etc/cdi/nvidia.yaml") ||
         exists("/var/run/cdi/nvidia.yaml");
}

void put_info(json& part, container::Engine engine, const std::string& text) {
  const json info = object_of(text);
  std::string version, root;
  bool rootless = false;
  if (engine == container::Engine::ctr) {
    version = server_version(text);
    root = "/var/lib/containerd";
  } else if (engine == container::Engine::podman) {
    version = text_in(object_in(info, "version"), "Version");
    root = text_in(object_in(info, "store"), "graphRoot");
    rootless = object_in(object_in(info, "host"), "security").value("rootless", json()) == true;
  } else {
    version = text_in(info, "ServerVersion");
    root = text_in(info, "DockerRootDir");
    if (const auto options = info.find("SecurityOptions");
        options != info.end() && options->is_array())
      for (const json& option : *options)
        rootless = rootless || (option.is_string() && option.get<std::string>() == "name=rootless");
  }
  if (root.empty() && engine == container::Engine::nerdctl) root = "/var/lib/containerd";
  part["version"] = version;
  part["rootless"] = rootless;
  part["gpu_runtime"] = has_gpu_runtime(info);
  put_space(part, root);
}

/// Its id where it is there; ctr has no config's id, but a line.
void put_image(json& part, container::Engine engine, const std::string& program,
               const std::string& image, const ProcessDefaults& defaults) {
  const auto output = run_child(program, container::inspect_image_command(engine, program, image),
                                {}, kEngineLimit, defaults);
  if (!output) {
    part["image_error"] = output.error().message;
    return;
  }
  if (engine == container::Engine::ctr) {
    part["image_present"] =
        output->status.success() && output->text.find(image) != std::string::npos;
    return;
  }
  const json found = object_of(output->text);
  std::string id = text_in(found, "Id");
  if (!output->status.success() || id.empty()) return;
  if (!id.starts_with("sha256:")) id = "sha256:" + id;
  part["image_present"] = true;
  part["image_id"] = id;
  if (const auto size = found.find("Size"); size != found.end() && size->is_number_unsigned())
    part["image_bytes"] = *size;
}

}  // namespace

json container_part(const json& request, const ProcessDefaults& defaults) {
  json part = {{"part", "container"}};
  json missing = json::array();
  if (const auto mounts = request.find("mounts"); mounts != request.end() && mounts->is_array())
    for (const json& source : *mounts) {
      struct stat info {};
      if (!source.is_string() || missing.size() >= kMaxMounts) continue;
      if (::stat(source.get<std::string>().c_str(), &info) != 0)
        missing.push_back(fmt::format("{}: {}", source.get<std::string>(), std::strerror(errno)));
    }
  part["missing_mounts"] = missing;
  std::string tried, program;
  container::Engine engine = container::Engine::docker;
  for (const container::Engine client : container::clients_of(text_in(request, "engine"))) {
    const std::string name(container::engine_name(client));
    tried += (tried.empty() ? "" : " or ") + name;
    engine = client;
    if (program = find_in_path(name); !program.empty()) break;
  }
  if (program.empty()) {
    part["problem"] = "absent";
    part["error"] = fmt::format("no {} in PATH", tried.empty() ? "such engine" : tried);
    return part;
  }
  part["client"] = container::engine_name(engine);
  const auto info =
      run_child(program, container::info_command(engine, program), {}, kEngineLimit, defaults);
  if (!info) {
    part["problem"] = "stopped";
    part["error"] = info.error().message;
    return part;
  }
  put_info(part, engine, info->text);
  if (!info->status.success() || text_in(part, "version").empty()) {
    const json answer = object_of(info->text);
    std::string why = info->text;
    if (const auto errors = answer.find("ServerErrors"); errors != answer.end() &&
                                                         errors->is_array() && !errors->empty() &&
                                                         errors->front().is_string())
      why = errors->front().get<std::string>();
    part["problem"] = problem_of(why);
    part["error"] = said(why);
    return part;
  }
  if (const std::string image = text_in(request, "image"); !image.empty())
    put_image(part, engine, program, image, defaults);
  return part;
}

}  // namespace sortie::runner::check
