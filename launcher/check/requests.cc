#include "launcher/check/requests.h"

#include <fmt/core.h>
#include <sys/random.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "common/base/check.h"
#include "common/base/hex.h"
#include "common/config/container.h"
#include "common/config/validation_sets.h"
#include "launcher/check/local_address.h"
#include "launcher/supervise/meeting.h"

namespace sortie::launcher::check {
namespace {

using nlohmann::json;

std::string dump(const json& request) {
  return request.dump(-1, ' ', false, json::error_handler_t::replace);
}

json folder(const char* role, const std::string& path, bool write) {
  return {{"role", role}, {"path", path}, {"write", write}};
}

std::vector<std::string> data_files(const config::DataConfig& data) {
  std::vector<std::string> files;
  for (const config::DataPath& data_path : config::data_paths(data)) {
    if (!data_path.is_prefix) files.push_back(data_path.path);
    for (const char* ending : {".bin", ".idx"})
      if (data_path.is_prefix) files.push_back(data_path.path + ending);
  }
  std::ranges::sort(files);
  const auto same = std::ranges::unique(files);
  files.erase(same.begin(), same.end());
  return files;
}

bool loopback(const std::string& address) {
  return address.starts_with("127.") || address == "::1";
}

}  // namespace

Expectations expectations(const PlannedJob& planned, bool only_hosts) {
  const config::JobConfig& job = planned.loaded.job;
  Expectations expect;
  expect.world_size = planned.plan.world_size;
  const config::ContainerConfig& container = job.runner.container;
  if (planned.plan.container) {
    const wire::ContainerSpec& spec = *planned.plan.container;
    expect.container = {spec.engine,    spec.image, container.pull, spec.gpus, spec.ipc,
                        spec.shm_bytes, {}};
    for (const wire::Mount& mount : spec.mounts) expect.container->mounts.push_back(mount.source);
  }
  if (only_hosts) return expect;
  expect.program = planned.plan.argv.front();
  expect.mpi = planned.plan.mpi;
  // Only Sortie's own trainer reads data and writes checkpoints as the config has it.
  if (!job.runner.program.empty()) return expect;
  expect.save_dir = job.trainer.save_dir;
  expect.files = data_files(job.data);
  if (expect.container) {  // where the hosts have what the config names inside
    expect.save_dir = config::on_host(container, expect.save_dir);
    for (std::string& path : expect.files) path = config::on_host(container, path);
  }
  for (const std::string& path : expect.files)
    if (const auto sample = sample_file(path)) expect.local_files[path] = *sample;
  return expect;
}

std::string look_request(const PlannedJob& job, const Expectations& expect, bool first) {
  const bool bare = !expect.program.empty() && !expect.container;
  json request = {{"kind", "look"}, {"mpi", bare ? expect.mpi : "off"}};
  json folders = {folder("cache", "~cache", false), folder("run", "~run", false),
                  folder("shm", "/dev/shm", false)};
  if (!expect.save_dir.empty()) folders.push_back(folder("save_dir", expect.save_dir, true));
  request["folders"] = folders;
  request["files"] = expect.files;
  if (expect.container)
    request["container"] = {{"engine", expect.container->engine},
                            {"image", expect.container->image},
                            {"mounts", expect.container->mounts}};
  if (bare) {
    json program = {{"name", expect.program}, {"work_dir", job.plan.work_dir}};
    for (const auto& [name, value] : job.plan.env)
      if (name == "PATH") program["path"] = value;
    request["program"] = program;
  }
  if (!expect.program.empty() && first && job.plan.master_port > 0)
    request["port"] = job.plan.master_port;
  return dump(request);
}

std::string listen_request(const std::string& token, const std::string& address) {
  return dump({{"kind", "listen"}, {"token", token}, {"address", address}});
}

std::string reach_request(const std::vector<PeerAddress>& peers, std::uint64_t limit_ms) {
  json list = json::array();
  for (const PeerAddress& peer : peers)
    list.push_back({{"name", peer.name}, {"address", peer.address}, {"port", peer.port}});
  return dump({{"kind", "reach"}, {"limit_ms", limit_ms}, {"peers", list}});
}

std::string bandwidth_request(const PeerAddress& peer, std::uint64_t duration_ms) {
  return dump({{"kind", "bandwidth"},
               {"name", peer.name},
               {"address", peer.address},
               {"port", peer.port},
               {"duration_ms", duration_ms}});
}

std::string random_token() {
  std::array<char, 16> bytes;
  SORTIE_CHECK(::getrandom(bytes.data(), bytes.size(), 0) == ssize_t{bytes.size()});
  return hex({bytes.data(), bytes.size()});
}

std::string address_on(const std::vector<std::string>& addresses, const std::string& wanted) {
  const auto parsed = parse_addresses(addresses);
  if (!parsed) return "";
  const auto there = matching(*parsed, wanted);
  return there.empty() ? "" : there.front().address;
}

std::string reach_address(const HostResult& host, const std::vector<std::string>& others,
                          const std::string& interface) {
  if (!interface.empty())
    return host.report.host ? address_on(host.report.host->addresses, interface) : "";
  if (host.host == "localhost") {
    for (const std::string& other : others)
      if (!other.empty() && !loopback(other)) return address_towards(other);
    return "127.0.0.1";
  }
  if (!host.address.empty()) return host.address;
  return host.report.host ? host.report.host->ssh_address : "";
}

}  // namespace sortie::launcher::check
