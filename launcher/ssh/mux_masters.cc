#include "launcher/ssh/mux_masters.h"

#include <fmt/core.h>
#include <pwd.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/steady_timer.hpp>

#include "common/asio/token.h"
#include "common/base/log.h"
#include "launcher/ssh/program_transport.h"

namespace sortie::launcher::ssh {
namespace asio = boost::asio;
using std::chrono::milliseconds;
namespace {

using Clock = std::chrono::steady_clock;

// A master answers from memory: if it takes longer it hangs.
constexpr milliseconds kMasterPatience{3000};
constexpr milliseconds kSessionPatience{1000};
constexpr milliseconds kMakerPatience{10000};

// Blocks on the disk.
MasterOrder order_for(const HostSpec& spec, const ControlSettings& control, bool is_jump,
                      const config::SshConfig& ssh, const UserEnvironment& environment) {
  MasterOrder order{spec, control.sockets.front(),    control.persist,
                    {},   control.sockets.size() > 1, is_jump};
  if (!ssh.config_file.empty()) {
    order.config_file = environment.expand_home(ssh.config_file);
  } else if (const passwd* entry = ::getpwuid(::getuid());
             entry && environment.home != entry->pw_dir) {
    // ssh ignores $HOME.
    std::error_code ignored;
    if (const auto own = environment.home / ".ssh/config"; std::filesystem::exists(own, ignored))
      order.config_file = own;
  }
  return order;
}

}  // namespace

// State of starting a master, shared by hosts with the same path.
struct MuxMasters::Making {
  explicit Making(const asio::any_io_executor& executor)
      : over(executor, Clock::time_point::max()) {}
  asio::steady_timer over;  // cancelled when `runs` becomes false
  bool runs = false;
  std::optional<Error> failure;  // if set, starting is not tried again (see make())
};

MuxMasters::MuxMasters(asio::any_io_executor executor, config::SshConfig ssh,
                       UserEnvironment environment, std::shared_ptr<UserFiles> files)
    : executor_(executor),
      ssh_(std::move(ssh)),
      environment_(std::move(environment)),
      files_(std::move(files)),
      sessions_(std::make_shared<FanOut>(executor, static_cast<std::size_t>(ssh_.fanout),
                                         kSessionPatience)),
      makers_(std::make_shared<FanOut>(executor, static_cast<std::size_t>(ssh_.fanout),
                                       kMakerPatience)) {}

void MuxMasters::say_once(const std::string& text) {
  if (said_.insert(text).second) log::warning("{}", text);
}

asio::awaitable<Result<MuxFound>> MuxMasters::find(HostSpec spec, MuxRole role) {
  const auto self = shared_from_this();
  MuxFound found;
  if (ssh_.control == "no") co_return found;
  const bool is_jump = role != MuxRole::host;
  const auto made = co_await files_->control_settings(spec, is_jump);
  if (!made) co_return std::unexpected(made.error());
  const ControlSettings& control = *made;
  if (control.sockets.empty()) co_return found;
  if (!control.left_alone.empty()) {
    const std::string why = fmt::format("its ssh master is left alone: {}", control.left_alone);
    log::debug("{}: {}", spec.host, why);
    const std::function<Result<bool>()> look_there = [socket = control.sockets.front()] {
      std::error_code ignored;
      return std::filesystem::exists(socket, ignored);
    };
    if (const auto exists = co_await files_->call(look_there); exists && *exists)
      found.why_not = why;
    co_return found;
  }
  bool taken = false;
  co_await look(control, spec.host, found, taken);
  if (found.master || taken || !control.make || role == MuxRole::jump_behind_others)
    co_return found;
  const std::function<Result<MasterOrder>()> prepare =
      [spec, control, is_jump, ssh = ssh_, environment = environment_]() -> Result<MasterOrder> {
    if (const auto folder = check_control_folder(control.sockets.front()); !folder)
      return fail(
          folder.error().code,
          fmt::format("{}; mkdir -m 700 it, ssh makes no master without", folder.error().message));
    return order_for(spec, control, is_jump, ssh, environment);
  };
  auto order = co_await files_->call(prepare);
  if (!order) {
    found.why_not = order.error().message;
    say_once(found.why_not);
    co_return found;
  }
  auto ended = co_await make(std::move(*order), control, found);
  if (!ended) co_return std::unexpected(std::move(ended).error());
  co_return found;
}

// Looks for a running master. `taken`: another process or user holds the path, so that no master
// can be started there.
asio::awaitable<void> MuxMasters::look(const ControlSettings& control, const std::string& host,
                                       MuxFound& found, bool& taken) {
  const auto self = shared_from_this();
  const auto patience = std::min(kMasterPatience, ssh_.connect_timeout);
  for (const std::filesystem::path& socket : control.sockets) {
    const std::function<Result<>()> check = [socket] { return check_control_folder(socket); };
    const auto safe = co_await files_->call(check);
    if (!safe) {
      if (safe.error().code == ErrorCode::not_found) continue;
      taken = true;
      found.why_not = fmt::format("{}; no ssh master is used there", safe.error().message);
      say_once(found.why_not);
      continue;
    }
    auto slot = co_await sessions_->enter();
    auto client = co_await MuxClient::connect(executor_, socket, Clock::now() + patience);
    if (client) {
      log::debug("{}: through the ssh master at {} (process {})", host, socket.string(),
                 (*client)->master());
      found.master = MuxMaster{socket, std::move(*client), std::move(slot)};
      co_return;
    }
    if (client.error().code == ErrorCode::not_found) continue;
    taken = true;
    found.why_not =
        fmt::format("the ssh master at {}: {}", socket.string(), client.error().message);
    say_once(
        fmt::format("{}; its hosts are signed in to anew; end what listens there, or set "
                    "runner.ssh.control = \"no\"",
                    found.why_not));
  }
}

asio::awaitable<std::string> MuxMasters::server_of(const MasterOrder& order) {
  auto asked = order.is_jump ? files_->jump_settings(order.host) : files_->settings(order.host);
  const auto settings = co_await std::move(asked);
  if (!settings) co_return order.host.host;
  if (!settings->jumps.empty()) co_return settings->jumps.front();
  co_return fmt::format("{}:{}", settings->host_name, settings->port);
}

asio::awaitable<Result<>> MuxMasters::make(MasterOrder order, const ControlSettings& control,
                                           MuxFound& found) {
  const auto self = shared_from_this();
  auto& entry = makings_[control.sockets.front()];
  if (!entry) entry = std::make_shared<Making>(executor_);
  const std::shared_ptr<Making> making = entry;
  const auto may_pass = [&making] {  // the host may be up again
    return making->failure->code == ErrorCode::resolve ||
           making->failure->code == ErrorCode::connect;
  };
  if (making->runs) {
    while (making->runs) co_await making->over.async_wait(kToken);
  } else if (!making->failure || may_pass()) {
    making->failure.reset();
    making->runs = true;
    co_await run_maker(order, making);
    making->runs = false;
    making->over.cancel();
  }
  if (!making->failure) {
    bool taken = false;
    co_await look(control, order.host.host, found, taken);
    if (!found.master && !taken)
      found.why_not = fmt::format("the ssh that was to make the master {} has made none there",
                                  control.sockets.front().string());
    co_return Result<>{};
  }
  // Connecting without a master would fail in the same way, after the same time.
  if (may_pass()) co_return std::unexpected(*making->failure);
  found.why_not = making->failure->message;
  log::debug("{}: no ssh master: {}", order.host.host, found.why_not);
  co_return Result<>{};
}

asio::awaitable<void> MuxMasters::run_maker(MasterOrder order, std::shared_ptr<Making> making) {
  const auto self = shared_from_this();
  const std::string name = co_await server_of(order);
  auto& gate = gates_[name];
  if (!gate) gate = std::make_shared<ServerGate>(executor_);
  const std::shared_ptr<ServerGate> server = gate;
  Clock::time_point begun{};
  for (int tries = 1;; ++tries) {
    auto pass = co_await server->enter();
    auto slot = co_await makers_->enter();
    log::debug("{}: making the ssh master at {}", order.host.host, order.socket.string());
    auto words = master_words(ssh_, order);
    auto failure = co_await start_master(executor_, std::move(words), environment_.lines(),
                                         order.socket, time_to_sign_in(ssh_));
    if (begun == Clock::time_point{}) begun = Clock::now();
    if (!failure) {
      pass->got_in();
      co_return;
    }
    if (failure->error.code == ErrorCode::not_found) {
      say_once(
          "there is no ssh program here to make the masters that ControlPersist asks for; "
          "hosts are signed in to without; install OpenSSH's client, or set "
          "runner.ssh.control = \"no\"");
      making->failure = std::move(failure->error);
      co_return;
    }
    if (failure->error.code == ErrorCode::connect) pass->unreachable();
    if (failure->dropped) pass->dropped();
    pass.reset();
    const auto delay = retry_delay(tries - 1);
    const bool again =
        failure->dropped &&
        Clock::now() + delay <= std::max(begun, server->last_in()) + ssh_.handshake_timeout;
    if (!again) {
      making->failure = std::move(failure->error);
      co_return;
    }
    slot.reset();
    asio::steady_timer pause(executor_, delay);
    co_await pause.async_wait(kToken);
  }
}

}  // namespace sortie::launcher::ssh
