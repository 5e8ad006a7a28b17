#include "runner/container/engine.h"

#include <fmt/core.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "common/base/atomic_file.h"
#include "common/base/json_member.h"
#include "common/base/split.h"
#include "runner/job/environment.h"

namespace sortie::runner::container {
namespace {

using Json = nlohmann::json;

constexpr std::chrono::milliseconds kAskLimit{20000};
constexpr std::size_t kMaxWords = 1000;

std::string text_of(const char* variable) {
  const char* value = std::getenv(variable);
  return value ? value : "";
}

/// Includes the usual folders: a non-interactive SSH session has a short PATH.
std::string search_path() {
  const std::string home = text_of("HOME");
  std::string path = text_of("PATH");
  if (!path.empty()) path += ':';
  path += "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin:/opt/bin:/snap/bin";
  if (!home.empty()) path += ':' + home + "/bin:" + home + "/.local/bin";
  return path;
}

/// The socket that the message names, "" if there is none.
std::string socket_in(std::string_view text) {
  for (const std::string_view mark : {"unix://", "unix "}) {
    const std::size_t at = text.find(mark);
    if (at == std::string_view::npos) continue;
    text.remove_prefix(at + mark.size());
    while (text.starts_with("//")) text.remove_prefix(1);
    text = text.substr(0, text.find_first_of(" :\"'\n"));
    while (text.ends_with('.')) text.remove_suffix(1);
    return std::string(text);
  }
  const std::size_t at = text.find("/run/containerd/");
  if (at == std::string_view::npos) return {};
  text.remove_prefix(at);
  return std::string(text.substr(0, text.find_first_of(" :\"'\n")));
}

/// Reads /etc/group, because a static program has no name service.
std::string name_of_group(gid_t gid) {
  const Result<std::string> groups = read_file("/etc/group");
  std::string_view left = groups ? *groups : std::string_view();
  const std::string number = fmt::format(":{}:", gid);
  while (!left.empty()) {
    const std::string_view line = take_line(left);
    const std::size_t colon = line.find(':');
    const std::size_t second = colon == std::string_view::npos ? colon : line.find(':', colon + 1);
    if (second != std::string_view::npos && line.substr(second).starts_with(number))
      return std::string(line.substr(0, colon));
  }
  return std::to_string(gid);
}

std::string who_may(const std::string& socket) {
  struct stat info {};
  if (socket.empty() || ::stat(socket.c_str(), &info) != 0)
    return "this user must be allowed to use the engine";
  if ((info.st_mode & S_IWGRP) == 0 || info.st_gid == 0)
    return fmt::format("{} is for user {} alone; use a rootless engine", socket, info.st_uid);
  return fmt::format(
      "{} is for group \"{}\": add this user to it (usermod -aG {} USER) and log in anew", socket,
      name_of_group(info.st_gid), name_of_group(info.st_gid));
}

bool has(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

bool is_true(const Json& object, const char* name) {
  return object.is_object() && object.contains(name) && object[name].is_boolean() &&
         object[name].get<bool>();
}

/// Reads the output of docker and nerdctl, or of podman, whatever the client's file is called.
bool read_info(const Json& info, EngineFacts& facts) {
  if (!info.is_object()) return false;
  if (info.contains("host")) {
    facts.client.engine = Engine::podman;
    if (info.contains("version")) facts.version = json_member::text(info["version"], "Version");
    const Json& host = info["host"];
    facts.rootless =
        host.is_object() && host.contains("security") && is_true(host["security"], "rootless");
    if (info.contains("store")) facts.root = json_member::text(info["store"], "graphRoot");
    return true;
  }
  facts.version = json_member::text(info, "ServerVersion");
  facts.root = json_member::text(info, "DockerRootDir");
  if (info.contains("SecurityOptions") && info["SecurityOptions"].is_array())
    for (const Json& option : info["SecurityOptions"]) {
      const std::string text = option.is_string() ? option.get<std::string>() : std::string();
      facts.rootless = facts.rootless || has(text, "name=rootless");
      facts.userns_remap = facts.userns_remap || has(text, "name=userns");
    }
  facts.live_restore = is_true(info, "LiveRestoreEnabled");
  facts.nvidia_runtime = info.contains("Runtimes") && info["Runtimes"].is_object() &&
                         info["Runtimes"].contains("nvidia");
  return !facts.version.empty();
}

/// The version in "  Version:  1.6.20~ds1" after "Server:".
std::string ctr_version(std::string_view text) {
  const std::size_t server = text.find("Server:");
  const std::size_t at = server == std::string_view::npos ? server : text.find("Version:", server);
  if (at == std::string_view::npos) return {};
  text.remove_prefix(at + 8);
  text.remove_prefix(std::min(text.size(), text.find_first_not_of(' ')));
  return std::string(text.substr(0, text.find('\n')));
}

}  // namespace

std::string find_program(const std::string& name) {
  for (const std::string& path : program_candidates(name, search_path())) {
    struct stat info {};
    if (path.starts_with('/') && ::stat(path.c_str(), &info) == 0 && S_ISREG(info.st_mode) &&
        ::access(path.c_str(), X_OK) == 0)
      return path;
  }
  return "";
}

Result<Client> find_client(std::string_view engine) {
  std::string names;
  for (const Engine candidate : sortie::container::clients_of(engine)) {
    const std::string name(sortie::container::engine_name(candidate));
    if (std::string path = find_program(name); !path.empty())
      return Client{candidate, std::move(path)};
    names += (names.empty() ? "" : " or ") + name;
  }
  if (names.empty())
    return fail(ErrorCode::protocol, fmt::format("no container engine is called \"{}\"", engine));
  return fail(ErrorCode::unsupported,
              fmt::format("container engine: {} is not installed here (looked in {})", names,
                          search_path()));
}

Result<> may_start(const Client& client) {
  if (client.engine != Engine::ctr || ::geteuid() == 0) return {};
  return fail(ErrorCode::unsupported,
              "ctr: only root can start containers with it, because it mounts images itself; sign "
              "in as root, or install nerdctl with a rootless containerd");
}

std::string last_words(std::string_view text) {
  std::string words;
  while (!text.empty()) {
    std::string_view line = take_line(text);
    while (!line.empty() && (line.back() == ' ' || line.back() == '\r')) line.remove_suffix(1);
    if (line.empty() || line.starts_with("See '") || line.starts_with("Run '") ||
        line.starts_with("Usage:") || line.starts_with("WARNING:"))
      continue;
    words = line.substr(0, kMaxWords);
  }
  for (const std::string_view prefix : {"Error response from daemon: ", "Error: "})
    if (words.starts_with(prefix)) words.erase(0, prefix.size());
  for (const std::string_view prefix : {"docker: ", "Error response from daemon: "})
    if (words.starts_with(prefix)) words.erase(0, prefix.size());
  while (words.ends_with('.')) words.pop_back();
  return words;
}

Error engine_error(const Client& client, std::string_view what, const CallOutput& output,
                   ErrorCode code) {
  const std::string name(sortie::container::engine_name(client.engine));
  const std::string all = output.err + output.out;
  if (has(all, "permission denied") && (has(all, "unix://") || has(all, ".sock")))
    return {ErrorCode::unsupported,
            fmt::format("{}: this user may not use the engine: {}", name, who_may(socket_in(all)))};
  if (has(all, "Cannot connect to the Docker daemon") ||
      (has(all, "connection refused") && !socket_in(all).empty()) ||  // else a registry
      has(all, "no such file or directory\": unavailable") ||
      (has(all, "cannot access containerd socket") && has(all, "no such file")))
    return {ErrorCode::unsupported,
            fmt::format("{}: the engine does not run here{}; start it (systemctl start {})", name,
                        socket_in(all).empty() ? "" : ", no process listens at " + socket_in(all),
                        client.engine == Engine::docker ? "docker" : "containerd")};
  std::string words = last_words(output.err);
  if (words.empty()) words = last_words(output.out);
  if (words.empty()) words = output.status.to_string();
  return {code, fmt::format("{}: {}: {}", name, what, words)};
}

Result<EngineFacts> understand_engine(Client client, CallOutput output) {
  EngineFacts facts;
  facts.client = client;
  bool understood = false;
  if (client.engine == Engine::ctr) {
    facts.version = ctr_version(output.out);
    understood = !facts.version.empty();
  } else {
    const Json info = Json::parse(output.out, nullptr, false);
    if (info.is_object() && info.contains("ServerErrors") && info["ServerErrors"].is_array())
      for (const Json& error : info["ServerErrors"])
        if (error.is_string()) output.err += '\n' + error.get<std::string>();
    understood = read_info(info, facts);
  }
  if (!output.status.success() || !understood) {
    if (output.err.empty()) output.err = "its answer is not understood";
    return std::unexpected(engine_error(client, "info", output, ErrorCode::unsupported));
  }
  facts.version =
      fmt::format("{} {}", sortie::container::engine_name(facts.client.engine), facts.version);
  return facts;
}

boost::asio::awaitable<Result<EngineFacts>> ask_engine(EngineCalls& calls, Client client) {
  Call call;
  call.argv = sortie::container::info_command(client.engine, client.program);
  call.limit = kAskLimit;
  Result<CallOutput> output = co_await calls.run(std::move(call));
  if (!output && output.error().code == ErrorCode::timeout)
    co_return fail(ErrorCode::timeout, fmt::format("{}: the engine does not answer within {} s",
                                                   sortie::container::engine_name(client.engine),
                                                   kAskLimit.count() / 1000));
  if (!output) co_return std::unexpected(output.error());
  co_return understand_engine(std::move(client), std::move(*output));
}

}  // namespace sortie::runner::container
