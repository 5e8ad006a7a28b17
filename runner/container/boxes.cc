#include "runner/container/boxes.h"

#include <fmt/core.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <ranges>

#include "common/base/log.h"
#include "common/base/peer.h"
#include "common/base/process_status.h"
#include "runner/container/init_report.h"
#include "runner/container/removal.h"
#include "runner/process/order.h"
#include "runner/process/process_tree.h"

namespace sortie::runner::container {
namespace {

namespace fs = std::filesystem;
using std::chrono::milliseconds;

/// Process 1 forks a keeper for each order, which takes longer than to send one. For all orders of
/// a job together, because the runner waits in its only thread.
constexpr milliseconds kOrdersLimit{2000};
constexpr auto kStream = boost::asio::posix::stream_descriptor::wait_read;

Result<Fd> listen_at(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path)
    return fail(ErrorCode::io, path + ": too long for a socket");
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  Fd socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket ||
      ::bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 ||
      ::listen(socket.get(), 4) != 0)
    return std::unexpected(os_error(errno, path));
  return socket;
}

}  // namespace

Boxes::Boxes(boost::asio::io_context& io, const wire::JobSpec& job, const ProcessDefaults& defaults,
             Events events)
    : io_(io), job_(job), spec_(job.container), events_(std::move(events)), calls_(io, defaults) {
  calls_.on_keeper = events_.on_keeper;
}

void Boxes::plan() {
  const bool per_rank = spec_.scope == wire::ContainerScope::rank;
  const std::size_t ranks = job_.ranks.size();
  for (std::size_t slot = 0; slot < ranks; ++slot) {
    if (per_rank || slot == 0) {
      auto running = std::make_unique<Running>(io_);
      sortie::container::Box& box = running->box;
      box.run_id = job_.run_id;
      box.attempt = job_.attempt;
      box.node_rank = job_.node_rank;
      box.ranks = per_rank ? 1 : static_cast<std::uint32_t>(ranks);
      if (per_rank) box.rank = job_.ranks[slot].rank;
      if (per_rank && ranks > 1 && slot == 0) box.ipc_shared = true;
      if (slot > 0) box.ipc_of = boxes_.front()->name;
      running->name = container_name(box);
      running->socket_path = fmt::format("{}/init-{}.sock", run_folder_, boxes_.size());
      boxes_.push_back(std::move(running));
    }
    boxes_.back()->slots.push_back(slot);
    box_of_slot_.push_back(boxes_.size() - 1);
  }
}

Result<> Boxes::listen(Running& box) {
  SORTIE_ASSIGN_OR_RETURN(Fd socket, listen_at(box.socket_path));
  box.listener.assign(socket.release());
  return {};
}

/// Gives another user inside the container access to the run's files. The folder above stays
/// private, so other users of the host get none.
Result<> Boxes::open_folder_to_others() const {
  if (spec_.user.empty()) return {};
  std::error_code error;
  fs::permissions(run_folder_, static_cast<fs::perms>(0755), error);
  for (const fs::directory_entry& entry : fs::directory_iterator(run_folder_, error)) {
    const bool shared = entry.is_socket(error) || entry.path().filename() == "lock";
    if (!entry.is_directory(error))
      fs::permissions(entry.path(), static_cast<fs::perms>(shared ? 0666 : 0755), error);
  }
  if (error) return fail(ErrorCode::io, run_folder_ + ": " + error.message());
  return {};
}

std::vector<std::string> Boxes::names() const {
  std::vector<std::string> names;  // the one that shares its memory is last
  for (const auto& box : std::views::reverse(boxes_)) names.push_back(box->name);
  return names;
}

Result<> Boxes::start_guard() {
  const Client& client = image_.engine.client;
  SORTIE_TRY(guard_.start(
      run_folder_, sortie::container::remove_commands(client.engine, client.program, names())));
  events_.on_keeper(guard_.pid());
  return {};
}

std::vector<std::string> Boxes::argv(const std::vector<std::string>& program) const {
  std::vector<std::string> words =
      spec_.entrypoint.empty() ? image_.image.entrypoint : spec_.entrypoint;
  if (words.size() == 1 && words[0].empty()) words.clear();
  words.insert(words.end(), program.begin(), program.end());
  return words;
}

void Boxes::adapt(wire::Environment& env, std::size_t slot) const {
  std::vector<std::uint32_t> slots;
  for (const std::size_t one : box_of(slot).slots) slots.push_back(job_.ranks[one].slot);
  for (auto& [name, value] : env)
    if (name == "CUDA_VISIBLE_DEVICES") value = visible_devices(value, spec_, slots, uuids_);
}

std::string Boxes::where(std::size_t slot) const {
  return fmt::format("image {}, container {}", spec_.image, box_of(slot).name);
}

Result<> Boxes::start(std::size_t slot, HeldProcess& process, const HeldSpec& spec,
                      HeldProcess::OnReport on_report) {
  Running& box = *boxes_[box_of_slot_[slot]];
  if (!box.init.is_open()) return fail(ErrorCode::spawn, why_lost(slot));
  const int init = box.init.native_handle();
  const auto now = std::chrono::steady_clock::now();
  if (orders_until_ == std::chrono::steady_clock::time_point{}) orders_until_ = now + kOrdersLimit;
  const auto left = std::max(milliseconds(0), std::chrono::ceil<milliseconds>(orders_until_ - now));
  return process.start_inside(
      [init, &spec, left](int control) -> Result<> {
        auto sent = send_order(init, spec, control, left);
        if (!sent) return std::unexpected(with_context(std::move(sent).error(), "the container"));
        return {};
      },
      std::move(on_report));
}

std::string Boxes::why_lost(std::size_t slot) const {
  const Running& box = box_of(slot);
  if (!box.complaint.empty()) return fmt::format("container {}: {}", box.name, box.complaint);
  if (!box.lost) return {};
  return fmt::format(
      "container {} was ended from outside the run (docker kill or the like, or its engine ended)",
      box.name);
}

Result<bool> Boxes::accept(Running& box) {
  Fd peer(::accept4(box.listener.native_handle(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!peer) return false;
  SORTIE_ASSIGN_OR_RETURN(const ucred who, peer_of(peer.get()));
  if (spec_.user.empty() && who.uid != ::geteuid())
    return fail(ErrorCode::spawn, fmt::format("container {}: process 1 is user {}, not {}",
                                              box.name, who.uid, ::geteuid()));
  box.init_pid = who.pid;
  box.listener.close();
  box.init.assign(peer.release());
  return true;
}

void Boxes::watch(Running& box) {
  box.init.async_wait(kStream, [this, &box](const boost::system::error_code& error) {
    if (!error) read_report(box);
  });
}

void Boxes::read_report(Running& box) {
  for (;;) {
    const Result<InitReport> report = receive_report(box.init.native_handle());
    if (!report && report.error().code == ErrorCode::timeout) return watch(box);
    if (!report) break;
    switch (report->kind) {
      case InitReport::Kind::hello:
        box.path = report->text;
        box.greeted = true;
        break;
      case InitReport::Kind::refused:
        box.complaint = fmt::format("it could not start a process: {} ({})",
                                    std::strerror(report->value), report->text);
        log::warning("container {}: {}", box.name, box.complaint);
        break;
      case InitReport::Kind::asked_to_end:
        events_.on_end_asked(fmt::format(
            "container {} is being ended from outside the run: it got {} (docker stop, or its "
            "engine ends)",
            box.name, signal_name(report->value)));
        break;
    }
  }
  box.lost = !removing_;
  box.init.close();
}

boost::asio::awaitable<Result<>> Boxes::remove(milliseconds limit) {
  if (std::exchange(removing_, true)) co_return Result<>{};
  bool called = false;
  for (const auto& box : boxes_) {
    box->listener.close();
    box->init.close();
    called = called || box->called;
  }
  if (!called) {
    guard_.dismiss();
    co_return Result<>{};
  }
  Result<> done =
      co_await remove_containers(io_, calls_, image_.engine.client, names(), run_folder_, limit);
  if (done) {
    guard_.dismiss();
    co_return done;
  }
  // The guard continues to try after this process has exited.
  bool alive = false;
  for (const auto& box : boxes_) {
    const char state = box->init_pid > 0 ? process_state(box->init_pid) : '?';
    alive = alive || (state != '?' && state != 'Z' && state != 'X');
  }
  if (!alive) done.error().code = kLeftBehind;
  co_return done;
}

}  // namespace sortie::runner::container
