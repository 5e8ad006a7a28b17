#include "launcher/check/requests.h"

#include <fmt/core.h>
#include <sys/random.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "common/base/check.h"
#include "common/base/hex.h"
#include "common/base/json_text.h"
#include "common/config/container.h"
#include "common/config/hostlist.h"
#include "common/config/stage.h"
#include "common/config/validation_sets.h"
#include "launcher/check/local_address.h"
#include "launcher/supervise/meeting.h"

namespace sortie::launcher::check {
namespace {

using Json = nlohmann::json;

/// What decides how a rank of this host finds and loads its program: the variables of the job
/// without secrets, and the GPUs of all its ranks.
Json rank_environment(const LaunchPlan& plan, const HostPlan& host) {
  Json lines = Json::array();
  for (const auto& [name, value] : plan.env)
    if (!plan.secrets.contains(name)) lines.push_back(name + '=' + value);
  if (host.ranks.empty()) return lines;
  std::string all;
  for (const RankPlan& rank : host.ranks)
    all += fmt::format("{}{}", all.empty() ? "" : ",", rank.slot);
  for (const auto& [name, value] : host.ranks.front().env)
    if (name == "CUDA_VISIBLE_DEVICES")
      lines.push_back(name + '=' + all);
    else if (name.starts_with("CUDA_"))
      lines.push_back(name + '=' + value);
  return lines;
}

Json program_of(const LaunchPlan& plan, const HostPlan& host) {
  return {{"name", plan.argv.front()},
          {"work_dir", plan.work_dir},
          {"env", rank_environment(plan, host)}};
}

/// Whether all ranks of a host use the one GPU that the user's CUDA_VISIBLE_DEVICES names.
bool uses_one_gpu(const LaunchPlan& plan) {
  return std::ranges::any_of(plan.env, [](const auto& variable) {
    return variable.first == "CUDA_VISIBLE_DEVICES" && !variable.second.empty() &&
           variable.second.find(',') == std::string::npos;
  });
}

Json folder(const char* role, const std::string& path, bool write) {
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

bool names_stage(const std::string& path) {
  return path.starts_with(config::kStagePlaceholder);
}

/// Resolves "{stage}/NAME/rest" with runner.stage.
StagedFile staged_file(const config::RunnerConfig& runner, const std::string& path) {
  StagedFile file = {path, "", ""};
  std::string_view rest = std::string_view(path).substr(config::kStagePlaceholder.size());
  rest.remove_prefix(std::min(rest.find_first_not_of('/'), rest.size()));
  const std::string_view name = rest.substr(0, rest.find('/'));
  for (const std::string& text : runner.stage)
    if (const config::StageItem item = config::parse_stage_item(text); item.name == name)
      file.here = item.path + std::string(rest.substr(name.size()));
  std::error_code error;
  if (file.here.empty())
    file.error = "runner.stage has nothing of that name";
  else if (!std::filesystem::exists(file.here, error))
    file.error = fmt::format("{}: {}", file.here,
                             error ? error.message() : "No such file or directory on this machine");
  return file;
}

/// Size of a file, or of all files below a folder.
std::uint64_t bytes_of(const std::string& path) {
  namespace fs = std::filesystem;
  std::error_code error;
  if (!fs::is_directory(path, error)) {
    const auto bytes = fs::file_size(path, error);
    return error ? 0 : bytes;
  }
  std::uint64_t sum = 0;
  for (fs::recursive_directory_iterator it(path, error), end; !error && it != end;
       it.increment(error))
    if (std::error_code none; it->is_regular_file(none)) sum += it->file_size(none);
  return sum;
}

/// Moves the paths below {stage} from `expect.files` to `expect.staged`, and adds the program if it
/// is below {stage}.
void expect_staged(const config::RunnerConfig& runner, Expectations& expect) {
  std::vector<std::string> named;
  std::erase_if(expect.files, [&](const std::string& path) {
    if (names_stage(path)) named.push_back(path);
    return names_stage(path);
  });
  if (names_stage(expect.program)) named.push_back(expect.program);
  for (const std::string& path : named) expect.staged.push_back(staged_file(runner, path));
  for (const std::string& text : runner.stage) {
    const config::StageItem item = config::parse_stage_item(text);
    expect.staged_bytes += bytes_of(item.path);
    const bool known = std::ranges::any_of(
        expect.staged, [&](const StagedFile& file) { return file.here == item.path; });
    if (!known)
      expect.staged.push_back(staged_file(runner, fmt::format("{{stage}}/{}", item.name)));
  }
}

bool loopback(const std::string& address) {
  return address.starts_with("127.") || address == "::1";
}

HostNetwork network_of(const HostResult& host) {
  HostNetwork network;
  network.name = host.host;
  network.hostname = host.report.host->hostname;
  if (auto parsed = parse_addresses(host.report.host->addresses))
    network.addresses = *std::move(parsed);
  return network;
}

/// The address that the ranks of the other hosts would connect to if this host had rank 0.
std::string meeting_address(const HostResult& host, const std::vector<const HostResult*>& others) {
  std::vector<HostNetwork> networks = {network_of(host)};
  for (const HostResult* other : others)
    if (other->report.host) networks.push_back(network_of(*other));
  const Result<Meeting> meeting = choose_meeting(networks, /*interface=*/"");
  return meeting ? meeting->address : "";
}

}  // namespace

Expectations expectations(const PlannedJob& planned, bool only_hosts) {
  const config::JobConfig& job = planned.loaded.job;
  Expectations expect;
  expect.world_size = planned.plan.world_size;
  expect.allow_same_machine = job.runner.allow_same_machine;
  expect.over_transport = !job.runner.transport.empty();
  if (!planned.plan.tunnel.empty() && planned.plan.hosts.size() > 1)
    expect.tunnel_port = job.runner.network.tunnel_port;
  // Routed through the launcher, sites need no direct links.
  if (config::sites_of(planned.hosts).size() > 1 && job.outer.route == "direct")
    expect.sites = {job.outer.port, job.outer.streams};
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
  expect.work_dir = job.runner.work_dir;
  // Only Sortie's own trainer reads data and writes checkpoints as the config has it.
  if (job.runner.program.empty()) {
    expect.device = job.trainer.device;
    // In an image, or not yet on the hosts, it can not be asked.
    expect.ask_trainer = !expect.container && !names_stage(expect.program);
    expect.one_gpu = uses_one_gpu(planned.plan);
    expect.save_dir = job.trainer.save_dir;
    expect.files = data_files(job.data);
  }
  expect_staged(job.runner, expect);
  if (expect.container &&
      job.runner.program.empty()) {  // map paths in the container to paths on the host
    expect.save_dir = config::on_host(container, expect.save_dir);
    for (std::string& path : expect.files) path = config::on_host(container, path);
  }
  for (const std::string& path : expect.files)
    if (const auto sample = sample_file(path)) expect.local_files[path] = *sample;
  return expect;
}

std::string look_request(const PlannedJob& job, const Expectations& expect, const HostPlan& host,
                         bool first) {
  const bool bare = !expect.program.empty() && !expect.container;
  Json request = {{"kind", "look"}, {"mpi", bare ? expect.mpi : "off"}};
  Json folders = {folder("cache", "~cache", false), folder("run", "~run", false),
                  folder("shm", "/dev/shm", false)};
  if (!expect.save_dir.empty()) folders.push_back(folder("save_dir", expect.save_dir, true));
  request["folders"] = folders;
  request["files"] = expect.files;
  if (expect.container)
    request["container"] = {{"engine", expect.container->engine},
                            {"image", expect.container->image},
                            {"mounts", expect.container->mounts}};
  if (bare && !names_stage(expect.program))  // a staged program is not on the hosts yet
    request["program"] = program_of(job.plan, host);
  if (!expect.program.empty() && first && job.plan.master_port > 0)
    request["port"] = job.plan.master_port;
  return json_text(request);
}

std::string trainer_request(const PlannedJob& job, const Expectations& expect, const HostPlan& host,
                            std::uint64_t limit_ms) {
  return json_text(Json{{"kind", "trainer"},
                        {"program", program_of(job.plan, host)},
                        {"cpu", expect.device == "cpu"},
                        {"limit_ms", limit_ms}});
}

std::string listen_request(const std::string& token, const std::string& address,
                           std::int64_t port) {
  Json request = {{"kind", "listen"}, {"token", token}, {"address", address}};
  if (port > 0) request["port"] = static_cast<std::uint64_t>(port);
  return json_text(request);
}

std::string link_request(const PeerAddress& peer, std::uint64_t limit_ms, std::uint64_t duration_ms,
                         std::int64_t streams) {
  return json_text(Json{{"kind", "link"},
                        {"name", peer.name},
                        {"address", peer.address},
                        {"port", peer.port},
                        {"limit_ms", limit_ms},
                        {"duration_ms", duration_ms},
                        {"streams", static_cast<std::uint64_t>(streams)}});
}

std::string reach_request(const std::vector<PeerAddress>& peers, std::uint64_t limit_ms) {
  Json list = Json::array();
  for (const PeerAddress& peer : peers)
    list.push_back({{"name", peer.name}, {"address", peer.address}, {"port", peer.port}});
  return json_text(Json{{"kind", "reach"}, {"limit_ms", limit_ms}, {"peers", list}});
}

std::string bandwidth_request(const PeerAddress& peer, std::uint64_t duration_ms) {
  return json_text(Json{{"kind", "bandwidth"},
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

std::string reach_address(const HostResult& host, const std::vector<const HostResult*>& others,
                          const std::string& interface) {
  if (!interface.empty())
    return host.report.host ? address_on(host.report.host->addresses, interface) : "";
  if (host.host == "localhost") {
    for (const HostResult* other : others)
      if (!other->address.empty() && !loopback(other->address))
        return address_towards(other->address);
    return "127.0.0.1";
  }
  if (!host.address.empty()) return host.address;
  if (!host.report.host) return "";
  if (!host.report.host->ssh_address.empty()) return host.report.host->ssh_address;
  return meeting_address(host, others);
}

}  // namespace sortie::launcher::check
