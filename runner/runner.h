// The runner's conversation with its launcher: handshake, orders, heartbeats, and the reaction to a
// lost launcher. common/wire/README.md has the order of messages; Job (job/job.h) runs the ranks.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include "common/base/fd.h"
#include "common/base/result.h"
#include "runner/adoption.h"
#include "runner/check/check_role.h"
#include "runner/container/image_role.h"
#include "runner/container/load_role.h"
#include "runner/files/file_role.h"
#include "runner/job/job.h"
#include "runner/memory/memory_folder.h"
#include "runner/streams/link.h"
#include "runner/streams/wakeup.h"
#include "runner/tunnel/tunnel.h"

namespace sortie::runner {

class Runner {
 public:
  /// `build` is the hash in this binary's file name, empty if there is none. `keeper` is used for
  /// the first process that the runner starts; it may be empty.
  Runner(ProcessDefaults defaults, std::string build, PreparedKeeper keeper = {});

  /// Serves one launcher on the two descriptors; returns the exit code of the process.
  int run(Fd in, Fd out);

 private:
  boost::asio::awaitable<void> converse();
  boost::asio::awaitable<void> shut_down();
  bool may_hold() const;
  boost::asio::awaitable<bool> hold();
  boost::asio::awaitable<void> hand_over(wire::Adopt adopt);
  void listen_for_adoption();
  Result<> adopt(const wire::Adopt& adopt, Fd in, Fd out);
  boost::asio::awaitable<void> prepare();
  boost::asio::awaitable<void> sweep(wire::Sweep order);
  boost::asio::awaitable<void> serve_signals();
  boost::asio::awaitable<void> beat();
  /// `gap`: time since the last heartbeat in which this process did not run.
  void send_heartbeat(std::uint64_t sequence, std::chrono::steady_clock::duration gap);
  boost::asio::awaitable<void> leave_when_finished();
  boost::asio::awaitable<void> limit_handshake();

  /// Handles one message. Returns false if it ends the conversation (Goodbye).
  Result<bool> handle(const wire::Message& message);
  Result<bool> handle_hello(const wire::Hello& hello);
  Result<bool> handle_job(const wire::JobSpec& spec);
  Result<bool> handle_files(const wire::FilesOpen& order);
  Result<bool> handle_image(const wire::Message& message);
  void set_heartbeat(std::uint32_t interval_ms, std::uint32_t timeout_ms);
  boost::asio::awaitable<void> leave_after(Error error);
  Result<bool> handle_check(const wire::CheckRequest& request);
  Result<bool> handle_tunnel(const wire::TunnelOrder& order);
  Result<bool> handle_start(const wire::Start& start);
  Result<bool> handle_sweep(const wire::Sweep& order);
  Result<bool> handle_hold(const wire::HoldMemory& order);
  boost::asio::awaitable<void> outlast_launcher();
  void on_signal(int number);
  void send_error(const Error& error);
  std::chrono::milliseconds short_grace() const;

  boost::asio::io_context io_{1};
  const ProcessDefaults defaults_;
  const std::string build_;
  PreparedKeeper keeper_;
  Link link_;
  std::unique_ptr<Job> job_;
  std::unique_ptr<FileRole> files_;
  std::unique_ptr<container::ImageRole> images_;  // precedes a job
  std::unique_ptr<container::LoadRole> loads_;
  std::chrono::milliseconds beat_interval_{0}, beat_timeout_{0};  // 0: not set yet
  std::shared_ptr<check::CheckRole> check_;                       // instead of a job
  std::shared_ptr<tunnel::Tunnel> tunnel_;                        // of the job or of the check
  boost::asio::posix::stream_descriptor signals_;
  boost::asio::steady_timer beat_timer_, handshake_timer_;
  std::unique_ptr<AdoptionListener> adoptions_;
  Wakeup held_;
  // The current launcher and its connection. A new connection must be higher, compared in this
  // order.
  std::uint32_t epoch_ = 1, link_number_ = 1;
  std::optional<MemoryHolder> memory_;  // instead of a job
  std::chrono::milliseconds memory_hold_{0};
  bool ending_ = false;
  bool handed_over_ = false;
  bool greeted_ = false;
  bool preparing_ = false;
  bool sweeping_ = false;
  bool leaving_ = false;  // ends by itself, after a signal or a fatal error
  int exit_code_ = 0;
};

}  // namespace sortie::runner
