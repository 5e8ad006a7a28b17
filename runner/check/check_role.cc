#include "runner/check/check_role.h"

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "common/asio/spawn.h"
#include "common/base/json_member.h"
#include "common/base/json_text.h"
#include "runner/check/folders.h"
#include "runner/check/parts.h"
#include "runner/check/peers.h"
#include "runner/check/site_link.h"
#include "runner/cleanup/run_folder.h"

namespace sortie::runner::check {
namespace asio = boost::asio;
using Json = nlohmann::json;
using std::chrono::milliseconds;
namespace {

constexpr std::size_t kMaxRequest = 1u << 20;
constexpr std::size_t kMaxReport = 256u << 10;
constexpr std::size_t kMaxQueue = 16;
constexpr std::size_t kMaxPeers = 1024;
constexpr auto kFlushLimit = std::chrono::seconds(2);
constexpr milliseconds kMaxReach{30000}, kMaxBandwidth{10000}, kMaxTrainer{90000};

const Json& list_in(const Json& object, const char* key) {
  static const Json empty = Json::array();
  const auto it = object.find(key);
  return it != object.end() && it->is_array() ? *it : empty;
}

milliseconds time_in(const Json& object, const char* key, milliseconds most) {
  return std::min(most,
                  milliseconds(std::min<std::uint64_t>(json_member::u64(object, key), 1000000)));
}

bool peer_in(const Json& object, Peer& peer) {
  if (!object.is_object()) return false;
  boost::system::error_code error;
  peer.name = json_member::text(object, "name");
  peer.address = asio::ip::make_address(json_member::text(object, "address"), error);
  const std::uint64_t port = json_member::u64(object, "port");
  peer.port = static_cast<unsigned short>(port);
  return !error && port > 0 && port < 65536;
}

/// Resolves "~cache" and "~run", folders that only the host knows.
std::string folder_path(const std::string& path) {
  std::error_code ignored;
  if (path == "~cache")
    return std::filesystem::read_symlink("/proc/self/exe", ignored).parent_path().string();
  if (path == "~run") return look_at_run_folders().base;
  return path;
}

Json folder_json(const Json& wanted) {
  const std::string path = folder_path(json_member::text(wanted, "path"));
  const bool write = wanted.is_object() && wanted.value("write", Json()) == Json(true);
  const FolderFacts facts = look_at_folder(path, write);
  return {{"role", json_member::text(wanted, "role")},
          {"path", path},
          {"at", facts.at},
          {"exists", facts.exists},
          {"error", facts.error},
          {"free_bytes", facts.free_bytes},
          {"total_bytes", facts.total_bytes},
          {"free_inodes", facts.free_inodes},
          {"total_inodes", facts.total_inodes},
          {"read_only", facts.read_only},
          {"tried", write},
          {"writable", facts.writable},
          {"sync_us", facts.sync_us}};
}

Json file_json(const std::string& path) {
  const FileFacts facts = look_at_file(path);
  return {{"path", path},
          {"error", facts.error},
          {"size", facts.size},
          {"hash", fmt::format("{:016x}", facts.hash)}};
}

}  // namespace

CheckRole::~CheckRole() {
  if (listener_) listener_->close();
}

Result<> CheckRole::take(const std::string& text) {
  if (text.size() > kMaxRequest || requests_.size() >= kMaxQueue)
    return fail(ErrorCode::protocol, "CheckRequest: too large, or too many at once");
  requests_.push_back(text);
  if (!std::exchange(answering_, true)) spawn(io_, answer_all());
  return {};
}

asio::awaitable<void> CheckRole::answer_all() {
  const auto self = shared_from_this();
  while (!requests_.empty()) {
    const std::string text = std::move(requests_.front());
    requests_.pop_front();
    const Json request = Json::parse(text, nullptr, /*allow_exceptions=*/false);
    if (request.is_object()) co_await answer(request);
    Json done = {{"part", "done"},
                 {"kind", request.is_object() ? json_member::text(request, "kind") : ""}};
    co_await report(done);
  }
  answering_ = false;
}

asio::awaitable<void> CheckRole::answer(const Json& request) {
  const std::string kind = json_member::text(request, "kind");
  if (kind == "clock") {
    const auto now = std::chrono::system_clock::now().time_since_epoch();
    send({{"part", "clock"},
          {"unix_us", std::chrono::duration_cast<std::chrono::microseconds>(now).count()}});
  } else if (kind == "look") {
    co_await look_around(request);
  } else if (kind == "trainer") {
    const milliseconds limit = time_in(request, "limit_ms", kMaxTrainer);
    send({{"part", "at"}, {"what", "sortie-train devices"}});
    co_await link_.flush(kFlushLimit);
    co_await report(trainer_part(request, limit, defaults_));
  } else if (kind == "listen") {
    listen(request);
  } else if (kind == "reach") {
    co_await reach(request);
  } else if (kind == "bandwidth") {
    co_await bandwidth(request);
  } else if (kind == "link") {
    co_await link(request);
  }
}

/// What can hang (a dead file system, a lost GPU) is checked last and named before it is touched.
asio::awaitable<void> CheckRole::look_around(const Json& request) {
  co_await report(host_part(defaults_));
  if (const std::uint64_t port = json_member::u64(request, "port"); port > 0 && port < 65536)
    co_await report(port_part(static_cast<unsigned>(port)));
  for (const Json& wanted : list_in(request, "folders")) {
    send({{"part", "at"}, {"what", "folder " + json_member::text(wanted, "path")}});
    co_await link_.flush(kFlushLimit);
    Json part = folder_json(wanted);
    part["part"] = "folder";
    co_await report(part);
  }
  for (const Json& path : list_in(request, "files")) {
    if (!path.is_string()) continue;
    send({{"part", "at"}, {"what", "file " + path.get<std::string>()}});
    co_await link_.flush(kFlushLimit);
    Json part = file_json(path.get<std::string>());
    part["part"] = "file";
    co_await report(part);
  }
  std::string libmpi;
  if (const auto program = request.find("program");
      program != request.end() && program->is_object()) {
    send({{"part", "at"}, {"what", "program " + json_member::text(*program, "name")}});
    co_await link_.flush(kFlushLimit);
    const Json part = program_part(*program, defaults_);
    libmpi = json_member::text(part, "libmpi");
    co_await report(part);
  }
  const std::string mpi = json_member::text(request, "mpi");
  if (mpi == "on" || (mpi == "auto" && !libmpi.empty())) {
    send({{"part", "at"}, {"what", "libpmix and libmpi"}});
    co_await link_.flush(kFlushLimit);
    co_await report(mpi_part(libmpi, defaults_));
  }
  if (const auto container = request.find("container");
      container != request.end() && container->is_object()) {
    send({{"part", "at"}, {"what", "mounts, and " + json_member::text(*container, "engine")}});
    co_await link_.flush(kFlushLimit);
    co_await report(container_part(*container, defaults_));
  }
  send({{"part", "at"}, {"what", "nvidia-smi"}});
  co_await link_.flush(kFlushLimit);
  co_await report(gpus_part(defaults_));
}

void CheckRole::listen(const Json& request) {
  token_ = json_member::text(request, "token");
  if (listener_) listener_->close();
  listener_ = std::make_shared<PeerListener>(io_, token_);
  Json part = {{"part", "listen"}};
  const std::uint64_t port = json_member::u64(request, "port");
  const auto wanted = static_cast<unsigned short>(port < 65536 ? port : 0);
  if (auto opened = listener_->open(json_member::text(request, "address"), wanted); opened) {
    listener_->start();
    part["port"] = listener_->port();
  } else {
    part["error"] = opened.error().message;
  }
  send(part);
}

asio::awaitable<void> CheckRole::reach(const Json& request) {
  std::vector<Peer> peers;
  for (const Json& object : list_in(request, "peers"))
    if (Peer peer; peers.size() < kMaxPeers && peer_in(object, peer))
      peers.push_back(std::move(peer));
  const auto facts =
      co_await reach_peers(io_, peers, token_, time_in(request, "limit_ms", kMaxReach));
  for (std::size_t i = 0; i < peers.size(); ++i) {
    const PeerFacts& peer = facts[i];
    send({{"part", "peer"},
          {"name", peers[i].name},
          {"error", peer.error},
          {"connect_us", peer.connect_us},
          {"round_trip_us", peer.round_trip_us},
          {"mtu", peer.mtu.path},
          {"own_mtu", peer.mtu.own},
          {"mtu_reported", peer.mtu.reported}});
  }
}

asio::awaitable<void> CheckRole::bandwidth(const Json& request) {
  Peer peer;
  if (!peer_in(request, peer)) co_return;
  const auto result =
      co_await measure_bandwidth(io_, peer, token_, time_in(request, "duration_ms", kMaxBandwidth));
  send({{"part", "bandwidth"},
        {"name", peer.name},
        {"error", result.error},
        {"bytes", result.bytes},
        {"us", result.us}});
}

asio::awaitable<void> CheckRole::link(const Json& request) {
  Peer peer;
  if (!peer_in(request, peer)) co_return;
  const auto streams =
      static_cast<int>(std::clamp<std::uint64_t>(json_member::u64(request, "streams"), 1, 64));
  const LinkFacts facts =
      co_await measure_link(io_, peer, token_, time_in(request, "limit_ms", kMaxReach),
                            time_in(request, "duration_ms", kMaxWay), streams);
  const auto way = [](const WayRate& rate) {
    return Json{
        {"bytes", rate.bytes}, {"us", rate.us}, {"segments", rate.segments}, {"again", rate.again}};
  };
  send({{"part", "link"},
        {"name", peer.name},
        {"error", facts.reached.error},
        {"rate_error", facts.rate_error},
        {"round_trip_us", facts.reached.round_trip_us},
        {"mtu", facts.reached.mtu.path},
        {"own_mtu", facts.reached.mtu.own},
        {"mtu_reported", facts.reached.mtu.reported},
        {"out", way(facts.out)},
        {"back", way(facts.back)}});
}

void CheckRole::send(const Json& part) {
  std::string text = json_text(part);
  if (text.size() > kMaxReport) text = R"({"part":"too large"})";
  link_.send(wire::CheckReport{std::move(text)});
}

asio::awaitable<void> CheckRole::report(const Json& part) {
  send(part);
  co_await link_.flush(kFlushLimit);
}

}  // namespace sortie::runner::check
